// The keys, and the dialog that lists them.

import { byId, clearError, make } from "./dom.js";
import { play } from "./inspector.js";
import { select } from "./points.js";
import { announcePoint } from "./readout.js";
import { state, update } from "./store.js";
import { VIEWS, missing, setMix } from "./views.js";
import { fit, pan, zoomBy } from "./viewport.js";

const KEYS = [
  ["1 … 8", "choose the view"],
  ["o, s, b", "overlay, slider, blink"],
  ["[ ]", "finer or coarser level"],
  ["x", "change between S and Q"],
  ["p", "play the path"],
  ["+ −  0", "zoom in, out, fit"],
  ["Shift + arrows", "move the zoomed pictures"],
  ["Arrows", "on a picture: move the cursor to the next point"],
  ["Enter", "on a picture: open the point"],
  ["Escape", "close the point"],
  ["?", "show these keys"],
];

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

export function setUpKeyboard() {
  byId("key-list").replaceChildren(...KEYS.flatMap(([key, words]) => [make("dt", { textContent: key }), make("dd", { textContent: words })]));
  byId("show-keys").onclick = () => byId("keys").showModal();
  document.addEventListener("keydown", pressed);
}

function pressed(event) {
  const typing = event.target.closest?.("input:not([type=radio]):not([type=checkbox]), select, textarea, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const onPicture = event.target.tagName === "CANVAS" && event.target.closest(".panel");
  if (event.key in ARROWS) {
    if (!onPicture) return;
    event.preventDefault();
    const [down, right] = ARROWS[event.key];
    if (event.shiftKey) pan((0.1 * right) / state.zoom, (0.1 * down) / state.zoom);
    else move(down, right);
    return;
  }
  if (event.key === "Enter" && onPicture && state.hover) {
    event.preventDefault();
    select(state.hover);
    return;
  }
  const action = ACTIONS[event.key] ?? (/^[1-8]$/.test(event.key) ? () => chooseView(Number(event.key) - 1) : null);
  if (action) {
    event.preventDefault();
    action();
  }
}

function move(down, right) {
  if (!state.results[0]) return;
  const { grid: [rows, columns] } = state.results[0].facts.geometry;
  const from = state.hover ?? state.selected ?? { row: Math.floor(rows / 2), column: Math.floor(columns / 2) };
  const point = {
    row: Math.min(rows - 1, Math.max(0, from.row + down)),
    column: Math.min(columns - 1, Math.max(0, from.column + right)),
  };
  update({ hover: point });
  announcePoint(point);
}

function chooseView(number) {
  const [view] = VIEWS[number];
  if (!missing(view)) update({ view });
}

function changeLevel(step) {
  const top = state.inspections[state.inspected]?.meta.maps.length;
  if (top) update({ level: Math.min(top - 1, Math.max(0, state.level + step)) });
}

const ACTIONS = {
  "+": () => zoomBy(1.5),
  "=": () => zoomBy(1.5),
  "-": () => zoomBy(1 / 1.5),
  0: fit,
  o: () => setMix("opacity"),
  s: () => setMix("slider"),
  b: () => setMix("blink"),
  "[": () => changeLevel(-1),
  "]": () => changeLevel(1),
  x: () => update({ letter: state.letter === "S" ? "Q" : "S" }),
  p: play,
  "?": () => byId("keys").showModal(),
  Escape: () => {
    clearError();
    update({ selected: null, inspections: [null, null] });
  },
};
