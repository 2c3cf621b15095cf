// The state of this tab. Whoever changes it calls `update`, and all listeners run once before the next picture.

export const state = {
  source: null,
  about: null,
  pair: null,
  images: [null, null],
  compare: false,
  settings: [null, null],
  results: [null, null],
  view: "matches",
  mix: "opacity",
  amount: 1, // opacity, or the place of the slider
  least: 0, // confidence below which matches are hidden
  blinking: false, // which of the two pictures blink mode shows
  zoom: 1,
  centre: [0.5, 0.5], // of the panels, as fractions of the image
  hover: null, // {row, column} on the grid
  selected: null,
  inspections: [null, null],
  inspected: 0, // whose maps are shown
  level: 0,
  letter: "Q",
  cursor: null, // {x, y} in the second image
  busy: false,
};

const listeners = new Set();
let scheduled = false;

export function listen(listener) {
  listeners.add(listener);
}

export function update(changes = {}) {
  Object.assign(state, changes);
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    for (const listener of listeners) listener(state);
  });
}

export const sides = () => (state.compare ? [0, 1] : [0]);
export const main = () => state.results[0];
