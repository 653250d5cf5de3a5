// Images, videos and clips beside a message: attached, shown, and sent as parts of its content.

const MOST_BYTES = 32 << 20; // of all that waits to be sent: the server's own limit is said by it

const kindOf = (type) => ["image", "video", "audio"].find((kind) => type.startsWith(`${kind}/`));

function read(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => failed(reader.error));
    reader.readAsDataURL(file);
  });
}

function partOf(kind, url) {
  if (kind === "audio") {
    return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1) } };
  }
  return { type: `${kind}_url`, [`${kind}_url`]: { url } };
}

// The media of a message's content, and its text; a content without media is its text alone.
export const mediaOf = (content) => (Array.isArray(content) ? content.filter((part) => part.type !== "text") : []);
export const textOf = (content) =>
  Array.isArray(content) ? content.filter((part) => part.type === "text").map((part) => part.text).join("") : content;

export function contentOf(text, parts) {
  return parts.length ? [...parts, ...(text ? [{ type: "text", text }] : [])] : text;
}

// Tokens of the media of the last question, by kind: all of the conversation's, less those before.
export function priceOf(usage, turnsBefore) {
  const before = turnsBefore.flatMap((turn) => Object.entries(turn.cost ?? {}));
  const cost = {};
  for (const [name, tokens] of Object.entries(usage?.prompt_tokens_details ?? {})) {
    const kind = name.match(/^(image|video|audio)_tokens$/)?.[1];
    if (!kind) continue;
    cost[kind] = before.reduce((left, [other, spent]) => left - (other === kind ? spent : 0), tokens);
  }
  return cost;
}

export function thumbnail(part) {
  const url = part.image_url?.url ?? part.video_url?.url ?? `data:audio/*;base64,${part.input_audio?.data}`;
  const kind = part.type.split("_").find((word) => ["image", "video", "audio"].includes(word));
  const made = document.createElement(kind === "image" ? "img" : kind);
  made.src = url;
  if (kind === "image") made.alt = "attached image";
  else Object.assign(made, { controls: true, muted: kind === "video" });
  return made;
}

// What waits to be sent with the next message. `kinds` are those that the model takes.
export class Attachments {
  #parts = [];
  #list;
  kinds = [];

  constructor(list) {
    this.#list = list;
  }

  // Adds files; returns why one cannot be, or nothing.
  async add(files) {
    for (const file of files) {
      const kind = kindOf(file.type);
      if (!this.kinds.includes(kind)) {
        const takes = this.kinds.length ? `takes ${this.kinds.join(", ")}` : "reads text alone";
        return `${file.name || "what was dropped"} is ${file.type || "of an unknown type"}; this model ${takes}`;
      }
      const url = await read(file);
      const size = this.#parts.reduce((sum, part) => sum + JSON.stringify(part).length, url.length);
      if (size > MOST_BYTES) return `${file.name} is too large: a message carries ${MOST_BYTES >> 20} MiB at the most`;
      this.set([...this.#parts, partOf(kind, url)]);
    }
    return "";
  }

  set(parts) {
    this.#parts = parts;
    this.#list.replaceChildren(...parts.map((part) => this.#item(part)));
    this.#list.hidden = parts.length === 0;
  }

  take() {
    const parts = this.#parts;
    this.set([]);
    return parts;
  }

  get isEmpty() {
    return this.#parts.length === 0;
  }

  #item(part) {
    const item = document.createElement("li");
    const remove = document.createElement("button");
    Object.assign(remove, { type: "button", textContent: "×", ariaLabel: "remove this attachment" });
    remove.addEventListener("click", () => this.set(this.#parts.filter((each) => each !== part)));
    item.append(thumbnail(part), remove);
    return item;
  }
}
