// The settings, and running the matcher with them.

import { announce, byId, clearError, make, showError } from "./dom.js";
import { idWith, loadImages } from "./pictures.js";
import { settingsText } from "./readout.js";
import { listen, sides, state, update } from "./store.js";

const STAGES = {
  model: "Loading the model", descriptors: "Describing the pictures", matches: "Matching",
  edges: "Detecting edges", flow: "Computing the flow",
};
let current = []; // runs of this tab that are not finished
let attempt = 0;

export function setUpRunner(about) {
  [0, 1].forEach((side) => fillChoice(side, about));
  Object.assign(byId("max-size"), { max: about.max_size, placeholder: about.max_size });
  byId("compare").addEventListener("change", (event) => setCompare(event.target.checked));
  byId("settings").addEventListener("submit", (event) => {
    event.preventDefault();
    runAll();
  });
  byId("cancel").onclick = cancel;
  listen(() => {
    byId("run").disabled = !state.pair || state.busy;
    byId("run").textContent = state.compare ? "Run both" : "Run";
    byId("cancel").hidden = byId("progress-box").hidden = !state.busy;
  });
}

function fillChoice(side, about) {
  const start = about.choices[side] ?? about.choices[0];
  const models = make("select", { id: `model-${side}` }, ...about.models.map((name) => make("option", { value: name, textContent: name })));
  const radius = make("input", { id: `radius-${side}`, type: "number", min: 2, step: 2, inputMode: "numeric", placeholder: "auto" });
  const unlimited = make("input", { id: `full-${side}`, type: "checkbox" });
  const levels = make("input", { id: `levels-${side}`, type: "number", min: 0, max: 9, placeholder: "auto" });
  const search = make("input", { id: `search-${side}`, type: "checkbox" });
  unlimited.addEventListener("change", () => (radius.disabled = unlimited.checked));
  byId(`settings-${side}`).append(
    make("label", {}, make("span", { textContent: "Model" }), models),
    make("label", {}, make("span", { textContent: "Radius, px" }), radius),
    make("div", { className: "row" },
      make("label", { className: "check" }, unlimited, " No limit"),
      make("label", { className: "check", title: "Find how the second picture is turned and zoomed" }, search, " Search")),
    make("label", {}, make("span", { textContent: "Levels" }), levels));
  show(side, start);
}

function show(side, { model, radius, levels, search }) {
  byId(`model-${side}`).value = model;
  byId(`full-${side}`).checked = byId(`radius-${side}`).disabled = radius === "full";
  byId(`radius-${side}`).value = radius === "full" ? "" : radius ?? "";
  byId(`levels-${side}`).value = levels ?? "";
  byId(`search-${side}`).checked = search;
}

export function chosen(side) {
  const [radius, levels] = ["radius", "levels"].map((name) => byId(`${name}-${side}`).value).map((text) => (text === "" ? null : Number(text)));
  return {
    model: byId(`model-${side}`).value,
    radius: byId(`full-${side}`).checked ? "full" : radius,
    levels,
    search: byId(`search-${side}`).checked,
  };
}

// Open the pair again if it is to be matched at another size.
async function resize() {
  const id = idWith(state.pair.id, { size: byId("max-size").value });
  if (id === state.pair.id) return;
  const pair = await state.source.pair(id);
  update({ results: [null, null], selected: null, hover: null, inspections: [null, null] });
  await loadImages(pair);
}

export function setCompare(compare, settings) {
  byId("compare").checked = compare;
  byId("settings-1").hidden = byId("legend-0").hidden = !compare;
  if (settings) settings.forEach((values, side) => values && show(side, values));
  update({ compare, inspected: 0 });
}

// Run what is not there yet. A newer attempt of this tab replaces an older one.
export async function runAll() {
  if (!state.pair) return false;
  const mine = ++attempt;
  clearError();
  update({ busy: true });
  try {
    await resize();
    if (mine !== attempt) return false;
    for (const side of sides()) {
      const settings = chosen(side);
      const started = await state.source.start(state.pair.id, settings);
      current = [started.id];
      const result = await state.source.finished(started, (run) => mine === attempt && watch(run, side));
      if (mine !== attempt || !result) return false;
      const [results, all] = [[...state.results], [...state.settings]];
      [results[side], all[side]] = [result, settings];
      update({ results, settings: all, selected: null, inspections: [null, null] });
    }
    announce(`Done: ${sides().map((side) => `${state.results[side].facts.matches} matches`).join(" and ")}.`);
    return true;
  } catch (error) {
    if (mine === attempt) showError(error);
    return false;
  } finally {
    if (mine === attempt) {
      current = [];
      update({ busy: false });
    }
  }
}

function watch(run, side) {
  const bar = byId("progress");
  const text = run.state === "waiting" ? "Waiting for another run" : STAGES[run.stage] ?? "Starting";
  bar.value = run.state === "done" ? 1 : run.fraction + 0.5 * run.share;
  const words = `${state.compare ? `${"AB"[side]}, ${settingsText(run.settings)}: ` : ""}${text}… ${run.seconds.toFixed(1)} s`;
  if (byId("progress-text").textContent !== words) byId("progress-text").textContent = words;
}

async function cancel() {
  attempt++;
  const runs = current;
  current = [];
  update({ busy: false });
  announce("Cancelled.");
  await Promise.all(runs.map((id) => state.source.cancel(id))).catch(showError);
}
