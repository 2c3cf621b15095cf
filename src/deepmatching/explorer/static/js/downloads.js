// Files to download, and the link to copy.

import { announce, byId, make, save, showError } from "./dom.js";
import { written } from "./link.js";
import { listen, sides, state } from "./store.js";

const FILES = [
  ["matches.txt", "Matches, text"], ["matches.npz", "Matches, NumPy"], ["matches.h5", "Matches, HDF5"],
  ["flow.flo", "Flow, .flo"], ["flow.png", "Flow, KITTI PNG"],
  ["matches-picture.png", "Picture of the matches"], ["displacement-picture.png", "Picture of the displacements"],
  ["flow-picture.png", "Picture of the flow"],
];

const PAGE = "Page for sharing, one HTML file";

export function setUpDownloads() {
  byId("copy-link").onclick = copyLink;
  const menu = byId("downloads");
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
    event.stopPropagation();
  });
  let seen = [];
  listen(() => {
    const now = [...state.results, state.compare, state.selected];
    if (now.some((item, n) => item !== seen[n])) fill();
    seen = now;
  });
}

function link(words, href, download = "") {
  return make("li", {}, make("a", { href, download, textContent: words }));
}

function fill() {
  byId("downloads").hidden = !state.results[0];
  const items = [];
  const picture = make("button", { type: "button", textContent: "This view, PNG", onclick: saveView });
  items.push(make("li", {}, picture));
  if (state.source.live) {
    for (const side of sides()) {
      const result = state.results[side];
      if (!result) continue;
      const base = `/api/runs/${result.id}`;
      if (state.compare) items.push(make("li", { className: "menu-title", textContent: "AB"[side] }));
      for (const [name, words] of FILES) {
        if (name.startsWith("flow") && !result.layers.flow) continue;
        items.push(link(words, `${base}/files/${name}`, name));
      }
      if (state.selected && !result.facts.no_maps) items.push(link("Picture of the score maps", `${base}/points/${state.selected.row}/${state.selected.column}/picture`));
      items.push(make("li", {}, make("button", { type: "button", textContent: PAGE, onclick: (event) => savePage(event.target, result.id) })));
    }
  }
  byId("download-list").replaceChildren(...items);
}

// The canvases side by side, as they are on the screen.
function saveView() {
  const panels = ["panel-first", ...(state.compare ? ["panel-other"] : []), "panel-second"].map(byId);
  const gap = 8;
  const canvas = make("canvas", {
    width: panels.reduce((sum, panel) => sum + panel.width + gap, -gap),
    height: Math.max(...panels.map((panel) => panel.height)),
  });
  const context = canvas.getContext("2d");
  let left = 0;
  for (const panel of panels) {
    context.drawImage(panel, left, 0);
    left += panel.width + gap;
  }
  canvas.toBlob((blob) => save(blob, `${state.view}.png`));
}

// It takes a while: the maps of many points are computed.
async function savePage(button, run) {
  button.disabled = true;
  button.textContent = "Preparing the page…";
  announce("Preparing the page for sharing.");
  try {
    save(await state.source.page(run), "explorer.html");
  } catch (error) {
    showError(error);
  } finally {
    button.disabled = false;
    button.textContent = PAGE;
  }
}

async function copyLink() {
  const address = `${location.href.split("#")[0]}#${written()}`;
  history.replaceState(null, "", address);
  try {
    await navigator.clipboard.writeText(address);
    byId("copy-link").textContent = "Copied";
    announce("The link to this view is copied.");
    setTimeout(() => (byId("copy-link").textContent = "Copy link"), 1500);
  } catch {
    showError("The browser does not allow copying: the link to this view is in the address bar.");
  }
}
