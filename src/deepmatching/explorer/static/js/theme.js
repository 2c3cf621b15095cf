// Light or dark: as the system, or as the reader chose for this tab.

import { byId } from "./dom.js";

const WORDS = { auto: "Auto", light: "Light", dark: "Dark" };
const NEXT = { auto: "light", light: "dark", dark: "auto" };

export function setUpTheme() {
  let theme = stored() ?? "auto";
  const show = () => {
    document.documentElement.dataset.theme = theme;
    byId("theme-name").textContent = WORDS[theme];
    byId("theme").setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system" : theme}`);
  };
  byId("theme").onclick = () => {
    theme = NEXT[theme];
    try {
      localStorage.setItem("theme", theme);
    } catch { /* a page from disk may have no storage */ }
    show();
  };
  show();
}

function stored() {
  try {
    const theme = localStorage.getItem("theme");
    return theme in WORDS ? theme : null;
  } catch {
    return null;
  }
}
