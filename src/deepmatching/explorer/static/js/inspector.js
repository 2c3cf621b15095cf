// The maps of the chosen point, level by level, and the numbers of its path.

import { byId, fillTabs, make } from "./dom.js";
import { levelColour } from "./colors.js";
import { mapOf, paintedMap, scoreAt } from "./maps.js";
import { pointPlace } from "./marks.js";
import { centre } from "./readout.js";
import { listen, state, update } from "./store.js";

const SUB = "₀₁₂₃₄₅₆₇₈₉";
const STEP_TIME = 700; // ms between levels when the path is played
const number = (value) => (value === undefined ? "outside" : value === -Infinity ? "−∞" : value.toFixed(4));
let playing = 0;
let seen = [];

export function setUpInspector() {
  listen(() => {
    const inspection = state.inspections[state.inspected];
    const now = [inspection, state.selected, state.compare, state.inspected, state.results[0]];
    if (now.some((item, n) => item !== seen[n])) rebuild(state.selected && inspection);
    seen = now;
    refresh(state.selected && inspection);
  });
}

export function play() {
  clearInterval(playing);
  const inspection = state.inspections[state.inspected];
  if (!inspection?.meta.maps.length) return;
  update({ letter: "Q", level: inspection.meta.maps.length - 1 });
  playing = setInterval(() => {
    if (state.level === 0 || !state.selected) return clearInterval(playing);
    update({ level: state.level - 1 });
  }, STEP_TIME);
}

function choose(letter, level) {
  clearInterval(playing);
  update({ letter, level });
}

function rebuild(inspection) {
  const box = byId("inspector");
  const onTabs = byId("inspect-side")?.contains(document.activeElement);
  if (!inspection) {
    box.replaceChildren(make("h2", { id: "inspector-title", textContent: "Score maps" }), make("p", {
      className: "empty",
      textContent: state.results[state.inspected]?.facts.no_maps || (state.results[0]
        ? "Click a point of the first image. Its maps over the second image appear here: S from fine to coarse, then Q back down, and the best path through them."
        : ""),
    }));
    return;
  }
  const { path, second, maps } = inspection.meta;
  const levels = maps.map((map) => map.level);
  const place = pointPlace(state.results[state.inspected], state.selected);
  const head = make("div", { className: "inspector-head" },
    make("h2", { id: "inspector-title", textContent: `Score maps of the point (${centre(place.x, place.y)})` }),
    sideTabs(),
    make("button", { type: "button", id: "play", textContent: "▶ Play the path", onclick: play }),
    make("button", { type: "button", id: "close-point", textContent: "Close", onclick: () => update({ selected: null, inspections: [null, null] }) }));
  const grid = make("div", { className: "maps" });
  grid.style.setProperty("--levels", levels.length);
  for (const [letter, words] of [["S", "fine → coarse"], ["Q", "← back down"]]) {
    grid.append(make("p", { className: "map-row" }, make("b", { textContent: letter }), make("span", { textContent: words })));
    for (const level of levels) grid.append(mapButton(inspection, letter, level));
  }
  box.replaceChildren(head, make("div", { className: "inspector-body" }, make("div", { className: "scroll" }, grid), numbers(inspection, path, second)));
  if (onTabs) byId("inspect-side").querySelector(":checked").focus();
}

function sideTabs() {
  const tabs = make("div", { id: "inspect-side", className: "tabs small", role: "radiogroup", ariaLabel: "Settings", hidden: !state.compare });
  const items = [{ value: 0, label: "A" }, { value: 1, label: "B" }];
  fillTabs(tabs, items, state.inspected, (side) => update({ inspected: side, level: Math.min(state.level, (state.inspections[side]?.meta.maps.length ?? 1) - 1) }));
  return tabs;
}

function mapButton(inspection, letter, level) {
  const map = mapOf(inspection, letter, level);
  const [rows, columns] = map.array.shape;
  const { low, high } = paintedMap(map.array);
  const canvas = make("canvas", { width: 192, height: Math.max(24, Math.round((192 * rows) / columns)) });
  drawThumbnail(canvas, inspection, map, letter, level);
  const range = high === -Infinity ? "no scores" : `${low.toFixed(2)} … ${high.toFixed(2)}`;
  const button = make("button", { type: "button", className: "map", onclick: () => choose(letter, level) },
    canvas,
    make("span", { className: "map-name", textContent: `${letter}${SUB[level]}` }),
    make("span", { className: "map-range", textContent: range }));
  button.setAttribute("aria-label", `${letter} ${level}, ${columns} by ${rows} cells, ${range}`);
  Object.assign(button.dataset, { letter, level });
  button.style.setProperty("--level", levelColour(level));
  return button;
}

function drawThumbnail(canvas, inspection, map, letter, level) {
  const context = canvas.getContext("2d");
  const [rows, columns] = map.array.shape;
  const [sx, sy] = [canvas.width / columns, canvas.height / rows];
  context.imageSmoothingEnabled = false;
  context.drawImage(paintedMap(map.array).canvas, 0, 0, canvas.width, canvas.height);
  const mark = ([x, y], colour, shape) => {
    const [cx, cy] = [((x - map.first[0]) / map.step + 0.5) * sx, ((y - map.first[1]) / map.step + 0.5) * sy];
    for (const [style, width] of [["#000", 6], [colour, 3]]) {
      Object.assign(context, { strokeStyle: style, lineWidth: width });
      context.beginPath();
      if (shape === "ring") context.arc(cx, cy, 12, 0, 7);
      else context.rect(cx - 9, cy - 9, 18, 18);
      context.stroke();
    }
  };
  const { path, second } = inspection.meta;
  if (second && level === 0 && letter === "Q") mark(second.q, "#bbb", "square");
  if (path[level]) mark(path[level].q, "#fff", "ring");
}

function numbers(inspection, path, second) {
  const header = ["Level", "Patch", "Moved", "S", "Q", "S at cursor", "Q at cursor"];
  const rows = inspection.meta.maps.map((map) => {
    const step = path[map.level];
    const result = state.results[state.inspected];
    const side = 2 ** map.level * result.facts.geometry.delta;
    const moved = step ? `${(step.q[0] - step.p[0]).toFixed(0)}, ${(step.q[1] - step.p[1]).toFixed(0)}` : "—";
    const name = make("th", { scope: "row" }, make("i", { className: "dot" }), String(map.level));
    name.firstChild.style.background = levelColour(map.level);
    const row = make("tr", { onclick: () => choose(state.letter, map.level) }, name,
      ...[`${side} px`, moved, number(step?.S), number(step?.Q), "", ""].map((textContent) => make("td", { textContent })));
    row.dataset.level = map.level;
    return row;
  });
  const table = make("table", {}, make("caption", { textContent: "The best path, level by level" }),
    make("thead", {}, make("tr", {}, ...header.map((textContent) => make("th", { scope: "col", textContent })))),
    make("tbody", { id: "levels" }, ...rows));
  const words = [];
  if (!path.length) words.push("No path through the levels reaches this point.");
  else words.push(`The scores of the path add up to ${path[0].Q.toFixed(4)}.`);
  if (second) words.push(`Second-best peak (◇): (${centre(...second.q)}), ${second.Q.toFixed(4)}, ${((100 * second.Q) / path[0].Q).toFixed(1)} % of the best.`);
  return make("div", { className: "numbers" }, make("div", { className: "scroll" }, table), make("p", { id: "peaks", textContent: words.join(" ") }));
}

// What changes with the level and the cursor.
function refresh(inspection) {
  if (!inspection) return;
  for (const button of byId("inspector").querySelectorAll(".map")) {
    const pressed = button.dataset.letter === state.letter && Number(button.dataset.level) === state.level;
    button.setAttribute("aria-pressed", pressed);
  }
  for (const row of byId("levels").rows) {
    const level = Number(row.dataset.level);
    row.classList.toggle("chosen", level === state.level);
    row.cells[5].textContent = state.cursor ? number(scoreAt(inspection, "S", level, state.cursor)) : "";
    row.cells[6].textContent = state.cursor ? number(scoreAt(inspection, "Q", level, state.cursor)) : "";
  }
}
