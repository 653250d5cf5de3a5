// The playground: keys and buttons of the page, and what the server says of its model.

import { call, whatFailed } from "/page/api.js";
import { Chat, say } from "/page/chat.js";
import { Conversations } from "/page/conversations.js";
import { $, button, make } from "/page/elements.js";
import { EngineView } from "/page/engine_view.js";
import { Attachments } from "/page/media.js";
import { Settings } from "/page/settings.js";

const attachments = new Attachments($("attachments"));
const conversations = new Conversations();
const settings = new Settings($("settings"));
const chat = new Chat(conversations, attachments, settings);

// ---- writing ---------------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  chat.send($("input").value.trim());
});
$("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  chat.send($("input").value.trim());
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) chat.stop();
});
$("stop").addEventListener("click", () => chat.stop());
for (const offer of $("welcome").querySelectorAll("button")) {
  offer.addEventListener("click", () => chat.send(offer.textContent));
}

// ---- attachments -----------------------------------------------------------------------------

async function attach(files) {
  const refused = await attachments.add(files).catch((error) => error.message);
  say(refused, Boolean(refused));
  $("input").focus();
}

$("input").addEventListener("paste", (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach([...event.clipboardData.files]);
});
// Anywhere: a browser leaves the page for a file that is dropped beside its place.
function dragged(event, is) {
  if (!event.dataTransfer.types.includes("Files")) return false;
  event.preventDefault();
  $("form").classList.toggle("dropping", is);
  return true;
}
document.addEventListener("dragover", (event) => dragged(event, true));
document.addEventListener("dragleave", (event) => event.relatedTarget ?? dragged(event, false));
document.addEventListener("drop", (event) => dragged(event, false) && attach([...event.dataTransfer.files]));
$("attach").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  attach([...$("file").files]);
  $("file").value = "";
});

// ---- chats, settings, engine -----------------------------------------------------------------

function listChats() {
  const chats = conversations.list();
  $("chats").querySelector("ol").replaceChildren(...chats.map(({ id, title, changed }) => {
    const open = button(title, () => {
      chat.open(id);
      $("chats").close();
    });
    open.title = new Date(changed).toLocaleString();
    const remove = button("Delete", () => {
      if (conversations.isCurrent(id)) chat.begin();
      conversations.remove(id);
      listChats();
    });
    remove.setAttribute("aria-label", `Delete ${title}`);
    return make("li", {}, open, remove);
  }));
  $("chats").querySelector("p").hidden = chats.length > 0;
}

// Where there is no place beside the conversation, one of the two lies over it.
const isWide = matchMedia("(min-width: 46.01rem)");

function showSettings(are) {
  $("settings").hidden = !are;
  $("toggle").setAttribute("aria-expanded", String(are));
  if (are && !isWide.matches) showEngine(false);
}

function showEngine(is) {
  engine.show(is);
  $("watch").setAttribute("aria-expanded", String(is));
  if (is && !isWide.matches) showSettings(false);
}

$("clear").addEventListener("click", () => chat.begin());
$("history").addEventListener("click", () => {
  listChats();
  $("chats").showModal();
});
$("toggle").addEventListener("click", () => showSettings($("settings").hidden));
const engine = new EngineView($("engine"), async () => (await call("/cache_map")).json());
$("watch").addEventListener("click", () => showEngine($("engine").hidden));
showSettings(isWide.matches);
$("chat").addEventListener("pointerdown", () => {
  if (isWide.matches) return;
  showSettings(false);
  showEngine(false);
});
$("base").textContent = `${location.origin}/v1`;
chat.recall();

try {
  const [model] = (await (await call("/v1/models")).json()).data;
  chat.context = model.max_model_len;
  settings.describe(model);
  attachments.kinds = model.input_modalities.filter((kind) => kind !== "text");
  $("attach").hidden = attachments.kinds.length === 0;
  $("file").accept = attachments.kinds.map((kind) => `${kind}/*`).join(",");
  $("model").textContent = model.id;
  $("model").title = `takes ${chat.context} tokens`;
} catch (error) {
  say(whatFailed(error), true);
}
