// Conversations, kept in this browser until they are deleted; each tab is at one of them.

const PLACE = "conversations";
const MOST = 100;

const titleOf = (turns) => {
  const [first] = turns;
  const parts = typeof first.content === "string" ? [{ text: first.content }] : first.content;
  const text = parts.map((part) => part.text ?? "").join(" ").trim();
  return text.slice(0, 80) || "(without words)";
};

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
    return stored().map(({ id, changed, turns }) => ({ id, changed, title: titleOf(turns) }));
  }

  isCurrent(id) {
    return id === this.id;
  }

  current() {
    return stored().find(({ id }) => id === this.id)?.turns ?? [];
  }

  open(id) {
    this.id = id;
    sessionStorage.setItem("conversation", id);
  }

  begin() {
    this.open(crypto.getRandomValues(new Uint32Array(2)).join("-"));
  }

  // Where a browser keeps no more, the oldest ones go.
  keep(turns) {
    const others = stored().filter(({ id }) => id !== this.id).slice(0, MOST - 1);
    const mine = turns.length ? [{ id: this.id, changed: Date.now(), turns }] : [];
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
