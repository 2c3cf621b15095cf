// Opening pictures: two slots to drop files on or to choose them with, the sample, and swapping.

import { byId, clearError, showError } from "./dom.js";
import { state, update } from "./store.js";

const slots = [null, null]; // what the server says about each upload
let opened = async () => {};

export function setUpPictures(whenOpened) {
  opened = whenOpened;
  for (const which of [0, 1]) {
    const slot = byId(`slot-${which}`);
    byId(`file-${which}`).addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) take([[which, file]]);
      event.target.value = "";
    });
    for (const type of ["dragover", "dragleave", "drop"]) {
      slot.addEventListener(type, () => slot.classList.toggle("over", type === "dragover"));
    }
  }
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", dropped);
  byId("sample").onclick = useSample;
  byId("welcome-sample").onclick = useSample;
  byId("swap").onclick = () => {
    slots.reverse();
    open();
  };
}

function dropped(event) {
  event.preventDefault();
  const files = [...event.dataTransfer.files];
  if (!files.length) return;
  const slot = event.target.closest?.(".slot");
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
      if (file.size > state.about.largest_upload) {
        throw new Error(`“${file.name}” is larger than ${Math.round(state.about.largest_upload / 2 ** 20)} MB: choose a smaller file.`);
      }
      slots[which] = await state.source.upload(file);
    } catch (error) {
      showError(error);
    }
    showNames();
  }
  if (slots[0] && slots[1]) await open();
}

async function open() {
  try {
    await opened(await state.source.openPair(slots[0].id, slots[1].id));
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
  [0, 1].forEach((which) => {
    byId(`slot-name-${which}`).textContent = pair.names[which];
  });
  byId("swap").disabled = true;
}

function showNames() {
  [0, 1].forEach((which) => {
    byId(`slot-name-${which}`).textContent = slots[which]?.name ?? "Drop or choose";
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
