// A picture of the engine at work: sequences that run, the KV cache span by span, and two curves.

import { make } from "/page/elements.js";

const PAUSE_MS = 500;
const SAMPLES = 120; // a minute
const MOST_LISTED = 12;

// Sequences with neighbouring numbers get hues far apart.
const colourOf = ({ number }) => `hsl(${(number * 137.508) % 360} 65% 50%)`;

// A line across a cell.
function stroke(pen, colour, left, top, side) {
  pen.strokeStyle = colour;
  pen.lineWidth = side / 5;
  pen.beginPath();
  pen.moveTo(left, top + side);
  pen.lineTo(left + side, top);
  pen.stroke();
}

// A canvas at the sharpness of the screen; what it shows is said in words, too.
function canvas(panel, name) {
  const found = panel.querySelector(`canvas#${name}`);
  const scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = found;
  found.width = width * scale;
  found.height = height * scale;
  const pen = found.getContext("2d");
  pen.scale(scale, scale);
  pen.clearRect(0, 0, width, height);
  const colour = (variable) => { // a variable alone may hold a function, which pens do not know
    found.style.color = `var(${variable})`;
    return getComputedStyle(found).color;
  };
  return { pen, width, height, colour, say: (text) => found.setAttribute("aria-label", text) };
}

export class EngineView {
  constructor(panel, load) {
    this.panel = panel;
    this.load = load; // returns a promise of what GET /cache_map answers
    this.samples = []; // tokens per second, the newest last
    this.before = null;
    this.timer = null;
    document.addEventListener("visibilitychange", () => this.schedule(0));
  }

  show(is) {
    this.panel.hidden = !is;
    this.schedule(0);
  }

  // Nothing is asked while nobody looks.
  schedule(pause = PAUSE_MS) {
    clearTimeout(this.timer);
    if (this.panel.hidden || document.hidden) return;
    this.timer = setTimeout(() => this.refresh(), pause);
  }

  async refresh() {
    try {
      const now = await this.load();
      this.say("");
      this.note(now);
      this.draw(now);
    } catch (error) {
      this.say(error.message);
    }
    this.schedule();
  }

  say(text) {
    this.panel.querySelector(".trouble").textContent = text;
  }

  note(now) {
    const before = this.before;
    this.before = now;
    if (!before || now.uptime_s <= before.uptime_s) return; // another server since
    const tokens = now.generated_tokens - before.generated_tokens;
    this.samples.push(tokens / (now.uptime_s - before.uptime_s));
    this.samples.splice(0, this.samples.length - SAMPLES);
  }

  draw(now) {
    const spans = now.groups.reduce((sum, group) => sum + group.num_spans, 0);
    const used = now.groups.reduce((sum, group) => sum + (group.states.match(/[23]/g) ?? []).length * group.spans_per_cell, 0);
    const seen = now.prefilled_tokens + now.prefix_hit_tokens;
    const rate = this.samples.at(-1) ?? 0;
    const figures = {
      "Running": now.running.length,
      "Waiting": now.waiting,
      "Tokens/s": rate.toFixed(0),
      "KV cache in use": `${Math.min(100, Math.round((100 * used) / (spans || 1)))} %`,
      "Prompt tokens cached": `${Math.round((100 * now.prefix_hit_tokens) / (seen || 1))} %`,
    };
    this.panel.querySelector("dl").replaceChildren(
      ...Object.entries(figures).map(([name, value]) =>
        make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value }))),
    );
    this.drawRate();
    this.drawSpans(now, used, spans);
    this.drawFirstTokens(now.first_token_seconds);
    this.list(now);
  }

  drawRate() {
    const { pen, width, height, colour, say } = canvas(this.panel, "rate");
    const most = Math.max(1, ...this.samples);
    const x = (index) => (width * (index + SAMPLES - this.samples.length)) / (SAMPLES - 1);
    pen.beginPath();
    pen.moveTo(x(0), height);
    this.samples.forEach((rate, index) => pen.lineTo(x(index), height - (rate / most) * (height - 2)));
    pen.lineTo(width, height);
    pen.fillStyle = colour("--mark");
    pen.fill();
    say(`Tokens per second over the last minute: now ${(this.samples.at(-1) ?? 0).toFixed(0)}, at most ${most.toFixed(0)}`);
  }

  // Cells in rows, groups one below the other; a sequence keeps its colour while it runs.
  drawSpans(now, used, spans) {
    const { pen, width, height, colour, say } = canvas(this.panel, "spans");
    const total = now.groups.reduce((sum, group) => sum + group.states.length, 0);
    const side = Math.max(2, Math.floor(Math.sqrt((width * height) / (total + 40 * now.groups.length))));
    const columns = Math.floor(width / side);
    const dot = Math.max(1, side - 1);
    const [soft, line, card, text] = ["--soft", "--line", "--card", "--text"].map(colour);
    let top = 0;
    for (const group of now.groups) {
      [...group.states].forEach((state, cell) => {
        const left = (cell % columns) * side;
        const down = top + Math.floor(cell / columns) * side;
        const owner = now.running[group.owners[cell]];
        const free = state === "1" ? soft : line;
        const isShared = state === "3"; // of no sequence alone: no hue, and a stroke across
        pen.fillStyle = isShared ? text : owner ? colourOf(owner) : free;
        pen.fillRect(left, down, dot, dot);
        if (isShared) stroke(pen, card, left, down, dot);
      });
      top += (Math.ceil(group.states.length / columns) + 1) * side;
    }
    const shared = now.groups.reduce((sum, group) => sum + (group.states.match(/3/g) ?? []).length * group.spans_per_cell, 0);
    say(`KV cache: ${Math.min(used, spans)} of ${spans} spans in use, ${Math.min(shared, spans)} of them shared, by ${now.running.length} sequences`);
    const each = now.groups[0]?.spans_per_cell ?? 1;
    this.panel.querySelector(".scale").textContent =
      `A cell is ${each === 1 ? "a span" : `${each} spans`} of ${now.span_len} tokens.`;
  }

  drawFirstTokens({ bounds, counts }) {
    const { pen, width, height, colour, say } = canvas(this.panel, "first");
    const most = Math.max(1, ...counts);
    const step = width / counts.length;
    const [line, mark] = ["--line", "--mark"].map(colour);
    counts.forEach((count, index) => {
      const size = (count / most) * (height - 2);
      pen.fillStyle = line;
      pen.fillRect(index * step, height - 1, step - 1, 1);
      pen.fillStyle = mark;
      pen.fillRect(index * step, height - size, step - 1, size);
    });
    const all = counts.reduce((sum, count) => sum + count, 0);
    let passed = 0;
    const middle = counts.findIndex((count) => (passed += count) * 2 >= all);
    const median = bounds[middle] === undefined ? `more than ${bounds.at(-1)}` : `at most ${bounds[middle]}`;
    const said = all ? `Half of ${all} first tokens took ${median} s` : "No first token yet";
    say(`${said}; bars by time, from ${bounds[0]} s to ${bounds.at(-1)} s`);
    this.panel.querySelector(".median").textContent = said;
    const ends = [`${bounds[0]} s`, `${bounds.at(-1)} s`];
    this.panel.querySelectorAll(".axis span").forEach((end, at) => { end.textContent = ends[at]; });
  }

  list(now) {
    const lines = now.running.slice(-MOST_LISTED).reverse().map((seq) => {
      const mark = make("i");
      mark.style.background = colourOf(seq);
      const cached = seq.cached_tokens ? `, ${seq.cached_tokens} cached` : "";
      const state = seq.decoding ? `${seq.output_tokens} of answer` : "prompt";
      return make("li", {}, mark, `${seq.prompt_tokens} of prompt${cached}, ${state}`);
    });
    const rest = now.running.length - lines.length;
    if (rest > 0) lines.push(make("li", { textContent: `and ${rest} more` }));
    this.panel.querySelector("ul").replaceChildren(...lines);
  }
}
