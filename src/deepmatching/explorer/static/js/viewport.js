// Zoom and pan, shared by all panels: places are fractions of each image, so that images of other sizes follow too.

import { state, update } from "./store.js";

const LARGEST = 40;

// From the pixels of an image to those of its canvas: scale, and the place of the image's corner.
export function transformOf(canvas, image) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const scale = Math.min(width / image.width, height / image.height) * state.zoom;
  return {
    scale,
    left: width / 2 - state.centre[0] * image.width * scale,
    top: height / 2 - state.centre[1] * image.height * scale,
  };
}

export function placeIn(canvas, image, event) {
  const { scale, left, top } = transformOf(canvas, image);
  return { x: (event.offsetX - left) / scale, y: (event.offsetY - top) / scale };
}

function clamp(centre, zoom) {
  const room = 0.5 / Math.max(1, zoom);
  return centre.map((value) => Math.min(1 - room, Math.max(room, value)));
}

// Zoom about a place of an image, given as fractions.
export function zoomBy(factor, about = state.centre) {
  const zoom = Math.min(LARGEST, Math.max(1, state.zoom * factor));
  const ratio = state.zoom / zoom;
  update({ zoom, centre: clamp(state.centre.map((value, n) => about[n] + (value - about[n]) * ratio), zoom) });
}

export function fit() {
  update({ zoom: 1, centre: [0.5, 0.5] });
}

export function pan(dx, dy) {
  update({ centre: clamp([state.centre[0] + dx, state.centre[1] + dy], state.zoom) });
}

// Wheel, drag and pinch on a canvas. `picture` gives its image, `clicked` gets clicks that are no drags.
export function attach(canvas, picture, clicked) {
  const down = new Map();
  let moved = 0;
  const fraction = (event) => {
    const place = placeIn(canvas, picture(), event);
    return [place.x / picture().width, place.y / picture().height];
  };
  canvas.addEventListener("wheel", (event) => {
    if (!picture()) return;
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), fraction(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !picture()) return;
    if (!down.size) moved = 0;
    down.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before || !picture()) return;
    const { scale } = transformOf(canvas, picture());
    const [dx, dy] = [event.offsetX - before.offsetX, event.offsetY - before.offsetY];
    moved += Math.abs(dx) + Math.abs(dy);
    if (down.size === 1 && moved > 4) pan(-dx / scale / picture().width, -dy / scale / picture().height);
    if (down.size === 2) {
      const [other] = [...down.values()].filter((item) => item.pointerId !== event.pointerId);
      const length = (item) => Math.hypot(item.offsetX - other.offsetX, item.offsetY - other.offsetY);
      zoomBy(length(event) / Math.max(1, length(before)), fraction(other));
    }
    if (moved > 4 || down.size === 2) down.set(event.pointerId, event);
  });
  const up = (event) => {
    const was = down.delete(event.pointerId);
    if (was && event.type === "pointerup" && moved <= 4 && !down.size) clicked(placeIn(canvas, picture(), event));
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
}
