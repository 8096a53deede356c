// openai from npm against `heddle serve`.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const OpenAI = require("openai").default;
const { version } = JSON.parse(readFileSync("node_modules/openai/package.json", "utf8"));
const { HEDDLE_URL: url, HEDDLE_KEY: key } = process.env;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: "Grüße 🙂" }];
const schema = {
  type: "object",
  properties: { a: { type: "integer", minimum: 0, maximum: 99 }, b: { enum: ["x", "y"] } },
  required: ["a", "b"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "add", parameters: schema } }];
const chat = (more) => client.chat.completions.create({ model: "gpt", messages, max_tokens: 12, temperature: 0, ...more });
const text = (more) => client.completions.create({ model: "lstm", prompt: "Grüße", max_tokens: 9, temperature: 0, ...more });

function want(truth, found) {
  if (!truth) throw new Error("found " + JSON.stringify(found));
}
async function check(what, run) {
  let fault;
  try {
    await run();
  } catch (error) {
    fault = `${error.name}: ${error.message}`.slice(0, 300);
  }
  console.log(JSON.stringify({ client: "openai (npm)", version, check: what, ok: fault === undefined, fault }));
}
async function refused(status, words, call) {
  try {
    await call();
  } catch (error) {
    want(error.status === status && error.message.includes(words), error.message);
    return;
  }
  throw new Error("no error");
}

await check("chat, with usage and a finish reason", async () => {
  const found = await chat();
  want(found.usage.completion_tokens === 12 && found.choices[0].finish_reason === "length", found);
});
await check("streamed chat is the whole one, with usage", async () => {
  let streamed = "", used;
  for await (const piece of await chat({ stream: true, stream_options: { include_usage: true } })) {
    streamed += piece.choices[0]?.delta.content ?? "";
    used = piece.usage ?? used;
  }
  want(streamed === (await chat()).choices[0].message.content && used.completion_tokens === 12, streamed);
});
await check("seed, null, n, stop, bias and log-probabilities", async () => {
  const texts = [];
  for (let i = 0; i < 2; i++) texts.push((await chat({ temperature: 0.9, seed: 5 })).choices[0].message.content);
  want(texts[0] === texts[1], texts);
  want((await chat({ n: 3, temperature: 1, seed: null, stop: null })).choices.length === 3);
  const { logprobs } = (await chat({ logprobs: true, top_logprobs: 2 })).choices[0];
  want(logprobs.content.length === 12 && logprobs.content[0].top_logprobs.length === 2, logprobs);
  want(!(await chat({ logit_bias: { 122: 100 }, stop: ["z"] })).choices[0].message.content.includes("z"));
});
await check("structured output by json_schema", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const found = JSON.parse((await chat({ response_format, max_tokens: 200 })).choices[0].message.content);
  want(Object.keys(found).sort().join() === "a,b", found);
});
await check("a forced tool call by the stream helper, and one that is cut", async () => {
  const runner = client.chat.completions.stream({
    model: "gpt", messages, tools, tool_choice: "required", max_tokens: 200, seed: 2, temperature: 0,
  });
  const [choice] = (await runner.finalChatCompletion()).choices;
  want(choice.finish_reason === "tool_calls" && choice.message.tool_calls[0].function.name === "add", choice);
  JSON.parse(choice.message.tool_calls[0].function.arguments);
  const cut = (await chat({ tools, tool_choice: "required", max_tokens: 3 })).choices[0];
  want(cut.finish_reason === "length" && !cut.message.tool_calls?.length, cut);
});
await check("completions, streamed, of several prompts and ids, with echo", async () => {
  const whole = (await text()).choices[0].text;
  let streamed = "";
  for await (const piece of await text({ stream: true })) streamed += piece.choices[0]?.text ?? "";
  want(streamed === whole, streamed);
  want((await text({ prompt: ["Grüße", "b"] })).choices[0].text === whole);
  const scored = (await text({ prompt: [[256, 97, 98]], echo: true, logprobs: 1, max_tokens: 1 })).choices[0];
  want(scored.logprobs.token_logprobs[0] === null && scored.logprobs.token_logprobs.length === 4, scored);
});
await check("embeddings, as base64 by default", async () => {
  const found = await client.embeddings.create({ model: "gpt", input: ["ab", "c"] });
  const floats = await client.embeddings.create({ model: "gpt", input: ["ab", "c"], encoding_format: "float" });
  want(found.data[1].embedding.length === 64);
  want(Math.abs(found.data[1].embedding[0] - floats.data[1].embedding[0]) < 1e-6, found.data[1].embedding[0]);
});
await check("models, one of them, and errors of their kinds", async () => {
  const ids = [];
  for await (const one of client.models.list()) ids.push(one.id);
  want(ids.includes("gpt") && (await client.models.retrieve("lstm")).id === "lstm", ids);
  await refused(404, "model: want one of", () => chat({ model: "other" }));
  await refused(400, "bogus: not a field", () => chat({ bogus: 1 }));
  const wrong = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  await refused(401, "authorization", () => wrong.models.list());
});
await check("a client that aborts a stream leaves the server well", async () => {
  const stream = await chat({ stream: true, max_tokens: 300 });
  for await (const piece of stream) if (piece) break;
  stream.controller.abort();
  want((await chat()).usage.completion_tokens === 12);
});
