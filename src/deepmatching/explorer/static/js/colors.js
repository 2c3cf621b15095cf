// Colours: viridis for scores and probabilities, Middlebury's wheel for displacements.

const VIRIDIS = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135], [57, 86, 140], [49, 104, 142], [42, 120, 142],
  [35, 136, 142], [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104], [122, 209, 81], [165, 219, 54],
  [210, 226, 27], [253, 231, 37],
];

export const VIRIDIS_LUT = Uint8Array.from({ length: 768 }, (_, n) => {
  const at = (Math.floor(n / 3) / 255) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[low][n % 3] + (at - low) * (VIRIDIS[low + 1][n % 3] - VIRIDIS[low][n % 3]);
});

export const viridis = (value) => {
  const at = 3 * Math.round(255 * Math.min(1, Math.max(0, value)));
  return [VIRIDIS_LUT[at], VIRIDIS_LUT[at + 1], VIRIDIS_LUT[at + 2]];
};

// As deepmatching.drawing.colors: six runs of hues.
const RUNS = [
  [[1, 0, 0], [1, 1, 0], 15], [[1, 1, 0], [0, 1, 0], 6], [[0, 1, 0], [0, 1, 1], 4],
  [[0, 1, 1], [0, 0, 1], 11], [[0, 0, 1], [1, 0, 1], 13], [[1, 0, 1], [1, 0, 0], 6],
];
const WHEEL = RUNS.flatMap(([first, last, length]) =>
  Array.from({ length }, (_, n) => first.map((value, c) => value + (n / length) * (last[c] - value))));

export function wheel(u, v, most, out = [0, 0, 0]) {
  const saturation = Math.min(Math.hypot(u, v) / most, 1);
  const position = ((Math.atan2(-v, -u) / Math.PI + 1) / 2) * (WHEEL.length - 1);
  const low = Math.floor(position);
  const weight = position - low;
  const next = WHEEL[(low + 1) % WHEEL.length];
  for (let c = 0; c < 3; c++) {
    const hue = (1 - weight) * WHEEL[low][c] + weight * next[c];
    out[c] = Math.floor(255 * (1 - saturation * (1 - hue)));
  }
  return out;
}

// The displacement that gets full colour: the 98th percentile, rounded up to two digits.
export function fullColour(lengths) {
  if (!lengths.length) return 1;
  const sorted = Float32Array.from(lengths).sort();
  const largest = Math.max(1, sorted[Math.floor(0.98 * (sorted.length - 1))]);
  const step = 10 ** (Math.floor(Math.log10(largest)) - 1);
  return Math.ceil(Math.round((largest / step) * 1e6) / 1e6) * step;
}

// A colour for every place of an image: corresponding points look alike.
export const placeColour = (x, y) => `hsl(${Math.round(20 + 300 * x)} 90% ${Math.round(72 - 34 * y)}%)`;

// Patches of the levels, fine to coarse.
const LEVELS = ["#ffd43b", "#ffa94d", "#ff6b6b", "#f06595", "#cc5de8", "#845ef7", "#5c7cfa", "#22b8cf", "#51cf66"];
export const levelColour = (level) => LEVELS[level % LEVELS.length];

export const SIDE_COLOURS = ["#4dabf7", "#ff922b"];
