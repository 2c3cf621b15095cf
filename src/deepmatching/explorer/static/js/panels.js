// The canvases: the first image with the layer of A (and of B), and the second image.

import { byId } from "./dom.js";
import { layerOf } from "./layers.js";
import { mapOf, paintedMap } from "./maps.js";
import { drawMatches, drawPoints } from "./marks.js";
import { listen, sides, state, update } from "./store.js";
import { attach, placeIn, transformOf } from "./viewport.js";

const SPARSE = ["matches"]; // views that are drawn as dots over the picture
const AROUND = 210; // pixels of the window above and below the pictures
const CAPTION = 32; // pixels of the caption of a picture, and of the gap below it
const NARROW = 640; // pixels of a phone's width
let onSelect = () => {};

export function setUpPanels(select) {
  onSelect = select;
  for (const [id, side] of [["panel-first", 0], ["panel-other", 1]]) {
    const canvas = byId(id);
    attach(canvas, () => state.images[0], (place) => selectAt(place));
    canvas.addEventListener("pointermove", (event) => {
      if (!event.buttons && state.images[0]) update({ hover: nearestPoint(side, placeIn(canvas, state.images[0], event)) });
    });
    canvas.addEventListener("pointerleave", () => update({ hover: null }));
  }
  const second = byId("panel-second");
  attach(second, () => state.images[1], () => {});
  second.addEventListener("pointermove", (event) => {
    if (state.images[1]) update({ cursor: placeIn(second, state.images[1], event) });
  });
  second.addEventListener("pointerleave", () => update({ cursor: null }));
  new ResizeObserver(() => update()).observe(byId("panels"));
  window.addEventListener("resize", () => update());
  listen(arrange);
  listen(draw);
}

// The point of the grid nearest to a place of the first image, or null outside.
export function nearestPoint(side, { x, y }) {
  const result = state.results[side] ?? state.results[0];
  const image = state.images[0];
  if (!result || x < 0 || y < 0 || x > image.width || y > image.height) return null;
  const { grid: [rows, columns], alpha, beta } = result.facts.geometry;
  const at = (value, count) => Math.min(count - 1, Math.max(0, Math.round((value - beta) / alpha)));
  return { row: at(y, rows), column: at(x, columns) };
}

function selectAt(place) {
  const point = nearestPoint(0, place);
  if (point) onSelect(point);
}

function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.style.touchAction = state.zoom === 1 ? "pan-y" : "none"; // a finger scrolls the page, or moves what is zoomed
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  return context;
}

function drawImage(context, transform, image, width, height) {
  context.imageSmoothingEnabled = transform.scale < 3;
  context.drawImage(image, transform.left, transform.top, width * transform.scale, height * transform.scale);
}

// What lies over the first image: the layer of the view, or the second image as it is.
function overlayOf(side) {
  if (state.view === "pictures") return state.mix === "opacity" ? null : state.images[1];
  return layerOf(state.results[side], state.view, state.images);
}

function drawFirst(canvas, side) {
  const image = state.images[0];
  const context = prepared(canvas);
  if (!image || !canvas.clientWidth) return;
  const transform = transformOf(canvas, image);
  drawImage(context, transform, image, image.width, image.height);
  const layer = overlayOf(side);
  const dots = SPARSE.includes(state.view) && state.results[side];
  if (layer || dots) {
    context.save();
    if (state.mix === "opacity") context.globalAlpha = state.amount;
    if (state.mix === "slider") {
      const split = transform.left + state.amount * image.width * transform.scale;
      context.beginPath();
      context.rect(split, 0, canvas.clientWidth, canvas.clientHeight);
      context.clip();
    }
    if (state.mix !== "blink" || state.blinking) {
      if (layer) drawImage(context, transform, layer, image.width, image.height);
      if (dots) drawMatches(context, transform, state.results[side], image, 0);
    }
    context.restore();
    if (state.mix === "slider") drawSplit(context, transform, canvas, image);
  }
  drawPoints(context, transform, 0, state.compare ? [side] : [0]);
}

function drawSplit(context, transform, canvas, image) {
  const x = transform.left + state.amount * image.width * transform.scale;
  const top = Math.max(0, transform.top);
  const bottom = Math.min(canvas.clientHeight, transform.top + image.height * transform.scale);
  context.fillStyle = "rgb(0 0 0 / 0.5)";
  context.fillRect(x - 2, top, 4, bottom - top);
  context.fillStyle = "#fff";
  context.fillRect(x - 1, top, 2, bottom - top);
}

function drawSecond(canvas) {
  const image = state.images[1];
  const context = prepared(canvas);
  if (!image || !canvas.clientWidth) return;
  const transform = transformOf(canvas, image);
  drawImage(context, transform, image, image.width, image.height);
  const inspection = state.selected && state.inspections[state.inspected];
  const map = inspection && mapOf(inspection, state.letter, state.level);
  if (map) drawMap(context, transform, map, image);
  else if (["matches", "displacement", "confidence"].includes(state.view) && state.results[0]) {
    const amount = state.mix === "opacity" ? state.amount : 1;
    context.save();
    context.globalAlpha = amount;
    if (amount > 0.02) drawMatches(context, transform, state.results[0], state.images[0], 1);
    context.restore();
  }
  drawPoints(context, transform, 1, sides());
}

function drawMap(context, transform, map, image) {
  const [rows, columns] = map.array.shape;
  context.fillStyle = "rgb(0 0 0 / 0.35)";
  context.fillRect(transform.left, transform.top, image.width * transform.scale, image.height * transform.scale);
  context.save();
  context.globalAlpha = 0.72;
  context.imageSmoothingEnabled = false;
  const left = transform.left + (map.first[0] - map.step / 2) * transform.scale;
  const top = transform.top + (map.first[1] - map.step / 2) * transform.scale;
  context.beginPath();
  context.rect(transform.left, transform.top, image.width * transform.scale, image.height * transform.scale);
  context.clip();
  context.drawImage(paintedMap(map.array).canvas, left, top, columns * map.step * transform.scale, rows * map.step * transform.scale);
  context.restore();
}

// Put the pictures beside or below each other, whichever shows them larger; on a phone they fill the width.
function arrange() {
  byId("figure-other").hidden = !state.compare;
  const box = byId("panels");
  const [image] = state.images;
  if (!image || !box.clientWidth) return;
  const count = state.compare ? 3 : 2;
  const [width, height] = [box.clientWidth, Math.max(400, window.innerHeight - AROUND)];
  const scaleOf = (columns, rows) => Math.min(width / columns / image.width, (height / rows - CAPTION) / image.height);
  const narrow = width < NARROW;
  const stacked = narrow || scaleOf(1, count) > scaleOf(count, 1);
  box.style.setProperty("--columns", stacked ? 1 : count);
  box.style.setProperty("--most", narrow ? "70vh" : `${Math.floor(height / (stacked ? count : 1) - CAPTION)}px`);
}

function draw() {
  drawFirst(byId("panel-first"), 0);
  if (state.compare) drawFirst(byId("panel-other"), 1);
  drawSecond(byId("panel-second"));
}
