// Calls of functions as cards: what the model asks for, and the results that it is given.

import { calculate } from "/page/calculator.js";
import { make } from "/page/elements.js";
import { jsonState } from "/page/json_state.js";

const STATES = { valid: "", begun: "…", broken: "✗ no JSON" };

export const isWhole = ({ arguments: text }) => jsonState(text || "{}") === "valid";

// Adds what an event brings to the calls so far.
export function extend(calls, deltas) {
  for (const { index, id, function: part } of deltas) {
    const call = (calls[index] ??= { id: "", name: "", arguments: "" });
    call.id = id ?? call.id;
    call.name = part.name ?? call.name;
    call.arguments += part.arguments ?? "";
  }
}

// The result of a call that the page itself computes; "" of any other.
function computed({ name, arguments: text }) {
  if (name !== "calculator") return "";
  try {
    const given = JSON.parse(text);
    return typeof given.expression === "string" ? calculate(given.expression) : "";
  } catch (error) {
    return `error: ${error.message}`;
  }
}

function card() {
  const head = make("div", { className: "head" }, make("code"), make("span"));
  const made = make("div", { className: "call" }, head, make("pre", {}, make("code")));
  made.setAttribute("role", "group");
  return made;
}

// JSON in a line where it is short.
function laidOut(text) {
  const lines = JSON.stringify(JSON.parse(text || "{}"), null, 2);
  const line = lines.replace(/\n\s*/g, " ");
  return line.length > 60 ? lines : line;
}

function paint(made, { name, arguments: text }) {
  const state = jsonState(text || "{}");
  made.setAttribute("aria-label", `Call of ${name}`);
  made.querySelector(".head code").textContent = name;
  made.querySelector(".head span").textContent = STATES[state];
  made.querySelector("pre code").textContent = state === "valid" ? laidOut(text) : text;
}

// The form with the cards of a message; made where it has none.
function formOf(item) {
  const found = item.querySelector(":scope > .calls");
  return found ?? item.insertBefore(make("form", { className: "calls" }), item.querySelector(":scope > .note"));
}

// Shows calls while they come, and as they are.
export function showCalls(item, calls) {
  if (!calls.length) return;
  const form = formOf(item);
  while (form.children.length > calls.length) form.lastChild.remove();
  calls.forEach((call, index) => paint(form.children[index] ?? form.appendChild(card()), call));
}

// A field for the result of a call; Enter sends, as it does below.
function field(call, changed) {
  call.result ??= computed(call);
  const made = make("textarea", { rows: 1, required: true, value: call.result, placeholder: `What ${call.name} returns` });
  made.setAttribute("aria-label", `Result of ${call.name}`);
  made.addEventListener("input", () => {
    call.result = made.value;
    changed();
  });
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    made.form.requestSubmit();
  });
  return made;
}

// Asks for the results of calls; `changed` hears of each, `send` that all are there.
export function askResults(item, calls, { changed, send }) {
  const form = formOf(item);
  form.replaceChildren();
  showCalls(item, calls);
  calls.forEach((call, index) => form.children[index].append(make("label", { className: "result" }, "Result", field(call, changed))));
  form.append(make("button", { type: "submit", textContent: calls.length === 1 ? "Send result" : "Send results" }));
  form.onsubmit = (event) => {
    event.preventDefault();
    send();
  };
}

// Shows calls with the results that were given; they cannot be changed any more.
export function closeResults(item, calls) {
  const form = formOf(item);
  form.replaceChildren();
  showCalls(item, calls);
  calls.forEach((call, index) => form.children[index].append(
    make("div", { className: "result" }, "Result", make("pre", {}, make("code", { textContent: call.result })))));
}
