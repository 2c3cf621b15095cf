// The dense views as canvases of the size of the first image.

import { VIRIDIS_LUT, fullColour, viridis, wheel } from "./colors.js";
import { state } from "./store.js";

const cache = new WeakMap(); // result → {least, view: canvas}

// Whether point n has a match that is confident enough to be shown. Without a confidence, all are.
export function isShown({ grid: { flags, confidence } }, n) {
  return Boolean(flags.data[n] & 2) && !(confidence?.data[n] < state.least);
}

export function shownCount(result) {
  return result.grid.flags.data.reduce((count, _, n) => count + isShown(result, n), 0);
}

export function layerOf(result, view, images) {
  if (!result || !MAKERS[view]) return null;
  if (cache.get(result)?.least !== state.least) cache.set(result, { least: state.least });
  const made = cache.get(result);
  if (!(view in made)) made[view] = MAKERS[view](result, images);
  return made[view];
}

// The displacement in px with full colour, the same for the grid and the flow.
export function colourRange(result) {
  if (result.range === undefined) {
    const { points1, flags } = result.grid;
    const lengths = [];
    forEachPoint(result, (n, x, y) => {
      if (flags.data[n] & 2) lengths.push(Math.hypot(points1.data[2 * n] - x, points1.data[2 * n + 1] - y));
    });
    result.range = fullColour(lengths);
  }
  return result.range;
}

export function forEachPoint(result, visit) {
  const { data } = result.grid.points0;
  for (let n = 0; 2 * n < data.length; n++) visit(n, data[2 * n], data[2 * n + 1]);
}

function canvasOf(rows, columns, paint) {
  const canvas = new OffscreenCanvas(columns, rows);
  const context = canvas.getContext("2d");
  const picture = context.createImageData(columns, rows);
  paint(picture.data);
  context.putImageData(picture, 0, 0);
  return canvas;
}

function pixelsOf(image) {
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, image.width, image.height).data;
}

function coloured(array) {
  if (!array) return null;
  const [rows, columns] = array.shape;
  return canvasOf(rows, columns, (out) => {
    for (let n = 0; n < rows * columns; n++) {
      const at = 3 * Math.round(255 * array.data[n]);
      out.set([VIRIDIS_LUT[at], VIRIDIS_LUT[at + 1], VIRIDIS_LUT[at + 2], 255], 4 * n);
    }
  });
}

function flow(result) {
  const field = result.layers.flow;
  if (!field) return null;
  const [rows, columns] = field.shape;
  const { confidence } = result.layers;
  const most = colourRange(result);
  const colour = [0, 0, 0];
  return canvasOf(rows, columns, (out) => {
    for (let n = 0; n < rows * columns; n++) {
      wheel(field.data[2 * n], field.data[2 * n + 1], most, colour);
      out.set(colour, 4 * n);
      out[4 * n + 3] = confidence.data[n] < state.least ? 0 : 255;
    }
  });
}

// The matches as squares of the grid; `colour` gives that of point n at (x, y).
function squares(result, images, colour) {
  const { alpha } = result.facts.geometry;
  const canvas = new OffscreenCanvas(images[0].width, images[0].height);
  const context = canvas.getContext("2d");
  forEachPoint(result, (n, x, y) => {
    if (!isShown(result, n)) return;
    context.fillStyle = `rgb(${colour(n, x, y).join(" ")})`;
    context.fillRect(x - alpha / 2, y - alpha / 2, alpha, alpha);
  });
  return canvas;
}

function displacement(result, images) {
  const { points1 } = result.grid;
  const most = colourRange(result);
  return squares(result, images, (n, x, y) => wheel(points1.data[2 * n] - x, points1.data[2 * n + 1] - y, most));
}

// That of the flow; without a flow, that of the matches.
function confidence(result, images) {
  const { confidence: ofMatches } = result.grid;
  if (result.layers.confidence || !ofMatches) return coloured(result.layers.confidence);
  return squares(result, images, (n) => viridis(ofMatches.data[n]));
}

function edges(result) {
  const array = result.layers.edges;
  if (!array) return null;
  const [rows, columns] = array.shape;
  return canvasOf(rows, columns, (out) => {
    for (let n = 0; n < rows * columns; n++) {
      const value = 255 - Math.round(255 * Math.sqrt(array.data[n]));
      out.set([value, value, value, 255], 4 * n);
    }
  });
}

// The first image in grey, hidden pixels in orange.
function occlusion(result, images) {
  const array = result.layers.occlusion;
  if (!array) return null;
  const [rows, columns] = array.shape;
  const image = pixelsOf(images[0]);
  return canvasOf(rows, columns, (out) => {
    for (let n = 0; n < rows * columns; n++) {
      const grey = 60 + 0.55 * (0.3 * image[4 * n] + 0.59 * image[4 * n + 1] + 0.11 * image[4 * n + 2]);
      const p = array.data[n];
      out.set([grey + p * (255 - grey), grey + p * (122 - grey), grey + p * (20 - grey), 255], 4 * n);
    }
  });
}

function warped(result, images) {
  const field = result.layers.flow;
  if (!field) return null;
  const [rows, columns] = field.shape;
  const second = pixelsOf(images[1]);
  const { width, height } = images[1]; // which may differ from those of the first
  return canvasOf(rows, columns, (out) => {
    for (let y = 0, n = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++, n++) {
        const u = x + field.data[2 * n];
        const v = y + field.data[2 * n + 1];
        const [i, j] = [Math.floor(v), Math.floor(u)];
        if (u < 0 || v < 0 || u > width - 1 || v > height - 1) {
          out.set([128, 128, 128, 255], 4 * n);
          continue;
        }
        const right = j + 1 < width ? 4 : 0;
        const below = i + 1 < height ? 4 * width : 0;
        const at = 4 * (i * width + j);
        const [a, b] = [u - j, v - i];
        for (let c = 0; c < 3; c++) {
          const top = second[at + c] * (1 - a) + second[at + right + c] * a;
          const bottom = second[at + below + c] * (1 - a) + second[at + below + right + c] * a;
          out[4 * n + c] = top * (1 - b) + bottom * b;
        }
        out[4 * n + 3] = 255;
      }
    }
  });
}

const MAKERS = {
  displacement, confidence, flow, edges, occlusion, warped,
};
