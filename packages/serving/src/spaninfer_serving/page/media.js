// Images, videos and clips beside a message: attached, shown with what they cost, and sent as parts
// of its content.

import { button, make } from "/page/elements.js";

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
    const [, format, data] = url.match(/^data:audio\/([^;,]+).*?,(.*)$/s);
    return { type: "input_audio", input_audio: { data, format } }; // without one, browsers do not play it
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

const KINDS = { image_url: "image", video_url: "video", input_audio: "audio" };

// A medium to see or to hear, above what it costs; `number` tells it from others of its message.
export function figure(part, number) {
  const kind = KINDS[part.type];
  const name = `attached ${kind} ${number + 1}`;
  const src = part.image_url?.url ?? part.video_url?.url ?? `data:audio/${part.input_audio.format};base64,${part.input_audio.data}`;
  const shown = kind === "image" ? make("img", { alt: name }) : make(kind, { ariaLabel: name, controls: true, muted: kind === "video" });
  shown.src = src;
  return make("figure", {}, shown, make("figcaption"));
}

// Says under each medium how many tokens it takes; nothing where that is not known.
export function showCosts(place, costs = []) {
  place.querySelectorAll("figcaption").forEach((caption, number) => {
    caption.textContent = costs[number] ? `${costs[number]} token${costs[number] === 1 ? "" : "s"}` : "";
  });
}

// What waits to be sent with the next message. `kinds` are those that the model takes.
export class Attachments {
  #parts = [];
  #costs = Promise.resolve([]);
  #list;
  kinds = [];
  price = async () => []; // tokens of each of these parts; told by the conversation

  constructor(list) {
    this.#list = list;
  }

  // Adds files; returns why one cannot be, or nothing.
  async add(files) {
    const added = [];
    const size = (parts) => parts.reduce((sum, part) => sum + JSON.stringify(part).length, 0);
    let problem = "";
    for (const file of files) {
      const kind = kindOf(file.type);
      if (!this.kinds.includes(kind)) {
        const takes = this.kinds.length ? `takes ${this.kinds.join(", ")}` : "reads text alone";
        problem = `${file.name || "what was dropped"} is ${file.type || "of an unknown type"}; this model ${takes}`;
        break;
      }
      const part = partOf(kind, await read(file));
      if (size([...this.#parts, ...added, part]) > MOST_BYTES) {
        problem = `${file.name} is too large: a message carries ${MOST_BYTES >> 20} MiB at the most`;
        break;
      }
      added.push(part);
    }
    if (added.length) this.set([...this.#parts, ...added]);
    return problem;
  }

  set(parts) {
    this.#parts = parts;
    this.#list.replaceChildren(...parts.map((part, number) => this.#item(part, number)));
    this.#list.hidden = parts.length === 0;
    this.#costs = parts.length ? this.#count(parts) : Promise.resolve([]);
  }

  // What is to be sent, and a promise of what each part costs.
  take() {
    const taken = { parts: this.#parts, costs: this.#costs };
    this.set([]);
    return taken;
  }

  async #count(parts) {
    const costs = await this.price(parts);
    if (parts === this.#parts) showCosts(this.#list, costs);
    return costs;
  }

  get isEmpty() {
    return this.#parts.length === 0;
  }

  #item(part, number) {
    const remove = button("×", () => this.set(this.#parts.filter((each) => each !== part)));
    remove.ariaLabel = `Remove ${KINDS[part.type]} ${number + 1}`;
    return make("li", {}, figure(part, number), remove);
  }
}
