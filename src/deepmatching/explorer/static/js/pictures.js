// Opening pictures and their masks: slots to drop files on or to choose them with, the sample, and swapping.

import { byId, clearError, shortened, showError } from "./dom.js";
import { listen, state, update } from "./store.js";

const slots = [null, null]; // what the server says about each upload
let opened = async () => {};

export function setUpPictures(whenOpened) {
  opened = whenOpened;
  for (const which of [0, 1]) {
    setUpSlot("", which, (file) => take([[which, file]]));
    setUpSlot("mask-", which, (file) => takeMask(which, file));
  }
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", dropped);
  byId("sample").onclick = useSample;
  byId("welcome-sample").onclick = useSample;
  byId("swap").onclick = () => {
    slots.reverse();
    open(state.pair ? partsOf(state.pair.id).masks.reverse() : []);
  };
  byId("no-masks").onclick = () => useMasks([]).catch(showError);
  listen(() => {
    const names = state.pair?.mask_names ?? ["", ""];
    names.forEach((name, which) => {
      const element = byId(`mask-name-${which}`);
      element.textContent = name ? shortened(name, names[1 - which]) : "None";
      element.title = name;
    });
    byId("no-masks").disabled = !names.some(Boolean);
  });
}

function setUpSlot(kind, which, chosen) {
  const slot = byId(`${kind}slot-${which}`);
  byId(`${kind}file-${which}`).addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) chosen(file);
    event.target.value = "";
  });
  for (const type of ["dragover", "dragleave", "drop"]) {
    slot.addEventListener(type, () => slot.classList.toggle("over", type === "dragover"));
  }
}

// The id of a pair is ID, then +MASK0.MASK1 if it has masks, and @SIZE at another size.
function partsOf(id) {
  const [whole, size] = id.split("@");
  const [bare, masks] = whole.split("+");
  return { bare, masks: masks?.split(".") ?? ["", ""], size };
}

export function idWith(id, changes) {
  const { bare, masks, size } = { ...partsOf(id), ...changes };
  return `${bare}${masks.some(Boolean) ? `+${masks.join(".")}` : ""}${size ? `@${size}` : ""}`;
}

function dropped(event) {
  event.preventDefault();
  const files = [...event.dataTransfer.files];
  if (!files.length) return;
  const slot = event.target.closest?.(".slot");
  if (slot?.classList.contains("mask")) return takeMask(Number(slot.id.at(-1)), files[0]);
  if (slot && files.length === 1) return take([[Number(slot.id.at(-1)), files[0]]]);
  if (files.length === 1) return take([[slots[0] && !slots[1] ? 1 : 0, files[0]]]);
  return take([[0, files[0]], [1, files[1]]]);
}

async function useSample() {
  slots.fill(null);
  await openKnown(Object.keys(state.about.samples)[0]).catch(showError);
}

// Check the files at the server, one after the other; open the pair when there are two.
async function take(files) {
  clearError();
  for (const [which, file] of files) {
    const name = byId(`slot-name-${which}`);
    name.textContent = "Checking…";
    try {
      slots[which] = await sent(file);
    } catch (error) {
      showError(error);
    }
    showNames();
  }
  if (slots[0] && slots[1]) await open();
}

async function sent(file) {
  if (file.size > state.about.largest_upload) {
    throw new Error(`“${file.name}” is larger than ${Math.round(state.about.largest_upload / 2 ** 20)} MB: choose a smaller file.`);
  }
  return state.source.upload(file);
}

async function takeMask(which, file) {
  clearError();
  try {
    if (!state.pair) throw new Error("Open two pictures before a mask of them.");
    const { id } = await sent(file);
    await useMasks(partsOf(state.pair.id).masks.map((old, n) => (n === which ? id : old)));
  } catch (error) {
    showError(error);
  }
}

async function useMasks(masks) {
  await opened(await state.source.pair(idWith(state.pair.id, { masks })));
}

async function open(masks = []) {
  try {
    const pair = await state.source.openPair(slots[0].id, slots[1].id);
    await opened(masks.some(Boolean) ? await state.source.pair(idWith(pair.id, { masks })) : pair);
    showNames();
  } catch (error) {
    showError(error);
  }
}

// A pair that the server has: a sample, that of the command line, or one of a link.
export async function openKnown(id) {
  clearError();
  const pair = await state.source.pair(id);
  await opened(pair);
  showNames(pair.names);
  byId("swap").disabled = true;
}

function showNames(names = slots.map((slot) => slot?.name)) {
  names.forEach((name, which) => {
    const element = byId(`slot-name-${which}`);
    element.textContent = name ? shortened(name, names[1 - which]) : "Drop or choose";
    element.title = name ?? "";
  });
  byId("swap").disabled = !(slots[0] && slots[1]);
}

export async function loadImages(pair) {
  const load = async (which) => {
    const image = new Image();
    image.src = state.source.imageUrl(pair, which);
    await image.decode().catch(() => {
      throw new Error("A picture could not be loaded from the server.");
    });
    return image;
  };
  const images = await Promise.all([load(0), load(1)]);
  byId("panels").style.setProperty("--aspect", `${images[0].width} / ${images[0].height}`);
  update({ pair, images });
}
