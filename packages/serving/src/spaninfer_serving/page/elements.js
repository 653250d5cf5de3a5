// Elements of the page: found by id, made in one call.

export const $ = (id) => document.getElementById(id);

export function make(tag, fields = {}, ...children) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...children);
  return made;
}

export function button(label, act) {
  const made = make("button", { type: "button", textContent: label });
  made.addEventListener("click", () => act(made));
  return made;
}
