// The view in the address: whoever opens the link sees the same.

import { listen, state } from "./store.js";

const text = ({ model, radius, levels, search }) => [model, radius ?? "auto", levels ?? "auto", ...(search ? ["search"] : [])].join(",");
const number = (part) => (part === "auto" ? null : part === "full" ? part : Number(part));

function settingsOf(value) {
  const parts = value?.split(",") ?? [];
  if (parts.length < 3) return null;
  const search = parts.at(-1) === "search";
  if (search) parts.pop();
  const levels = parts.pop();
  const radius = parts.pop();
  return { model: parts.join(","), radius: number(radius), levels: number(levels), search };
}

export function written() {
  const values = new URLSearchParams();
  if (state.source.live && state.pair) values.set("pair", state.pair.id);
  if (state.source.live && state.settings[0]) values.set("a", text(state.settings[0]));
  if (state.source.live && state.compare && state.settings[1]) values.set("b", text(state.settings[1]));
  values.set("view", state.view);
  if (state.mix !== "opacity" || state.amount !== 1) values.set("mix", `${state.mix},${state.amount.toFixed(2)}`);
  if (state.least) values.set("least", state.least.toFixed(2));
  if (state.zoom !== 1) values.set("zoom", [state.zoom, ...state.centre].map((value) => value.toFixed(4)).join(","));
  if (state.selected) values.set("point", [state.selected.row, state.selected.column, state.level, state.letter, state.inspected].join(","));
  return values.toString().replaceAll("%2C", ",");
}

export function read() {
  const values = new URLSearchParams(location.hash.slice(1));
  const [mix, amount] = values.get("mix")?.split(",") ?? [];
  const [zoom, x, y] = values.get("zoom")?.split(",").map(Number) ?? [];
  const point = values.get("point")?.split(",");
  return {
    pair: values.get("pair"),
    settings: [settingsOf(values.get("a")), settingsOf(values.get("b"))],
    view: values.get("view"),
    mix,
    amount: Number(amount),
    least: Number(values.get("least")),
    zoom: zoom >= 1 && [x, y].every(Number.isFinite) ? { zoom, centre: [x, y] } : null,
    point: point?.length >= 4 ? { row: Number(point[0]), column: Number(point[1]), level: Number(point[2]), letter: point[3] === "S" ? "S" : "Q", side: Number(point[4]) || 0 } : null,
  };
}

export function setUpLink() {
  let before = "";
  listen(() => {
    if (!state.pair || state.busy) return;
    const now = written();
    if (now !== before) history.replaceState(null, "", `#${now}`);
    before = now;
  });
}
