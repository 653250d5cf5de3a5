// The functions that a model may call, as the user defines them in JSON, and which it has to call.

import { make } from "/page/elements.js";
import { jsonState } from "/page/json_state.js";

const NAME = /^[\p{L}\p{N}_.-]{1,128}$/u; // as the server's

const of = (name, description, parameters) => ({
  name,
  description,
  parameters: {
    type: "object",
    properties: Object.fromEntries(Object.entries(parameters).map(([key, text]) => [key, { type: "string", description: text }])),
    required: Object.keys(parameters),
  },
});

export const SAMPLES = {
  get_weather: of("get_weather", "Say what the weather is like in a place.", { place: "A city, such as Oslo" }),
  calculator: of("calculator", "Compute an arithmetic expression.", {
    expression: "Numbers, + - * / % ^ and parentheses, such as (2 + 3) * 4",
  }),
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// A definition with or without OpenAI's envelope around it.
const unwrapped = (given) => (isObject(given) && given.type === "function" && isObject(given.function) ? given.function : given);

function problemOf(definition, number, names) {
  const place = `function ${number + 1}`;
  if (!isObject(definition)) return `${place} is no JSON object`;
  const { name, parameters, description } = definition;
  if (typeof name !== "string") return `${place} has no name`;
  if (!NAME.test(name)) return `the name ${JSON.stringify(name)} has other than letters, digits, _ . -`;
  if (names.indexOf(name) !== number) return `two functions are named ${name}`;
  if (description !== undefined && typeof description !== "string") return `the description of ${name} is no text`;
  if (parameters !== undefined && !isObject(parameters)) return `the parameters of ${name} are no JSON schema`;
  return "";
}

// Definitions of a text, { functions, problem }: a problem is a sentence, or "…" while one is typed.
export function read(text) {
  if (!text.trim()) return { functions: [], problem: "" };
  const state = jsonState(text);
  if (state !== "valid") return { functions: [], problem: state === "begun" ? "…" : "no JSON" };
  const given = JSON.parse(text);
  const functions = (Array.isArray(given) ? given : [given]).map(unwrapped);
  const names = functions.map((each) => each?.name);
  const problem = functions.map((each, number) => problemOf(each, number, names)).find(Boolean) ?? "";
  return { functions: problem ? [] : functions, problem };
}

const CHOICES = { auto: "the model decides", none: "no call", required: "at least one call" };

// A field for definitions with a live mark, buttons that add samples, and what has to be called.
export class ToolField {
  changed = () => {}; // hears of other tools

  constructor(part) {
    this.text = part.querySelector("textarea");
    this.mark = part.querySelector("output");
    this.choice = part.querySelector("select");
    this.text.addEventListener("input", () => this.look());
    this.text.addEventListener("change", () => this.changed());
    this.choice.addEventListener("change", () => this.changed());
    for (const offer of part.querySelectorAll("button")) offer.addEventListener("click", () => this.add(SAMPLES[offer.value]));
    this.look();
  }

  // What is wrong with the definitions, as a sentence; "" if nothing is.
  get problem() {
    const { problem } = read(this.text.value);
    return problem === "…" ? "the JSON is not whole yet" : problem;
  }

  get kept() {
    return this.text.value.trim() ? { text: this.text.value, choice: this.choice.value } : null;
  }

  set kept(kept) {
    this.text.value = kept?.text ?? "";
    this.look();
    if (kept) this.choose(kept.choice);
  }

  // Fields of a request.
  asked() {
    const { functions } = read(this.text.value);
    if (!functions.length) return {};
    const { value } = this.choice;
    const named = functions.some(({ name }) => `= ${name}` === value);
    return {
      tools: functions.map((definition) => ({ type: "function", function: definition })),
      ...(value !== "auto" && { tool_choice: named ? { type: "function", function: { name: value.slice(2) } } : value }),
    };
  }

  add(definition) {
    const { functions, problem } = read(this.text.value);
    if (problem) return this.look();
    const others = functions.filter(({ name }) => name !== definition.name);
    this.text.value = JSON.stringify([...others, definition], null, 2);
    this.look();
    this.changed();
  }

  look() {
    const { functions, problem } = read(this.text.value);
    const count = `✓ ${functions.length} function${functions.length === 1 ? "" : "s"}`;
    this.mark.value = problem || (functions.length ? count : "");
    this.mark.classList.toggle("bad", Boolean(problem) && problem !== "…");
    this.text.setAttribute("aria-invalid", String(Boolean(problem)));
    if (problem) return; // what is being typed changes no choice
    const before = this.choice.value;
    this.choice.replaceChildren(
      ...Object.entries(CHOICES).map(([value, says]) => make("option", { value, textContent: `${value}: ${says}` })),
      ...functions.map(({ name }) => make("option", { value: `= ${name}`, textContent: `${name}: this call` })),
    );
    this.choice.disabled = functions.length === 0;
    this.choose(before);
  }

  choose(value) {
    this.choice.value = value;
    if (this.choice.selectedIndex < 0) this.choice.value = "auto";
  }
}
