// The settings beside the conversation: fields of a request that the user has touched.

import { jsonState } from "/page/json_state.js";
import { ToolField } from "/page/tools.js";

const MARKS = { "": "", valid: "✓", begun: "…", broken: "no JSON" };

export class Settings {
  changed = () => {}; // hears of what belongs to the conversation: the system prompt, the tools

  constructor(panel) {
    this.panel = panel;
    this.defaults = {}; // the model's values, by parameter
    this.ranges = panel.querySelectorAll("input[type=range]");
    this.numbers = panel.querySelectorAll("input[type=number]");
    this.tools = new ToolField(panel.querySelector("#tools"));
    this.ranges.forEach((field) => {
      this.untouch(field);
      field.addEventListener("input", () => this.touch(field));
    });
    panel.querySelector("#reset").addEventListener("click", () => this.reset());
    this.field("schema").addEventListener("input", () => this.markSchema());
    this.field("system").addEventListener("change", () => this.changed());
    this.tools.changed = () => this.changed();
  }

  field(name) {
    return this.panel.querySelector(`[name=${name}]`);
  }

  get schema() {
    return this.field("schema").value.trim();
  }

  get system() {
    return this.field("system").value.trim();
  }

  // What belongs to the conversation.
  get kept() {
    return { tools: this.tools.kept, system: this.field("system").value };
  }

  set kept({ tools, system = "" }) { // without one: of an older page
    this.tools.kept = tools;
    this.field("system").value = system;
  }

  // Why nothing can be asked yet; "" where all is well.
  get problem() {
    if (this.schema && jsonState(this.schema) !== "valid") return "the JSON schema in Settings is no JSON yet";
    return this.tools.problem && `the tools in Settings: ${this.tools.problem}`;
  }

  // Only what the user touched is sent: the rest is the model's to decide.
  asked() {
    return {
      ...(this.field("probabilities").checked && { logprobs: true, top_logprobs: 5 }),
      ...this.form(),
      ...this.tools.asked(),
      ...this.sampling(),
    };
  }

  // The form of the answer, where one is asked for: it is then JSON, and not Markdown.
  form() {
    if (!this.schema) return {};
    const asked = { name: "answer", schema: JSON.parse(this.schema), strict: true };
    return { response_format: { type: "json_schema", json_schema: asked } };
  }

  sampling() {
    const ranges = [...this.ranges].filter((field) => "touched" in field.dataset);
    const numbers = [...this.numbers].filter((field) => field.value !== "");
    return Object.fromEntries([...ranges, ...numbers].map(({ name, value }) => [name, Number(value)]));
  }

  // What the model means by a parameter that is not sent; whether it takes tools.
  describe({ default_sampling: defaults, supports_tools: takesTools }) {
    this.defaults = defaults;
    this.ranges.forEach((field) => "touched" in field.dataset || this.untouch(field));
    for (const field of this.numbers) {
      if (defaults[field.name] != null) field.placeholder = `default, ${defaults[field.name]}`;
    }
    this.panel.querySelector("#no-tools").hidden = takesTools;
  }

  reset() {
    this.ranges.forEach((field) => this.untouch(field));
    this.numbers.forEach((field) => { field.value = ""; });
  }

  touch(field) {
    field.dataset.touched = "";
    field.parentElement.classList.remove("untouched");
    field.parentElement.querySelector("output").value = field.value;
  }

  untouch(field) {
    delete field.dataset.touched;
    field.value = field.defaultValue;
    field.parentElement.classList.add("untouched");
    const given = this.defaults[field.name];
    field.parentElement.querySelector("output").value = given === undefined ? "default" : `default, ${given}`;
    if (given !== undefined) field.value = given;
  }

  markSchema() {
    const state = this.schema && jsonState(this.schema);
    const mark = this.panel.querySelector("#schema-state");
    mark.value = MARKS[state];
    mark.classList.toggle("bad", state === "broken");
  }
}
