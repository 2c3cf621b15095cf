// Choosing a point: its maps are fetched for all settings that are shown.

import { showError } from "./dom.js";
import { announcePoint } from "./readout.js";
import { sides, state, update } from "./store.js";

let latest = 0;

export async function select(point, level, letter) {
  if (!state.results[0]) return;
  const mine = ++latest;
  const chosen = state.source.nearest(point.row, point.column) ?? point;
  try {
    const inspections = [null, null];
    for (const side of sides()) {
      const result = state.results[side];
      if (!result || result.facts.no_maps) continue;
      const { grid: [rows, columns] } = result.facts.geometry;
      if (chosen.row >= rows || chosen.column >= columns) continue; // another size of patches
      inspections[side] = await state.source.point(result.id, chosen.row, chosen.column);
      if (mine !== latest) return;
    }
    const inspected = inspections[state.inspected] ? state.inspected : Math.max(0, inspections.findIndex(Boolean));
    const top = inspections[inspected]?.meta.maps.length ?? 1;
    update({ selected: chosen, hover: chosen, inspected, inspections, level: Math.min(level ?? 0, top - 1), letter: letter ?? "Q" });
    announcePoint(chosen);
  } catch (error) {
    if (mine === latest) showError(error);
  }
}
