// Starts the page: from the server, or from the data inside an exported page.

import { byId, clearError, showError } from "./dom.js";
import { setUpDownloads } from "./downloads.js";
import { EmbeddedSource } from "./embedded.js";
import { setUpInspector } from "./inspector.js";
import { setUpKeyboard } from "./keyboard.js";
import { read, setUpLink } from "./link.js";
import { setUpPanels } from "./panels.js";
import { loadImages, openKnown, setUpPictures } from "./pictures.js";
import { select } from "./points.js";
import { setUpReadout } from "./readout.js";
import { runAll, setCompare, setUpRunner } from "./runner.js";
import { LiveSource } from "./source.js";
import { listen, state, update } from "./store.js";
import { setUpTheme } from "./theme.js";
import { VIEWS, setMix, setUpViews } from "./views.js";
import { fit } from "./viewport.js";

async function start() {
  const embedded = byId("embedded");
  update({ source: embedded ? new EmbeddedSource(JSON.parse(embedded.textContent)) : new LiveSource() });
  setUpTheme();
  setUpPanels((point) => select(point, state.level, state.letter));
  setUpReadout();
  setUpInspector();
  setUpViews();
  setUpKeyboard();
  setUpDownloads();
  byId("message-close").onclick = clearError;
  listen(() => {
    byId("welcome").hidden = Boolean(state.pair);
    byId("work").hidden = !state.pair;
  });
  await (embedded ? startEmbedded() : startLive());
  setUpLink();
  document.documentElement.dataset.ready = "yes"; // for tests: the page has settled
}

async function startEmbedded() {
  document.body.classList.add("embedded");
  await loadImages(state.source.data.pair);
  update({ results: [await state.source.result(), null] });
  await restore(read());
}

async function startLive() {
  const about = await state.source.about();
  update({ about });
  setUpRunner(about);
  setUpPictures(openPair);
  const wanted = read();
  const settings = wanted.settings[0] ? wanted.settings : about.choices;
  setCompare(Boolean(settings[1]), settings);
  const id = wanted.pair ?? about.given;
  if (!id) return;
  byId("max-size").value = id.split("@")[1] ?? "";
  try {
    await openKnown(id);
    await restore(wanted);
  } catch (error) {
    showError(error); // a link to pictures that are gone: others can be opened
  }
}

// Show a new pair and match it.
async function openPair(pair) {
  fit();
  update({ results: [null, null], selected: null, hover: null, inspections: [null, null] });
  await loadImages(pair);
  await runAll();
}

async function restore(wanted) {
  if (VIEWS.some(([view]) => view === wanted.view)) update({ view: wanted.view });
  if (["opacity", "slider", "blink"].includes(wanted.mix)) {
    setMix(wanted.mix);
    if (wanted.amount >= 0 && wanted.amount <= 1) update({ amount: wanted.amount });
  }
  if (wanted.least > 0 && wanted.least < 1) update({ least: wanted.least });
  if (wanted.zoom) update(wanted.zoom);
  if (!wanted.point) return;
  if (state.compare && wanted.point.side === 1) update({ inspected: 1 });
  await select(wanted.point, wanted.point.level, wanted.point.letter);
}

start().catch((error) => {
  showError(error);
  document.documentElement.dataset.ready = "yes";
});
