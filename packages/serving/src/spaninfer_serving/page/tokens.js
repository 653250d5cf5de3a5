// An answer token by token, with probabilities.

import { make } from "/page/elements.js";

// Bytes of tokens as text: a letter belongs to the token that ends it.
export class TokenTexts {
  constructor() {
    this.decoder = new TextDecoder();
  }

  of({ token, bytes }) {
    return bytes ? this.decoder.decode(new Uint8Array(bytes), { stream: true }) : token;
  }
}

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

const MOST = 55; // % of the colour: text stands out from no more of it in the dark, 4.8 to 1

// Tokens as elements; the less likely one was, the stronger its mark.
export function tokenSpans(tokens) {
  return tokens.map(({ text, logprob, top_logprobs: top }) => {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = text;
    span.style.setProperty("--surprise", `${Math.min(MOST, Math.round(-8 * logprob))}%`);
    const others = top.map((other) => `${JSON.stringify(other.token)} ${percent(other.logprob)}`);
    span.title = [`${percent(logprob)}; likeliest:`, ...others].join("\n");
    return span;
  });
}
