// A client that is typed by what the server says of itself.
import createClient from "openapi-fetch";
import type { paths } from "./api.ts";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });
const chat = await client.POST("/v1/chat/completions", {
  body: { messages: [{ role: "user", content: "Hello" }], max_tokens: 8 },
});
if (chat.error !== undefined) throw new Error(chat.error.error.message);
if (!("choices" in chat.data)) throw new Error("a stream that nobody asked for");
const text: string | null = chat.data.choices[0].message.content;
const tokens: number = chat.data.usage.completion_tokens;
if (!text || tokens !== 8) throw new Error(`${text}: ${tokens} tokens`);

const refused = await client.POST("/v1/completions", { body: { prompt: "x", top_p: 5 } });
if (refused.error?.error.param !== "top_p") throw new Error("no refusal");
const models = await client.GET("/v1/models");
if (models.data?.data[0].id !== "demo") throw new Error("no model");
console.log("done");
