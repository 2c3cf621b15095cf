// Elements of the page by id, new elements, and messages to the user.

export const byId = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
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

// A group of radio buttons that look like tabs.
export function fillTabs(container, items, chosen, choose) {
  container.replaceChildren(...items.map(({ value, label, title = "", disabled = false }) => {
    const input = make("input", { type: "radio", name: container.id, value, disabled, checked: value === chosen });
    input.addEventListener("change", () => choose(value));
    const text = make("label", { title }, input, make("span", { textContent: label }));
    if (disabled) text.classList.add("off");
    return text;
  }));
}
