// An answer while it comes: text, thoughts, calls and tokens of a stream, and what it took.

import { call, events, whatFailed } from "/page/api.js";
import { extend, isWhole } from "/page/calls.js";
import { jsonState } from "/page/json_state.js";
import { TokenTexts } from "/page/tokens.js";

export const JSON_STATES = { valid: "✓ valid JSON", begun: "JSON so far", broken: "✗ no JSON" };

export class Answer {
  constructor(json) {
    this.json = json; // is it JSON that was asked for?
    this.text = "";
    this.thought = "";
    this.calls = []; // { id, name, arguments }
    this.tokens = []; // with probabilities, where they were asked for
    this.usage = null;
    this.counted = 0; // tokens: a stopped answer ends without usage
    this.reason = null;
    this.error = "";
    this.started = performance.now();
    this.first = null;
    this.texts = new TokenTexts();
  }

  // Reads the answer to a question; `changed` hears of every piece. Ends also when it is stopped.
  async receive(question, signal, changed) {
    try {
      const response = await call("/v1/chat/completions", { method: "POST", signal, body: JSON.stringify(question) });
      for await (const event of events(response)) {
        if (this.take(event)) changed();
      }
    } catch (error) {
      if (error.name !== "AbortError") this.error = whatFailed(error);
    }
    this.ended = performance.now();
  }

  // Adds an event; returns whether there is more to show.
  take({ usage, choices: [choice] }) {
    this.usage = usage ?? this.usage;
    this.reason = choice?.finish_reason ?? this.reason;
    this.counted += choice?.token_ids?.length ?? 0;
    const { content, reasoning_content: thought, tool_calls: calls } = choice?.delta ?? {};
    if (!content && !thought && !calls) return false;
    for (const token of content ? (choice.logprobs?.content ?? []) : []) { // not of what ends it
      this.tokens.push({ ...token, text: this.texts.of(token) });
    }
    this.first ??= performance.now();
    this.text += content ?? "";
    this.thought += thought ?? "";
    extend(this.calls, calls ?? []);
    return true;
  }

  // The turn of the conversation that it is, without a call that was cut; null where nothing came.
  turn() {
    const calls = this.calls.filter(isWhole);
    if (!this.text && !calls.length) return null;
    return {
      role: "assistant",
      content: this.text,
      ...(this.thought && { thought: this.thought }),
      ...(this.json && { json: true }),
      facts: this.figures(),
      ...(calls.length && { calls }),
    };
  }

  // Why there is no turn.
  get lack() {
    if (this.calls.length) return "the answer ended inside of a call";
    return `the model ${this.thought ? "was still thinking when its answer ended" : "ended its answer before the first word"}`;
  }

  figures() {
    const tokens = this.usage?.completion_tokens ?? this.counted;
    const seconds = (this.ended - this.first) / 1e3;
    const ends = { length: "cut at the longest answer", null: this.error ? "broken off" : "stopped by you" };
    return [
      this.json && JSON_STATES[jsonState(this.text)],
      tokens && `${tokens} tokens`,
      `first after ${Math.round(this.first - this.started)} ms`,
      tokens > 1 && `${((tokens - 1) / seconds).toFixed(0)} tokens/s`,
      !this.calls.every(isWhole) && "a call was cut",
      ends[this.reason],
    ].filter(Boolean);
  }
}
