// How an answer is shown that is not Markdown: token by token with probabilities, or as JSON.

// Ends that make a whole of a beginning, before brackets are closed.
const ENDS = ["", '"', '":0', ":0", "0", '"":0', '"0"', "rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l",
  ...["0000", "000", "00"].flatMap((digits) => [`${digits}"`, `${digits}":0`]), '0"', '0":0', '\\"', '\\":0', ".0"];

function parses(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// What brackets are open where the text ends.
function closers(text) {
  const open = [];
  let quoted = false;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quoted) {
      if (letter === "\\") at++;
      else if (letter === '"') quoted = false;
    } else if (letter === '"') quoted = true;
    else if (letter === "{") open.unshift("}");
    else if (letter === "[") open.unshift("]");
    else if (letter === "}" || letter === "]") open.shift();
  }
  return open.join("");
}

// "valid": a whole JSON text; "begun": the beginning of one; "broken": neither.
export function jsonState(text) {
  if (parses(text)) return "valid";
  const rest = closers(text);
  return text.trim() === "" || ENDS.some((end) => parses(text + end + rest)) ? "begun" : "broken";
}

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

// Tokens as elements; the less likely one was, the stronger its mark.
export function tokenSpans(tokens) {
  return tokens.map(({ text, logprob, top_logprobs: top }) => {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = text;
    span.style.setProperty("--surprise", `${Math.min(100, Math.round(-12 * logprob))}%`);
    const others = top.map((other) => `${JSON.stringify(other.token)} ${percent(other.logprob)}`);
    span.title = [`${percent(logprob)}; likeliest:`, ...others].join("\n");
    return span;
  });
}
