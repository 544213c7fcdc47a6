// What OpenAI's package for Node must find at a server.
//
//     node openai_cases.mjs http://127.0.0.1:8080/v1 KEY FOLDER-OF-NODE-MODULES
//
// Prints one line of JSON per case: its name, and what failed.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [baseURL, apiKey, folder] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)("openai").default;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const SHORT = {
  model: "mock",
  messages: [{ role: "user", content: "Hello" }],
  seed: 7,
  max_tokens: 24,
};
const LONG = { ...SHORT, max_tokens: 1500, min_tokens: 1500 };
const NUM_FILLING = 10; // what the server has room for, running and waiting

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

function streamedText(chunks) {
  return chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
}

async function numRunning() {
  const facts = await (await fetch(baseURL.replace(/v1$/, "health"))).json();
  return facts.num_running + facts.num_waiting;
}

async function untilRunning(isWanted, timeoutMs = 2000) {
  const ends = Date.now() + timeoutMs;
  while (!isWanted(await numRunning())) {
    assert(Date.now() < ends, "requests did not start or end in time");
  }
}

const isIdle = (num) => num === 0;

async function models_are_listed() {
  const models = await collect(client.models.list());
  assert.deepEqual(models.map((model) => model.id), ["mock"]);
}

async function a_stream_is_the_whole_answer() {
  const whole = await client.chat.completions.create(SHORT);
  const options = { ...SHORT, stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await client.chat.completions.create(options));
  assert.equal(streamedText(chunks), whole.choices[0].message.content);
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
  assert.equal(chunks.at(-2).choices[0].finish_reason, whole.choices[0].finish_reason);
}

async function the_stream_helper_reads_events() {
  const stream = client.chat.completions.stream(SHORT);
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, text);
}

async function texts_are_continued() {
  const options = { model: "mock", prompt: ["Once", "Twice"], max_tokens: 16, seed: 7 };
  const whole = await client.completions.create(options);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1]);
  const chunks = await collect(await client.completions.create({ ...options, stream: true }));
  for (const { index, text } of whole.choices) {
    const pieces = chunks.flatMap((chunk) => chunk.choices).filter((one) => one.index === index);
    assert.equal(pieces.map((piece) => piece.text).join(""), text);
  }
}

async function raw_answers_carry_the_request_id() {
  const headers = { "X-Request-Id": "my-own-id" };
  const asked = client.chat.completions.create(SHORT, { headers });
  const { data, response, request_id } = await asked.withResponse();
  assert.equal(request_id, "my-own-id");
  assert.equal(response.status, 200);
  assert(data.id.endsWith("my-own-id"));
}

async function a_tool_is_called_as_asked() {
  const parameters = {
    type: "object",
    properties: { city: { type: "string", maxLength: 12 } },
    required: ["city"],
    additionalProperties: false,
  };
  const tools = [{ type: "function", function: { name: "get_weather", parameters, strict: true } }];
  const options = { ...SHORT, max_tokens: 400, tools, tool_choice: "required" };
  const whole = await client.chat.completions.create(options);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const called = whole.choices[0].message.tool_calls[0].function;
  assert.equal(called.name, "get_weather");
  const streamed = await client.chat.completions.stream(options).finalChatCompletion();
  const again = streamed.choices[0].message.tool_calls[0].function;
  assert.deepEqual(JSON.parse(again.arguments), JSON.parse(called.arguments));
}

async function an_answer_is_parsed() {
  const schema = {
    type: "object",
    properties: { colour: { enum: ["red", "green"] } },
    required: ["colour"],
    additionalProperties: false,
  };
  const response_format = { type: "json_schema", json_schema: { name: "point", schema } };
  const whole = await client.chat.completions.create({ ...SHORT, max_tokens: 200, response_format });
  assert(["red", "green"].includes(JSON.parse(whole.choices[0].message.content).colour));
}

async function many_at_once_are_each_their_own() {
  const asked = [...Array(6).keys()].map(async (n) => {
    const options = { ...SHORT, messages: [{ role: "user", content: `number ${n}` }] };
    const whole = await client.chat.completions.create(options);
    const stream = await client.chat.completions.create({ ...options, stream: true });
    assert.equal(streamedText(await collect(stream)), whole.choices[0].message.content);
    return whole.choices[0].message.content;
  });
  assert.equal(new Set(await Promise.all(asked)).size, 6);
}

async function a_stream_left_early_frees_its_place() {
  const stream = await client.chat.completions.create({ ...LONG, stream: true });
  for await (const _ of stream) break;
  await untilRunning(isIdle);
}

async function an_abort_frees_its_place() {
  const controller = new AbortController();
  const asked = client.chat.completions.create(LONG, { signal: controller.signal });
  await untilRunning((num) => num === 1);
  controller.abort();
  await assert.rejects(asked, OpenAI.APIUserAbortError);
  await untilRunning(isIdle);
}

async function a_time_limit_ends_the_request() {
  const asked = client.chat.completions.create(LONG, { timeout: 300 });
  await assert.rejects(asked, OpenAI.APIConnectionTimeoutError);
  await untilRunning(isIdle);
}

async function errors_have_their_classes_and_name_the_parameter() {
  const create = (options) => client.chat.completions.create({ ...SHORT, ...options });
  for (const [key, value] of Object.entries({ temperature: -1, n: 0, surprise: 1 })) {
    await assert.rejects(create({ [key]: value }), (error) => {
      assert(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, key);
      assert(error.code && error.type === "invalid_request_error");
      return true;
    });
  }
  await assert.rejects(create({ model: "another" }), OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(collect(stranger.models.list()), OpenAI.AuthenticationError);
  const lost = new OpenAI({ baseURL: "http://127.0.0.1:9/v1", apiKey, maxRetries: 0 });
  await assert.rejects(collect(lost.models.list()), OpenAI.APIConnectionError);
}

async function a_full_server_says_so_and_retries_succeed() {
  const controller = new AbortController();
  const { signal } = controller;
  const filling = [...Array(NUM_FILLING)].map(() =>
    client.chat.completions.create(LONG, { signal }).catch(() => null),
  );
  await untilRunning((num) => num === NUM_FILLING);
  await assert.rejects(client.chat.completions.create(SHORT), (error) => {
    assert(error instanceof OpenAI.RateLimitError);
    assert(Number(error.headers.get("retry-after")) >= 1);
    return true;
  });
  const whole = await client.chat.completions.create(SHORT, { maxRetries: 5 });
  assert(whole.choices[0].message.content);
  controller.abort();
  await Promise.all(filling);
  await untilRunning(isIdle);
}

const CASES = [
  models_are_listed,
  a_stream_is_the_whole_answer,
  the_stream_helper_reads_events,
  texts_are_continued,
  raw_answers_carry_the_request_id,
  a_tool_is_called_as_asked,
  an_answer_is_parsed,
  many_at_once_are_each_their_own,
  a_stream_left_early_frees_its_place,
  an_abort_frees_its_place,
  a_time_limit_ends_the_request,
  errors_have_their_classes_and_name_the_parameter,
  a_full_server_says_so_and_retries_succeed,
];

for (const run of CASES) {
  let problem = null;
  try {
    await run();
  } catch (error) {
    problem = error.stack ?? String(error);
  }
  console.log(JSON.stringify({ case: run.name, problem }));
}
