// Markdown as models write it: blocks and spans as plain data, then as elements of the page.
//
// Text becomes text nodes, never markup, so nothing that a model writes can run. Links open only
// what is http, https or mailto; pictures are links, because the page loads nothing from elsewhere.

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ROW = /^\s*\|.*\|\s*$/;
const DIVIDER = /^\s*\|(\s*:?-+:?\s*\|)+\s*$/;
const DEEPEST = 8; // quotes and lists in each other

// Returns the blocks of a text: {kind, spans | blocks | text | items | rows}.
export function parse(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (!line.trim()) {
      at += 1;
    } else if ((found = FENCE.exec(line))) {
      at = fenced(lines, at, found, blocks);
    } else if ((found = HEADING.exec(line))) {
      blocks.push({ kind: "heading", level: found[1].length, spans: spansOf(found[2]) });
      at += 1;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule" });
      at += 1;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const inner = [];
      while (at < lines.length && (found = QUOTE.exec(lines[at]))) inner.push(found[1]), (at += 1);
      blocks.push({ kind: "quote", blocks: parse(inner.join("\n"), depth + 1) });
    } else if (ITEM.test(line) && depth < DEEPEST) {
      at = list(lines, at, blocks, depth);
    } else if (ROW.test(line) && DIVIDER.test(lines[at + 1] ?? "")) {
      at = table(lines, at, blocks);
    } else {
      const start = at;
      do at += 1; while (at < lines.length && lines[at].trim() && !starts(lines, at));
      blocks.push({ kind: "paragraph", spans: spansOf(lines.slice(start, at).join("\n")) });
    }
  }
  return blocks;
}

function starts(lines, at) {
  const line = lines[at];
  return [FENCE, HEADING, RULE, QUOTE, ITEM].some((form) => form.test(line))
    || (ROW.test(line) && DIVIDER.test(lines[at + 1] ?? ""));
}

// A fence that is not closed yet runs to the end: the answer is still coming.
function fenced(lines, at, [, fence, language], blocks) {
  const code = [];
  for (at += 1; at < lines.length; at += 1) {
    const line = lines[at].trim();
    if (line.length >= fence.length && line === fence[0].repeat(line.length)) break;
    code.push(lines[at]);
  }
  blocks.push({ kind: "code", language, text: code.join("\n") });
  return at + 1;
}

function list(lines, at, blocks, depth) {
  const [, indent, first] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first);
  const items = [];
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (found && found[1].length <= indent.length + 1) {
      if (/\d/.test(found[2]) !== ordered) break;
      items.push([found[3]]);
    } else if (lines[at].trim() && (found || /^\s{2,}/.test(lines[at]))) {
      items.at(-1).push(lines[at].slice(Math.min(indent.length + 2, /^\s*/.exec(lines[at])[0].length)));
    } else if (!lines[at].trim() && /^\s{2,}\S/.test(lines[at + 1] ?? "")) {
      items.at(-1).push("");
    } else if (lines[at].trim() || !ITEM.test(lines[at + 1] ?? "")) break;
    at += 1;
  }
  blocks.push({
    kind: "list", ordered, start: ordered ? Number.parseInt(first, 10) : 1,
    items: items.map((item) => parse(item.join("\n"), depth + 1)),
  });
  return at;
}

function table(lines, at, blocks) {
  const rows = [];
  for (const start = at; at < lines.length && ROW.test(lines[at]); at += 1) {
    if (at === start + 1) continue;
    rows.push(lines[at].trim().slice(1, -1).split("|").map((cell) => spansOf(cell.trim())));
  }
  blocks.push({ kind: "table", rows });
  return at;
}

// Tried in turn where they may begin; each takes time in proportion to what it looks at.
const SPAN = /\\([!-/:-@[-`{-~])|(`+)(?!`)|(!?)\[([^\][]{0,500})\]\(([^()\s]{1,2000})\)|(\*\*|__)(?=\S)|([*_])(?=\S)|(https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]])/g;

// Returns the spans of a text: {kind: "text" | "code" | "link" | "strong" | "em", …}.
export function spansOf(text, depth = 0) {
  const spans = [];
  let from = 0;
  const say = (until) => until > from && spans.push({ kind: "text", text: text.slice(from, until) });
  const form = new RegExp(SPAN);
  for (let found; (found = form.exec(text)); ) {
    const [whole, escaped, ticks, picture, label, target, strong, em, bare] = found;
    const begin = found.index;
    let end = begin + whole.length;
    let span = null;
    if (escaped) span = { kind: "text", text: escaped };
    else if (ticks) {
      const close = closing(text, ticks, end);
      if (close >= 0) (span = { kind: "code", text: text.slice(end, close).replace(/^ (.*\S.*) $/s, "$1") }), (end = close + ticks.length);
    } else if (target !== undefined) {
      span = link(label || target, target, picture);
    } else if (bare) span = link(bare, bare, "");
    else if (depth < DEEPEST) {
      const mark = strong ?? em;
      const close = mark[0] === "_" && /\w/.test(text[begin - 1] ?? "") ? -1 : closingMark(text, mark, end);
      if (close > end) {
        span = { kind: strong ? "strong" : "em", spans: spansOf(text.slice(end, close), depth + 1) };
        end = close + mark.length;
      }
    }
    if (!span) continue;
    say(begin);
    spans.push(span);
    from = form.lastIndex = end;
  }
  say(text.length);
  return spans;
}

// A run of as many backticks, not of more.
function closing(text, ticks, from) {
  for (let at = text.indexOf(ticks, from); at >= 0; at = text.indexOf(ticks, at)) {
    let end = at;
    while (text[end] === "`") end += 1;
    if (end - at === ticks.length) return at;
    at = end;
  }
  return -1;
}

const FAR = 2000; // characters: marks that are never closed cost no more than looking so far

// The end of a run of marks: behind no space, for "_" not inside of a word.
function closingMark(text, mark, from) {
  const [char] = mark;
  for (let at = text.indexOf(char, from); at >= 0 && at < from + FAR; at = text.indexOf(char, at)) {
    let end = at;
    while (text[end] === char) end += 1;
    const fits = mark.length === 2 ? end - at >= 2 : (end - at) % 2 === 1;
    const inWord = char === "_" && /\w/.test(text[end] ?? "");
    if (fits && !inWord && /\S/.test(text[at - 1]) && text[at - 1] !== "\\") return end - mark.length;
    at = end;
  }
  return -1;
}

function link(label, target, picture) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return { kind: "text", text: picture ? label : `${label} (${target})` };
  return { kind: "link", text: label, target };
}

// ---- elements --------------------------------------------------------------------------------

function element(name, children = [], properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Returns the elements of a text.
export function render(text) {
  return parse(text).map(blockElement);
}

function blockElement(block) {
  switch (block.kind) {
    case "heading": return element(`h${Math.min(6, block.level + 2)}`, block.spans.map(spanElement));
    case "rule": return element("hr");
    case "quote": return element("blockquote", block.blocks.map(blockElement));
    case "code": return codeElement(block);
    case "list":
      return element(block.ordered ? "ol" : "ul", block.items.map((item) => element("li", item.map(blockElement))),
        block.ordered ? { start: block.start } : {});
    case "table":
      return element("div", [element("table", block.rows.map((row, number) =>
        element("tr", row.map((cell) => element(number ? "td" : "th", cell.map(spanElement))))))], { className: "wide" });
    default: return element("p", block.spans.map(spanElement));
  }
}

function codeElement({ language, text }) {
  const head = element("div", [element("span", [language || "code"])]);
  if (navigator.clipboard) {
    const copy = element("button", ["Copy"], { type: "button" });
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    });
    head.append(copy);
  }
  return element("figure", [head, element("pre", [element("code", [text])], { tabIndex: 0 })]);
}

function spanElement(span) {
  switch (span.kind) {
    case "code": return element("code", [span.text]);
    case "strong": return element("strong", span.spans.map(spanElement));
    case "em": return element("em", span.spans.map(spanElement));
    case "link": return element("a", [span.text], { href: span.target, rel: "noopener noreferrer", target: "_blank" });
    default: return document.createTextNode(span.text);
  }
}
