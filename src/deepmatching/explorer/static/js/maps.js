// Score maps of a point as small canvases, one pixel a cell.

import { VIRIDIS_LUT } from "./colors.js";

const painted = new WeakMap(); // array → {canvas, low, high, best}

export function paintedMap(array) {
  if (painted.has(array)) return painted.get(array);
  const [rows, columns] = array.shape;
  let [low, high, best] = [Infinity, -Infinity, -1];
  array.data.forEach((value, n) => {
    if (value === -Infinity) return;
    if (value < low) low = value;
    if (value > high) [high, best] = [value, n];
  });
  const canvas = new OffscreenCanvas(columns, rows);
  const context = canvas.getContext("2d");
  const picture = context.createImageData(columns, rows);
  const scale = high > low ? 255 / (high - low) : 0;
  array.data.forEach((value, n) => {
    if (value === -Infinity) return;
    const at = 3 * Math.round(high > low ? (value - low) * scale : 128);
    picture.data.set([VIRIDIS_LUT[at], VIRIDIS_LUT[at + 1], VIRIDIS_LUT[at + 2], 255], 4 * n);
  });
  context.putImageData(picture, 0, 0);
  const result = { canvas, low, high, best };
  painted.set(array, result);
  return result;
}

// The map of a level of an inspection, and where it lies.
export function mapOf(inspection, letter, level) {
  const map = inspection?.meta.maps[level];
  return map ? { ...map, array: inspection.arrays[`${letter}${level}`] } : null;
}

// The score at a place of the second image; undefined outside the map, −∞ where no path leads.
export function scoreAt(inspection, letter, level, { x, y }) {
  const map = mapOf(inspection, letter, level);
  if (!map) return undefined;
  const [rows, columns] = map.array.shape;
  const i = Math.round((y - map.first[1]) / map.step);
  const j = Math.round((x - map.first[0]) / map.step);
  return i < 0 || j < 0 || i >= rows || j >= columns ? undefined : map.array.data[i * columns + j];
}
