// The playground: one conversation with this server's model, streamed over the public API.

import { call, events, whatFailed } from "/page/api.js";
import { TokenTexts, jsonState, tokenSpans } from "/page/answers.js";
import { Conversations } from "/page/conversations.js";
import { EngineView } from "/page/engine_view.js";
import { render } from "/page/markdown.js";
import { Attachments, contentOf, mediaOf, textOf, thumbnail } from "/page/media.js";

const $ = (id) => document.getElementById(id);
const conversation = [];
let context = null; // tokens the model can take
let defaults = {}; // the model's sampling values, by parameter
let running = null; // the AbortController of the answer that is coming
const attachments = new Attachments($("attachments"));
const conversations = new Conversations();

// ---- what is asked ---------------------------------------------------------------------------

// Only what the user touched is sent: the rest is the model's to decide.
function sampling() {
  const chosen = {};
  for (const field of $("settings").querySelectorAll("input:not([type=checkbox])")) {
    const touched = field.type === "range" ? "touched" in field.dataset : field.value !== "";
    if (touched) chosen[field.name] = Number(field.value);
  }
  return chosen;
}

const setting = (name) => $("settings").querySelector(`[name=${name}]`);

// The form of the answer, where one is asked for: it is then JSON, and not Markdown.
function form() {
  const schema = setting("schema").value.trim();
  if (!schema) return {};
  const asked = { name: "answer", schema: JSON.parse(schema), strict: true };
  return { response_format: { type: "json_schema", json_schema: asked } };
}

function question() {
  const system = setting("system").value.trim();
  return {
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...conversation.map(({ role, content }) => ({ role, content })),
    ],
    stream: true,
    stream_options: { include_usage: true },
    return_token_ids: true, // counted: a stopped answer ends without usage
    ...(setting("probabilities").checked && { logprobs: true, top_logprobs: 5 }),
    ...form(),
    ...sampling(),
  };
}

// ---- the conversation ------------------------------------------------------------------------

function say(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

// What the model wrote is Markdown, but for JSON that was asked for and tokens with probabilities;
// what people wrote stays as they wrote it.
function write(item, text, { json = false, tokens = [] } = {}) {
  const body = item.querySelector(":scope > .text");
  body.classList.toggle("tokens", tokens.length > 0);
  if (!item.classList.contains("assistant")) body.textContent = text;
  else if (tokens.length) body.replaceChildren(...tokenSpans(tokens));
  else body.replaceChildren(...render(json ? `\`\`\`\`json\n${text}\n\`\`\`\`` : text));
}

function show(role, content = "") {
  const item = document.createElement("li");
  item.className = role;
  const body = document.createElement("div");
  body.className = "text";
  item.append(body);
  write(item, textOf(content));
  const media = mediaOf(content);
  if (media.length) {
    const gallery = document.createElement("div");
    gallery.className = "media";
    gallery.append(...media.map(thumbnail));
    body.before(gallery);
    body.hidden = !body.textContent;
  }
  if (role === "user") offer(item, content);
  $("messages").append(item);
  $("welcome").hidden = true;
  return item;
}

// Follows the text, unless the reader has scrolled up to read.
function follow(change) {
  const list = $("messages");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60; // two lines
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.addEventListener("click", () => act(made));
  return made;
}

const JSON_STATES = { valid: "✓ valid JSON", begun: "JSON so far", broken: "✗ no JSON" };

function figures({ started, first, usage, counted, reason, error, json, text }) {
  const tokens = usage?.completion_tokens ?? counted;
  const seconds = (performance.now() - first) / 1e3;
  return [
    json && JSON_STATES[jsonState(text)],
    tokens && `${tokens} tokens`,
    `first after ${Math.round(first - started)} ms`,
    tokens > 1 && `${((tokens - 1) / seconds).toFixed(0)} tokens/s`,
    { stop: null, length: "cut at the longest answer", null: error ? "broken off" : "stopped by you" }[reason],
  ].filter(Boolean);
}

function annotate(item, text, facts = []) {
  const note = document.createElement("div");
  note.className = "note";
  for (const fact of facts) note.append(Object.assign(document.createElement("span"), { textContent: fact }));
  if (navigator.clipboard) { // not where the page came over plain HTTP from another machine
    note.append(button("Copy", async (self) => {
      await navigator.clipboard.writeText(text);
      self.textContent = "Copied";
    }));
  }
  note.append(button("Again", () => again(item)));
  item.append(note);
}

// Under a question: change it, which forgets what came after it, or ask it where no answer came.
function offer(item, content) {
  const note = document.createElement("div");
  note.className = "note";
  note.append(button("Edit", () => edit(item, content)));
  item.append(note);
}

// What the media of the last question cost: all of the conversation's, less those before it.
function price(usage) {
  const before = conversation.slice(0, -2).flatMap((turn) => Object.entries(turn.cost ?? {}));
  const cost = {};
  for (const [name, tokens] of Object.entries(usage?.prompt_tokens_details ?? {})) {
    const kind = name.match(/^(image|video|audio)_tokens$/)?.[1];
    if (!kind) continue;
    cost[kind] = before.reduce((left, [other, spent]) => left - (other === kind ? spent : 0), tokens);
  }
  return cost;
}

function showPrice(item, cost) {
  for (const [kind, tokens] of Object.entries(cost ?? {})) {
    if (tokens > 0) item?.lastChild.prepend(Object.assign(document.createElement("span"), { textContent: `${kind}: ${tokens} tokens` }));
  }
}

function edit(item, content) {
  if (running) return say("the answer is still coming; stop it first", true);
  dropErrors();
  const items = [...$("messages").children];
  const number = items.indexOf(item);
  conversation.length = number;
  items.slice(number).forEach((each) => each.remove());
  $("welcome").hidden = number > 0;
  $("used").textContent = "";
  remember();
  $("input").value = textOf(content);
  attachments.set(mediaOf(content));
  $("input").focus();
}

function offerAnswer(item) {
  const ask = button("Answer", () => {
    if (running) return;
    dropErrors();
    ask.remove();
    respond();
  });
  item.lastChild.append(ask);
}

function remember() {
  conversations.keep(conversation);
}

// Shows the conversation that this tab was at.
function recall() {
  conversation.splice(0, conversation.length, ...conversations.current());
  $("messages").replaceChildren();
  for (const turn of conversation) {
    const item = show(turn.role, turn.content);
    if (turn.role === "assistant") annotate(item, turn.content);
    showPrice(item, turn.cost);
  }
  $("welcome").hidden = conversation.length > 0;
  if (conversation.at(-1)?.role === "user") offerAnswer($("messages").lastElementChild);
  $("messages").scrollTop = $("messages").scrollHeight;
}

function listChats() {
  const chats = conversations.list();
  $("chats").querySelector("ol").replaceChildren(...chats.map(({ id, title, changed }) => {
    const item = document.createElement("li");
    const open = button(title, () => {
      leave();
      conversations.open(id);
      recall();
      $("chats").close();
    });
    open.title = new Date(changed).toLocaleString();
    const remove = button("Delete", () => {
      if (conversations.isCurrent(id)) begin();
      conversations.remove(id);
      listChats();
    });
    remove.setAttribute("aria-label", `Delete ${title}`);
    item.append(open, remove);
    return item;
  }));
  $("chats").querySelector("p").hidden = chats.length > 0;
}

function dropErrors() {
  $("messages").querySelectorAll(".error").forEach((item) => item.remove());
}

async function again(item) {
  if (!running) dropErrors();
  if (running || item !== $("messages").lastElementChild) return say("only the last answer can be given again");
  conversation.pop();
  item.remove();
  remember();
  await respond();
}

// Streams an answer into `item`; returns it with its figures, also when it was stopped.
async function receive(item) {
  const answer = {
    text: "", thought: "", tokens: [], json: setting("schema").value.trim() !== "",
    started: performance.now(), first: null, usage: null, counted: 0, reason: null,
  };
  const texts = new TokenTexts();
  try {
    const response = await call("/v1/chat/completions", {
      method: "POST",
      signal: running.signal,
      body: JSON.stringify(question()),
    });
    for await (const event of events(response)) {
      answer.usage = event.usage ?? answer.usage;
      const choice = event.choices[0];
      answer.reason = choice?.finish_reason ?? answer.reason;
      answer.counted += choice?.token_ids?.length ?? 0;
      const { content = "", reasoning_content: thought = "" } = choice?.delta ?? {};
      for (const token of content ? (choice.logprobs?.content ?? []) : []) { // not of what ends it
        answer.tokens.push({ ...token, text: texts.of(token) });
      }
      if (!content && !thought) continue;
      answer.first ??= performance.now();
      answer.text += content;
      answer.thought += thought;
      item.classList.toggle("thinking", !answer.text);
      paint(item, answer);
    }
  } catch (error) {
    if (error.name !== "AbortError") answer.error = whatFailed(error);
  }
  return answer;
}

// Once per frame: an answer of a thousand tokens is not written anew a thousand times.
function paint(item, answer) {
  if (answer.frame) return;
  answer.frame = requestAnimationFrame(() => {
    answer.frame = 0;
    follow(() => write(item, answer.text, answer));
    if (answer.json) say(JSON_STATES[jsonState(answer.text)], jsonState(answer.text) === "broken");
  });
}

async function respond() {
  running = new AbortController();
  const mine = running;
  busy(true);
  let item;
  follow(() => { item = show("assistant running"); });
  const answer = await receive(item);
  if (running !== mine) return; // a new chat was begun meanwhile
  running = null;
  busy(false);
  item.classList.remove("running");
  if (answer.error) show("error", answer.error);
  if (answer.text) {
    cancelAnimationFrame(answer.frame);
    follow(() => write(item, answer.text, answer));
    if (answer.json) say("");
    conversation.push({ role: "assistant", content: answer.text });
    const asked = conversation.at(-2);
    if (mediaOf(asked.content).length && !asked.cost) {
      asked.cost = price(answer.usage);
      showPrice(item.previousElementSibling, asked.cost);
    }
    follow(() => annotate(item, answer.text, figures(answer)));
    $("used").textContent = answer.usage ? `${answer.usage.total_tokens} of ${context} tokens` : "";
    remember();
  } else {
    item.remove();
    takeBack();
    const until = answer.thought ? "was still thinking when its answer ended" : "ended its answer before the first word";
    if (answer.reason) say(`the model ${until}`, true);
  }
  $("input").focus();
}

// Nothing came: the question goes back to where it can be sent again.
function takeBack() {
  const { content } = conversation.pop();
  $("input").value ||= textOf(content);
  if (attachments.isEmpty) attachments.set(mediaOf(content));
  [...$("messages").querySelectorAll(".user")].at(-1)?.remove();
  remember();
  $("welcome").hidden = $("messages").childElementCount > 0;
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  $("messages").setAttribute("aria-busy", String(is));
}

function send(text) {
  if (!(text || !attachments.isEmpty) || running) return;
  const schema = setting("schema").value.trim();
  if (schema && jsonState(schema) !== "valid") return say("the JSON schema in Settings is no JSON yet", true);
  const content = contentOf(text, attachments.take());
  dropErrors();
  $("input").value = "";
  say("");
  conversation.push({ role: "user", content });
  remember(); // a reload while the answer comes keeps the question
  show("user", content);
  $("messages").scrollTop = $("messages").scrollHeight;
  respond();
}

// Ends the answer that is coming, if one is: what came of it is not kept.
function leave() {
  running?.abort();
  running = null;
  attachments.set([]);
  $("used").textContent = "";
  busy(false);
  say("");
}

function begin() {
  leave();
  conversations.begin();
  recall();
  $("input").focus();
}

// ---- settings --------------------------------------------------------------------------------

function untouch(field) {
  delete field.dataset.touched;
  field.value = field.defaultValue;
  field.parentElement.classList.add("untouched");
  const given = defaults[field.name];
  field.parentElement.querySelector("output").value = given === undefined ? "default" : `default, ${given}`;
  if (given !== undefined) field.value = given;
}

function touch(field) {
  field.dataset.touched = "";
  field.parentElement.classList.remove("untouched");
  field.parentElement.querySelector("output").value = field.value;
}

function showSettings(are) {
  $("settings").hidden = !are;
  $("toggle").setAttribute("aria-expanded", String(are));
}

const ranges = $("settings").querySelectorAll("input[type=range]");
ranges.forEach(untouch);
ranges.forEach((field) => field.addEventListener("input", () => touch(field)));
$("reset").addEventListener("click", () => {
  ranges.forEach(untouch);
  $("settings").querySelectorAll("input[type=number]").forEach((field) => { field.value = ""; });
});

// ---- keys and buttons ------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("input").value.trim());
});
$("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send($("input").value.trim());
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());

async function attach(files) {
  const refused = await attachments.add(files).catch((error) => error.message);
  say(refused, Boolean(refused));
  $("input").focus();
}

$("input").addEventListener("paste", (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach([...event.clipboardData.files]);
});
$("chat").addEventListener("dragover", (event) => event.preventDefault());
$("chat").addEventListener("drop", (event) => {
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  attach([...$("file").files]);
  $("file").value = "";
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", begin);
$("history").addEventListener("click", () => {
  listChats();
  $("chats").showModal();
});
$("toggle").addEventListener("click", () => showSettings($("settings").hidden));
const engine = new EngineView($("engine"), async () => (await call("/cache_map")).json());
$("watch").addEventListener("click", () => {
  engine.show($("engine").hidden);
  $("watch").setAttribute("aria-expanded", String(!$("engine").hidden));
});
setting("schema").addEventListener("input", ({ target }) => {
  const state = target.value.trim() && jsonState(target.value);
  $("schema-state").value = { "": "", valid: "✓", begun: "…", broken: "no JSON" }[state];
  $("schema-state").classList.toggle("bad", state === "broken");
});
for (const offer of $("welcome").querySelectorAll("button")) {
  offer.addEventListener("click", () => send(offer.textContent));
}
const isWide = matchMedia("(min-width: 46.01rem)"); // below, settings lie over the conversation
showSettings(isWide.matches);
$("chat").addEventListener("pointerdown", () => isWide.matches || showSettings(false));
$("base").textContent = `${location.origin}/v1`;
recall();

try {
  const [model] = (await (await call("/v1/models")).json()).data;
  context = model.max_model_len;
  defaults = model.default_sampling;
  ranges.forEach((field) => "touched" in field.dataset || untouch(field));
  for (const field of $("settings").querySelectorAll("input[type=number]")) {
    if (defaults[field.name] != null) field.placeholder = `default, ${defaults[field.name]}`;
  }
  attachments.kinds = model.input_modalities.filter((kind) => kind !== "text");
  $("attach").hidden = attachments.kinds.length === 0;
  $("file").accept = attachments.kinds.map((kind) => `${kind}/*`).join(",");
  $("model").textContent = model.id;
  $("model").title = `takes ${context} tokens`;
} catch (error) {
  say(whatFailed(error), true);
}
