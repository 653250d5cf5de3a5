// OpenAI's client for Node: whole answers, streams, and responses.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me a fable about a fox." }];
const asked = { model: "demo", messages, max_tokens: 20, seed: 1 };

const whole = await client.chat.completions.create(asked);
let streamed = "";
for await (const event of await client.chat.completions.create({ ...asked, stream: true })) {
  streamed += event.choices[0]?.delta.content ?? "";
}
assert.equal(streamed, whole.choices[0].message.content);

const response = await client.responses.create({ model: "demo", input: "Hello", max_output_tokens: 20 });
assert.ok(response.output_text);
const last = [];
for await (const event of await client.responses.create({ model: "demo", input: "Hello", max_output_tokens: 20, stream: true })) {
  last.push(event.type);
}
assert.match(last.at(-1), /^response\.(completed|incomplete)$/);
await assert.rejects(client.chat.completions.create({ ...asked, top_p: 5 }), OpenAI.BadRequestError);
console.log("done");
