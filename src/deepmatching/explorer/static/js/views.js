// Which view is shown, how it is compared with the first image, zoom, and the legend.

import { byId, fillTabs, make } from "./dom.js";
import { VIRIDIS_LUT, wheel } from "./colors.js";
import { colourRange } from "./layers.js";
import { listen, state, update } from "./store.js";
import { fit, zoomBy } from "./viewport.js";

export const VIEWS = [
  ["pictures", "Pictures"], ["matches", "Matches"], ["displacement", "Displacement"], ["confidence", "Confidence"],
  ["flow", "Flow"], ["edges", "Edges"], ["occlusion", "Occlusion"], ["warped", "Warped"],
];
const MIXES = [["opacity", "Overlay"], ["slider", "Slider"], ["blink", "Blink"]];
const BLINK_TIME = 600; // ms
let timer = 0;

// Why a view cannot be shown, or "".
export function missing(view) {
  const result = state.results[0];
  if (!result) return view === "pictures" ? "" : "Run the matcher first.";
  if (["flow", "warped"].includes(view) && !result.layers.flow) return result.facts.no_flow;
  if (view === "confidence" && !result.layers.confidence && !result.grid.confidence) return result.facts.no_flow;
  if (view === "occlusion" && !result.layers.occlusion) return result.facts.no_flow || `${result.facts.settings.model} does not judge its matches.`;
  return "";
}

export function setMix(mix) {
  clearInterval(timer);
  const amount = mix === "slider" ? 0.5 : 1;
  update({ mix, amount, blinking: true });
  if (mix === "blink") timer = setInterval(() => update({ blinking: !state.blinking }), BLINK_TIME);
}

export function setUpViews() {
  byId("mix").addEventListener("input", (event) => update({ amount: event.target.value / 100 }));
  byId("least").addEventListener("input", (event) => update({ least: event.target.value / 100 }));
  byId("zoom-in").onclick = () => zoomBy(1.5);
  byId("zoom-out").onclick = () => zoomBy(1 / 1.5);
  byId("zoom-fit").onclick = fit;
  let seen = [];
  listen(() => {
    const now = [state.view, state.mix, ...state.results, state.pair];
    if (now.some((item, n) => item !== seen[n])) rebuild();
    seen = now;
    byId("mix").value = Math.round(100 * state.amount);
    byId("least").value = Math.round(100 * state.least);
    byId("least-value").textContent = state.least ? `≥ ${Math.round(100 * state.least)} %` : "all";
    byId("zoom-value").textContent = `${Math.round(100 * state.zoom)} %`;
  });
}

function rebuild() {
  const items = VIEWS.map(([value, label], n) => {
    const reason = missing(value);
    return { value, label, title: reason || `${label} (${n + 1})`, disabled: Boolean(reason) };
  });
  fillTabs(byId("views"), items, state.view, (view) => update({ view }));
  const words = MIXES.map(([value, label]) => ({ value, label, title: state.view === "pictures" ? `${label}: first and second image` : `${label}: first image and view` }));
  fillTabs(byId("mixes"), words, state.mix, setMix);
  byId("mix-label").textContent = state.mix === "slider" ? "Split" : "Opacity";
  byId("mix").disabled = state.mix === "blink";
  const judged = state.results.some((result) => result?.facts.judged);
  byId("least").disabled = state.results[0] && !judged;
  byId("least-box").title = judged ? "Hide the matches that are less confident" : "This model does not judge its matches";
  byId("legend").replaceChildren(...legend());
}

function bar(paint, words) {
  const canvas = make("canvas", { width: 120, height: 10 });
  const context = canvas.getContext("2d");
  for (let x = 0; x < 120; x++) {
    context.fillStyle = `rgb(${paint(x / 119).join(" ")})`;
    context.fillRect(x, 0, 1, 10);
  }
  return [make("span", { textContent: words[0] }), canvas, make("span", { textContent: words[1] })];
}

function legend() {
  const result = state.results[0];
  if (!result) return [];
  const lut = (value) => Array.from(VIRIDIS_LUT.subarray(3 * Math.round(255 * value), 3 * Math.round(255 * value) + 3));
  if (state.view === "confidence") return bar(lut, ["wrong", "right"]);
  if (state.view === "occlusion") return bar((p) => [150 + 105 * p, 150 - 28 * p, 150 - 130 * p], ["visible", "hidden"]);
  if (state.view === "edges") return bar((p) => [255 - 255 * Math.sqrt(p), 255 - 255 * Math.sqrt(p), 255 - 255 * Math.sqrt(p)], ["none", "edge"]);
  if (state.view === "matches") return [make("span", { textContent: "Equal colours match" + (result.facts.judged ? "; pale: uncertain" : "") })];
  if (state.view === "displacement" || state.view === "flow") {
    const most = colourRange(result);
    const canvas = make("canvas", { width: 36, height: 36, className: "disc" });
    const context = canvas.getContext("2d");
    for (let y = 0; y < 36; y++) {
      for (let x = 0; x < 36; x++) {
        const [u, v] = [((x - 17.5) / 17.5) * most, ((y - 17.5) / 17.5) * most];
        context.fillStyle = `rgb(${wheel(u, v, most).join(" ")})`;
        context.fillRect(x, y, 1, 1);
      }
    }
    return [canvas, make("span", { textContent: `full colour from ${most} px` })];
  }
  return [];
}
