// Conversations, kept in this browser until they are deleted; each tab is at one of them.

const PLACE = "conversations";
const MOST = 100;

const titleOf = (turns) => {
  const [first] = turns;
  const parts = typeof first.content === "string" ? [{ text: first.content }] : first.content;
  const text = parts.map((part) => part.text ?? "").join(" ").trim();
  return text.slice(0, 80) || "(without words)";
};

const calledAs = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text || "{}" } });

// Messages of a request: results of calls follow the message that has the calls.
export function messagesOf(turns) {
  return turns.flatMap(({ role, content, thought, calls }) => {
    if (!calls) return [{ role, content }];
    const asks = { role, content: content || null, tool_calls: calls.map(calledAs), ...(thought && { reasoning_content: thought }) };
    return [asks, ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result ?? "" }))];
  });
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(PLACE) ?? "[]");
  } catch { // not ours
    return [];
  }
}

export class Conversations {
  constructor() {
    this.id = sessionStorage.getItem("conversation") ?? crypto.getRandomValues(new Uint32Array(2)).join("-");
    this.open(this.id);
  }

  // Newest first: { id, changed, title }.
  list() {
    const begun = stored().filter(({ turns }) => turns.length);
    return begun.map(({ id, changed, turns }) => ({ id, changed, title: titleOf(turns) }));
  }

  isCurrent(id) {
    return id === this.id;
  }

  // Turns, the system prompt, and the tools that the model may call, null for none; undefined where
  // nothing is kept.
  current() {
    return stored().find(({ id }) => id === this.id);
  }

  open(id) {
    this.id = id;
    sessionStorage.setItem("conversation", id);
  }

  begin() {
    this.open(crypto.getRandomValues(new Uint32Array(2)).join("-"));
  }

  // Where a browser keeps no more, the oldest ones go.
  keep(turns, { tools, system }) {
    const others = stored().filter(({ id }) => id !== this.id).slice(0, MOST - 1);
    const mine = turns.length || tools || system ? [{ id: this.id, changed: Date.now(), turns, tools, system }] : [];
    for (;;) {
      try {
        return localStorage.setItem(PLACE, JSON.stringify([...mine, ...others]));
      } catch {
        if (!others.pop()) return undefined; // longer than a browser keeps: what it has stays
      }
    }
  }

  remove(id) {
    localStorage.setItem(PLACE, JSON.stringify(stored().filter((each) => each.id !== id)));
  }
}
