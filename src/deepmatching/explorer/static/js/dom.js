// Elements of the page by id, new elements, and messages to the user.

export const byId = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A long name in `most` letters, cut in the middle or, if it differs from the other name there, beside that.
export function shortened(name, other = "", most = 22) {
  if (name.length <= most) return name;
  let first = 0;
  while (first < name.length && name[first] === other[first]) first++;
  let after = 0; // letters that end both names
  while (after < name.length - first && name.at(-1 - after) === other.at(-1 - after)) after++;
  const gap = name.length - most + 1;
  const last = name.length - after;
  const keeps = (start) => start > 0 && start + gap < name.length && (start + gap <= first || start >= last);
  const start = [Math.floor(most / 2), first - gap, last].find(keeps) ?? Math.floor(most / 2);
  return `${name.slice(0, start)}…${name.slice(start + gap)}`;
}

// For screen readers only.
export function announce(text) {
  byId("status").textContent = text;
}

export function showError(error) {
  byId("message-text").textContent = error instanceof Error ? error.message : String(error);
  byId("message").hidden = false;
}

export function clearError() {
  byId("message").hidden = true;
}

// A group of radio buttons that look like tabs. Those that are there already are changed, so that the focus stays.
export function fillTabs(container, items, chosen, choose) {
  const there = [...container.querySelectorAll("input")];
  const same = there.length === items.length && there.every((input, n) => input.value === String(items[n].value));
  if (!same) container.replaceChildren(...items.map((item) => tab(container.id, item)));
  [...container.children].forEach((label, n) => {
    const { value, title = "", disabled = false } = items[n];
    const input = label.querySelector("input");
    Object.assign(input, { disabled, checked: value === chosen, onchange: () => choose(value) });
    label.title = title;
    label.classList.toggle("off", disabled);
  });
}

function tab(name, { value, label }) {
  return make("label", {}, make("input", { type: "radio", name, value }), make("span", { textContent: label }));
}

// Let the browser save a blob as a file.
export function save(blob, name) {
  const anchor = make("a", { href: URL.createObjectURL(blob), download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
}
