// The conversation: its turns, the items that show them, and the answer that is coming.

import { Answer, JSON_STATES } from "/page/answer.js";
import { call, whatFailed } from "/page/api.js";
import { askResults, closeResults } from "/page/calls.js";
import { messagesOf } from "/page/conversations.js";
import { $, button } from "/page/elements.js";
import { jsonState } from "/page/json_state.js";
import { contentOf, mediaOf, showCosts, textOf } from "/page/media.js";
import { annotate, copyButton, messageItem, showAnswer } from "/page/message.js";

export function say(text, bad = false) {
  $("state").textContent = text;
  $("state").classList.toggle("bad", bad);
}

// Follows the text, unless the reader has scrolled up to read.
function follow(change) {
  const list = $("messages");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60; // two lines
  change();
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function toEnd() {
  $("messages").scrollTop = $("messages").scrollHeight;
}

function dropErrors() {
  $("messages").querySelectorAll(".error").forEach((item) => item.remove());
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  $("messages").setAttribute("aria-busy", String(is));
}

// To where the user goes on: a result that a call waits for, or the next message.
function focus() {
  const form = $("messages").querySelector(".calls:has(textarea)");
  const missing = form && [...form.querySelectorAll("textarea")].find((field) => !field.value);
  (missing ?? form?.querySelector("[type=submit]") ?? $("input")).focus();
}

const namesOf = (calls) => calls.map(({ name }) => name).join(", ");

export class Chat {
  turns = []; // { role, content }, of the model also thought, calls, json, and facts about it
  running = null; // the AbortController of the answer that is coming
  context = null; // tokens the model can take

  constructor(conversations, attachments, settings) {
    this.conversations = conversations;
    this.attachments = attachments;
    this.settings = settings;
    settings.changed = () => this.remember();
    attachments.price = (parts) => this.price(parts);
  }

  // ---- what is shown -------------------------------------------------------------------------

  show(role, content = "") {
    const item = messageItem(role, content);
    if (role === "user") annotate(item, [], [button("Edit", () => this.edit(item, content))]);
    $("messages").append(item);
    $("welcome").hidden = true;
    return item;
  }

  // What stands under an answer, and the results of its calls: the last one's are asked for.
  finish(item, turn) {
    const copy = turn.content ? copyButton(turn.content) : [];
    annotate(item, turn.facts ?? [], [...copy, button("Again", () => this.again(item))]);
    if (turn.calls && turn === this.turns.at(-1)) this.awaitResults(item, turn);
    else if (turn.calls) closeResults(item, turn.calls);
  }

  awaitResults(item, { calls }) {
    const send = () => {
      if (this.isBlocked()) return;
      closeResults(item, calls);
      this.remember();
      this.respond();
    };
    askResults(item, calls, { changed: () => this.remember(), send });
  }

  // Shows the conversation that this tab is at.
  recall() {
    const kept = this.conversations.current();
    if (kept) this.settings.kept = kept;
    this.turns = kept?.turns ?? [];
    $("messages").replaceChildren();
    for (const turn of this.turns) {
      const item = this.show(turn.role, turn.role === "user" ? turn.content : "");
      if (turn.role === "assistant") {
        showAnswer(item, { ...turn, text: turn.content });
        this.finish(item, turn);
      }
      showCosts(item, turn.costs);
    }
    $("welcome").hidden = this.turns.length > 0;
    if (this.turns.at(-1)?.role === "user") this.offerAnswer($("messages").lastElementChild);
    toEnd();
  }

  offerAnswer(item) {
    annotate(item, [], [button("Answer", (self) => {
      if (this.isBlocked()) return;
      self.remove();
      this.respond();
    })]);
  }

  // ---- questions and answers -----------------------------------------------------------------

  remember() {
    this.conversations.keep(this.turns, this.settings.kept);
  }

  // Whether nothing can be asked now; says why.
  isBlocked() {
    const { problem } = this.settings;
    if (this.running) return true;
    if (problem) say(problem, true);
    else dropErrors();
    return Boolean(problem);
  }

  send(text) {
    if (!(text || !this.attachments.isEmpty) || this.isBlocked()) return;
    if (this.turns.at(-1)?.calls) {
      say(`${namesOf(this.turns.at(-1).calls)}: give the result first`, true);
      focus();
      return;
    }
    const { parts, costs } = this.attachments.take();
    const turn = { role: "user", content: contentOf(text, parts) };
    $("input").value = "";
    this.turns.push(turn);
    this.remember(); // a reload while the answer comes keeps the question
    const item = this.show("user", turn.content);
    costs.then((counted) => this.tellCosts(item, turn, counted));
    toEnd();
    this.respond();
  }

  tellCosts(item, turn, costs) {
    turn.costs = costs;
    showCosts(item, costs);
    if (this.turns.includes(turn)) this.remember();
  }

  // Tokens of each medium of the next message. They may depend on what else is in the conversation:
  // some models see the only image of one in more detail.
  async price(parts) {
    const body = JSON.stringify({ messages: [...this.messages(), { role: "user", content: parts }] });
    try {
      const { media } = await (await call("/tokenize", { method: "POST", body })).json();
      return media.slice(-parts.length).map(({ count }) => count);
    } catch (error) {
      say(whatFailed(error), true);
      return [];
    }
  }

  messages() {
    const { system } = this.settings;
    return [...(system ? [{ role: "system", content: system }] : []), ...messagesOf(this.turns)];
  }

  question() {
    return {
      messages: this.messages(),
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true, // counted: a stopped answer ends without usage
      ...this.settings.asked(),
    };
  }

  async respond() {
    const mine = new AbortController();
    this.running = mine;
    busy(true);
    say("");
    const answer = new Answer(Boolean(this.settings.schema));
    let item;
    let frame = 0; // an answer of a thousand tokens is not written anew a thousand times
    const paint = () => {
      frame = 0;
      follow(() => showAnswer(item, answer));
      if (answer.json) say(JSON_STATES[jsonState(answer.text)], jsonState(answer.text) === "broken");
    };
    follow(() => { item = this.show("assistant running"); });
    await answer.receive(this.question(), mine.signal, () => { frame ||= requestAnimationFrame(paint); });
    cancelAnimationFrame(frame);
    if (this.running !== mine) return; // a new chat was begun meanwhile
    this.running = null;
    busy(false);
    item.classList.remove("running");
    if (answer.error) this.show("error", answer.error);
    const turn = answer.turn();
    if (turn) follow(() => this.keep(item, answer, turn));
    else this.takeBack(item, answer);
    focus();
  }

  keep(item, answer, turn) {
    say(turn.calls ? `${namesOf(turn.calls)}: the model waits for the result` : "");
    this.turns.push(turn);
    showAnswer(item, { ...answer, calls: turn.calls });
    this.finish(item, turn);
    $("used").textContent = answer.usage ? `${answer.usage.total_tokens} of ${this.context} tokens` : "";
    this.remember();
  }

  // Nothing came: the question, or the results of calls, go back to where they can be sent again.
  takeBack(item, answer) {
    const before = item.previousElementSibling;
    const turn = this.turns.at(-1);
    item.remove();
    if (turn.calls) {
      this.awaitResults(before, turn);
    } else {
      this.turns.pop();
      before.remove();
      this.refill(turn.content, $("input").value);
    }
    this.remember();
    $("welcome").hidden = $("messages").childElementCount > 0;
    if (answer.reason) say(answer.lack, true);
  }

  // A question where it is written; `text` that stands there already stays.
  refill(content, text = "") {
    $("input").value = text || textOf(content);
    if (!text || this.attachments.isEmpty) this.attachments.set(mediaOf(content));
  }

  // Changes a question, which forgets what came after it.
  edit(item, content) {
    if (this.running) return say("the answer is still coming; stop it first", true);
    dropErrors();
    const items = [...$("messages").children];
    const number = items.indexOf(item);
    this.turns.length = number;
    items.slice(number).forEach((each) => each.remove());
    $("welcome").hidden = number > 0;
    $("used").textContent = "";
    this.remember();
    this.refill(content);
    return $("input").focus();
  }

  again(item) {
    if (!this.running) dropErrors();
    if (this.running || item !== $("messages").lastElementChild) return say("only the last answer can be given again");
    if (this.isBlocked()) return undefined;
    this.turns.pop();
    item.remove();
    this.remember();
    return this.respond();
  }

  stop() {
    this.running?.abort();
  }

  // Ends the answer that is coming, if one is: what came of it is not kept.
  leave() {
    this.stop();
    this.running = null;
    this.attachments.set([]);
    $("used").textContent = "";
    busy(false);
    say("");
  }

  begin() {
    this.leave();
    this.conversations.begin();
    this.recall();
    $("input").focus();
  }

  open(id) {
    this.leave();
    this.conversations.open(id);
    this.recall();
  }
}
