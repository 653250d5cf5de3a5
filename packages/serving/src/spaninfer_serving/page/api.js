// The server's API: keys, errors as sentences, streams of events.

let key = sessionStorage.getItem("key") ?? "";

function headers() {
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `the server answered ${response.status}`);
}

// Of a network that fails, fetch and streams say no more than that it is a TypeError.
export function whatFailed(error) {
  return error instanceof TypeError ? "the server does not answer; is it still running?" : error.message;
}

const secret = () => document.getElementById("secret");

async function askKey() {
  secret().value = "";
  document.getElementById("key").showModal();
  await new Promise((done) => document.getElementById("key").addEventListener("close", done, { once: true }));
  if (!secret().value) throw new Error("this server cannot be used without its key");
  key = secret().value;
  sessionStorage.setItem("key", key);
}

export async function call(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: headers() });
    if (response.ok) return response;
    if (response.status !== 401) throw await failure(response);
    await askKey();
  }
}

export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ") || part === "data: [DONE]") continue; // a comment keeps alive
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
