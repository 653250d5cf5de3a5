// A message as an item of the list: media, thoughts, text, calls, and a line of notes under it.

import { showCalls } from "/page/calls.js";
import { button, make } from "/page/elements.js";
import { render } from "/page/markdown.js";
import { figure, mediaOf, textOf } from "/page/media.js";
import { tokenSpans } from "/page/tokens.js";

// A message of a person, with its media; of the model or the page, as yet empty or a sentence.
export function messageItem(role, content = "") {
  const body = make("div", { className: "text", textContent: textOf(content) });
  const item = make("li", { className: role }, body);
  const media = mediaOf(content);
  if (media.length) {
    body.before(make("div", { className: "media" }, ...media.map(figure)));
    body.hidden = !body.textContent;
  }
  return item;
}

function showThought(item, thought, isOver) {
  if (!thought) return;
  let folded = item.querySelector(":scope > .thought");
  if (!folded) {
    folded = make("details", { className: "thought" }, make("summary"), make("div"));
    item.prepend(folded);
  }
  folded.firstChild.textContent = isOver ? "Thoughts" : "Thinking …";
  folded.lastChild.textContent = thought;
}

// What the model wrote is Markdown, but for JSON that was asked for and tokens with probabilities.
export function showAnswer(item, { text, thought = "", calls = [], tokens = [], json = false }) {
  const body = item.querySelector(":scope > .text");
  const isOver = Boolean(text) || calls.length > 0 || !item.classList.contains("running");
  showThought(item, thought, isOver);
  body.hidden = !text && (calls.length > 0 || Boolean(thought));
  body.classList.toggle("tokens", tokens.length > 0);
  if (tokens.length) body.replaceChildren(...tokenSpans(tokens));
  else body.replaceChildren(...render(json ? `\`\`\`\`json\n${text}\n\`\`\`\`` : text));
  showCalls(item, calls);
}

function noteOf(item) {
  return item.querySelector(":scope > .note") ?? item.appendChild(make("div", { className: "note" }));
}

// Adds to the line under a message: facts as text, and buttons.
export function annotate(item, facts, buttons) {
  noteOf(item).append(...facts.map((fact) => make("span", { textContent: fact })), ...buttons);
}

export function copyButton(text) {
  if (!navigator.clipboard) return []; // where the page came over plain HTTP from another machine
  return [button("Copy", async (self) => {
    await navigator.clipboard.writeText(text);
    self.textContent = "Copied";
  })];
}
