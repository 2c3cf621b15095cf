// What is drawn over the pictures: matches, the point under the cursor, and the patches of the best path.

import { SIDE_COLOURS, levelColour, placeColour, viridis, wheel } from "./colors.js";
import { colourRange, forEachPoint, isShown } from "./layers.js";
import { state } from "./store.js";
import { quadtree } from "./tree.js";

const SMALLEST = 24; // pixels of the screen; the outlines of smaller patches would hide the picture

export const pointPlace = (result, { row, column }) => {
  const n = row * result.facts.geometry.grid[1] + column;
  const { data } = result.grid.points0;
  return { x: data[2 * n], y: data[2 * n + 1] };
};

export const matchOf = (result, { row, column }) => {
  const n = row * result.facts.geometry.grid[1] + column;
  const { points1, scores, flags, confidence, hidden } = result.grid;
  return {
    x: points1.data[2 * n],
    y: points1.data[2 * n + 1],
    score: scores.data[n],
    reached: Boolean(flags.data[n] & 1),
    kept: Boolean(flags.data[n] & 2),
    verified: Boolean(flags.data[n] & 4),
    confidence: confidence?.data[n],
    hidden: hidden?.data[n],
  };
};

// Matches as dots: where they start (which = 0) or end.
export function drawMatches(context, transform, result, image, which) {
  const { points1, confidence } = result.grid;
  const size = Math.max(2, Math.min(7, result.facts.geometry.alpha * transform.scale * 0.42));
  const most = colourRange(result);
  const strength = context.globalAlpha * (state.selected ? 0.35 : 1); // the patches of a point must stand out
  forEachPoint(result, (n, x, y) => {
    if (!isShown(result, n)) return;
    const [px, py] = which ? [points1.data[2 * n], points1.data[2 * n + 1]] : [x, y];
    if (state.view === "displacement") {
      context.fillStyle = `rgb(${wheel(points1.data[2 * n] - x, points1.data[2 * n + 1] - y, most).join(" ")})`;
    } else if (state.view === "confidence" && confidence) {
      context.fillStyle = `rgb(${viridis(confidence.data[n]).join(" ")})`;
    } else {
      context.fillStyle = placeColour(x / image.width, y / image.height);
    }
    context.globalAlpha = strength * (confidence && state.view === "matches" ? 0.25 + 0.75 * confidence.data[n] : 1);
    context.fillRect(transform.left + px * transform.scale - size / 2, transform.top + py * transform.scale - size / 2, size, size);
  });
  context.globalAlpha = 1;
}

// A line with a dark rim, legible on any picture.
function outlined(context, colour, width, draw) {
  for (const [style, extra] of [["rgb(0 0 0 / 0.65)", 2], [colour, 0]]) {
    context.strokeStyle = style;
    context.lineWidth = width + extra;
    context.beginPath();
    draw();
    context.stroke();
  }
}

export function drawSquare(context, transform, x, y, side, colour, width = 2) {
  const length = side * transform.scale;
  const left = transform.left + x * transform.scale - length / 2;
  const top = transform.top + y * transform.scale - length / 2;
  outlined(context, colour, width, () => context.rect(left, top, length, length));
}

export function drawRing(context, transform, x, y, colour, radius = 8) {
  const [cx, cy] = [transform.left + x * transform.scale, transform.top + y * transform.scale];
  outlined(context, colour, 2.5, () => context.arc(cx, cy, radius, 0, 2 * Math.PI));
}

export function drawCross(context, transform, x, y, colour, reach = 9) {
  const [cx, cy] = [transform.left + x * transform.scale, transform.top + y * transform.scale];
  outlined(context, colour, 2.5, () => {
    context.moveTo(cx - reach, cy);
    context.lineTo(cx + reach, cy);
    context.moveTo(cx, cy - reach);
    context.lineTo(cx, cy + reach);
  });
}

function drawDiamond(context, transform, x, y, colour, reach = 8) {
  const [cx, cy] = [transform.left + x * transform.scale, transform.top + y * transform.scale];
  outlined(context, colour, 2.5, () => {
    context.moveTo(cx, cy - reach);
    context.lineTo(cx + reach, cy);
    context.lineTo(cx, cy + reach);
    context.lineTo(cx - reach, cy);
    context.closePath();
  });
}

const trees = new WeakMap();
function patchesOf(inspection, geometry) {
  if (!trees.has(inspection)) trees.set(inspection, quadtree(inspection, geometry));
  return trees.get(inspection);
}

// The sub-patches of the chosen level, thin, if they are large enough to look between them, and the patches of the path from the top down to that level.
export function drawPath(context, transform, result, inspection, which) {
  const { delta } = result.facts.geometry;
  const patches = patchesOf(inspection, result.facts.geometry)[state.level] ?? [];
  const length = 2 ** state.level * delta * transform.scale;
  context.globalAlpha = 0.75;
  for (const { x, y, u, v } of length < SMALLEST ? [] : patches) {
    context.strokeStyle = levelColour(state.level);
    context.lineWidth = 1;
    context.strokeRect(
      transform.left + (x + which * u) * transform.scale - length / 2 + 0.5,
      transform.top + (y + which * v) * transform.scale - length / 2 + 0.5,
      length - 1, length - 1,
    );
  }
  context.globalAlpha = 1;
  for (const step of [...inspection.meta.path].reverse()) {
    if (step.level < state.level) continue;
    const [x, y] = which ? step.q : step.p;
    drawSquare(context, transform, x, y, 2 ** step.level * delta, levelColour(step.level), step.level === state.level ? 3 : 1.5);
  }
}

// The point under the cursor and the chosen one, with their matches.
export function drawPoints(context, transform, which, sides) {
  for (const side of sides) {
    const result = state.results[side];
    if (!result) continue;
    const colour = SIDE_COLOURS[side];
    const inspection = state.inspections[side];
    if (state.selected && inspection) {
      if (side === state.inspected || !which) drawPath(context, transform, result, inspection, which);
      const place = pointPlace(result, state.selected);
      const match = matchOf(result, state.selected);
      if (!which) drawCross(context, transform, place.x, place.y, "#ffffff");
      else if (match.reached) drawRing(context, transform, match.x, match.y, colour, 9);
      const { second } = inspection.meta;
      if (which && second && side === state.inspected) drawDiamond(context, transform, second.q[0], second.q[1], "#ffffff");
    }
    if (state.hover) {
      const place = pointPlace(result, state.hover);
      const match = matchOf(result, state.hover);
      const { delta } = result.facts.geometry;
      if (!which) drawSquare(context, transform, place.x, place.y, delta, colour, 2);
      else if (match.reached) {
        drawSquare(context, transform, match.x, match.y, delta, colour, 2);
        drawRing(context, transform, match.x, match.y, colour, Math.max(8, delta * transform.scale));
      }
    }
  }
}
