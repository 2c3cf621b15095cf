// Words and numbers: captions, the line under the pictures, the facts of the results.

import { announce, byId, make, shortened } from "./dom.js";
import { shownCount } from "./layers.js";
import { matchOf, pointPlace } from "./marks.js";
import { listen, sides, state } from "./store.js";

const LETTERS = ["A", "B"];
export const centre = (x, y) => `${(x - 0.5).toFixed(1)}, ${(y - 0.5).toFixed(1)}`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;

export const settingsText = ({ model, radius, levels, search }) =>
  `${model}, ${radius === "full" ? "no radius" : radius === null ? "default radius" : `radius ${radius}`}${levels === null ? "" : `, levels ${levels}`}${search ? ", search" : ""}`;

// One sentence about the match of a point.
export function describe(result, point) {
  const place = pointPlace(result, point);
  const match = matchOf(result, point);
  if (!match.reached) return `(${centre(place.x, place.y)}) has no match${result.facts.no_maps ? "" : ": no path reaches it"}`;
  const [u, v] = [match.x - place.x, match.y - place.y];
  const parts = [
    `(${centre(place.x, place.y)}) → (${centre(match.x, match.y)})`,
    `moved ${signed(u)}, ${signed(v)} (${Math.hypot(u, v).toFixed(1)} px)`,
    `score ${match.score.toFixed(3)}${result.facts.searched ? "" : ` of ${result.facts.geometry.levels + 1}`}`,
  ];
  if (match.confidence !== undefined) parts.push(`confidence ${(100 * match.confidence).toFixed(0)} %`);
  if (match.hidden !== undefined) parts.push(`hidden ${(100 * match.hidden).toFixed(0)} %`);
  if (result.facts.searched) parts.push("found by the search");
  else parts.push(match.kept ? (match.verified ? "verified" : "kept for its confidence") : `not kept: ${state.pair.mask_names.some(Boolean) ? "its target is masked, or " : ""}another point claims its target`);
  return parts.join(" · ");
}

export function announcePoint(point) {
  if (state.results[0] && point) announce(`Point ${describe(state.results[0], point)}`);
}

function readout() {
  const point = state.hover ?? state.selected;
  const lines = sides().filter((side) => state.results[side] && point).map((side) => {
    const letter = make("b", { textContent: `${LETTERS[side]} `, className: `side-${side}` });
    return make("span", {}, ...(state.compare ? [letter] : []), describe(state.results[side], point));
  });
  const hint = !state.results[0] ? "" : state.results[0].facts.no_maps ? "Point at the first image." : "Point at the first image; click to open the score maps of a point.";
  byId("readout").replaceChildren(...(lines.length ? lines : [hint]));
}

function captions() {
  if (!state.pair) return;
  const [first, second] = state.pair.names.map((name, which, names) => shortened(name, names[1 - which], 32));
  const about = (side) => state.results[side] && state.compare ? `${LETTERS[side]}: ${settingsText(state.results[side].facts.settings)}` : "";
  byId("pair-name").textContent = `${first} → ${second}`;
  byId("caption-first").textContent = about(0) || `First image · ${first}`;
  byId("caption-other").textContent = about(1) || "B";
  const inspection = state.selected && state.inspections[state.inspected];
  byId("caption-second").textContent = `Second image · ${second}${inspection ? ` · ${state.letter}${"₀₁₂₃₄₅₆₇₈₉"[state.level]}` : ""}`;
}

// What is to be said about the results, in a box above the pictures.
function showNotes(id, found, notesOf) {
  const notes = found.flatMap((side) => notesOf(state.results[side].facts).map((note) => `${state.compare ? `${LETTERS[side]}: ` : ""}${note}`));
  byId(id).hidden = !notes.length;
  byId(id).replaceChildren(...notes.map((textContent) => make("p", { textContent })));
}

// How many matches there are and, if some are hidden, how many are shown.
function counted(result) {
  const { matches, geometry: { grid: [rows, columns] } } = result.facts;
  const some = state.least > 0 && result.facts.judged;
  return `${some ? `${shownCount(result)} shown, ` : ""}${matches} of ${rows * columns}`;
}

function facts() {
  const found = sides().filter((side) => state.results[side]);
  byId("facts").hidden = !found.length;
  showNotes("warning", found, ({ warning }) => (warning ? [warning] : []));
  showNotes("notes", found, ({ notes }) => notes);
  byId("facts-body").replaceChildren(...found.map((side) => {
    const about = state.results[side].facts;
    const total = Object.values(about.seconds).reduce((a, b) => a + b, 0);
    const rows = [
      ["Settings", settingsText(about.settings)],
      ["Matches", counted(state.results[side])],
      ["Motion", `${about.median.toFixed(1)} px median, ${about.largest.toFixed(1)} px largest`],
      ["Levels", `${about.geometry.levels}, patches of ${about.geometry.delta} to ${2 ** about.geometry.levels * about.geometry.delta} px`],
      ["Time", `${total.toFixed(2)} s`],
    ];
    const { originals, sizes } = state.pair;
    const reduced = sizes.map(([r, c], which) => `${c}×${r} of ${originals[which][1]}×${originals[which][0]}`);
    if (sizes.some(([r], which) => r !== originals[which][0])) rows.push(["Shown at", [...new Set(reduced)].join(", ")]);
    const masks = state.pair.mask_names.filter(Boolean);
    if (masks.length) rows.push(["Masks", masks.join(", ")]);
    if (about.no_flow) rows.push(["Flow", about.no_flow]);
    const list = make("dl", {}, ...rows.flatMap(([term, text]) => [make("dt", { textContent: term }), make("dd", { textContent: text })]));
    return make("div", { className: "fact" }, ...(state.compare ? [make("h3", { textContent: LETTERS[side], className: `side-${side}` })] : []), list);
  }), ...(state.pair?.credit ? [make("p", { className: "credit", textContent: state.pair.credit })] : []));
}

export function setUpReadout() {
  listen(readout);
  listen(captions);
  let seen = [];
  listen(() => {
    const now = [...state.results, state.compare, state.pair, state.least];
    if (now.some((item, n) => item !== seen[n])) facts();
    seen = now;
  });
}
