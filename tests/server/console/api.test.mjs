import assert from "node:assert/strict";
import { test } from "node:test";
import {
  ApiError,
  ask,
  BrokenStream,
  streamChat,
  Unreachable,
} from "../../../hybridgen/server/console_page/api.mjs";

const CHUNK = (delta, reason = null) =>
  `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: reason }], usage: null })}\n\n`;
const USAGE = `data: ${JSON.stringify({ choices: [], usage: { completion_tokens: 2, total_tokens: 5 } })}\n\n`;
const DONE = "data: [DONE]\n\n";
const ERROR = { message: "no room", type: "server_error", param: null, code: "queue_full" };

/** A fetch whose answer comes in `pieces`; an Error among them breaks the connection. */
function answering(pieces, { status = 200, headers = {}, seen = {} } = {}) {
  return async (path, options) => {
    Object.assign(seen, { path, ...options });
    const stream = new ReadableStream({
      pull(controller) {
        const piece = pieces.shift();
        if (piece === undefined) controller.close();
        else if (piece instanceof Error) controller.error(piece);
        else controller.enqueue(new TextEncoder().encode(piece));
      },
    });
    return new Response(stream, { status, headers });
  };
}

async function collect(pieces, options = {}) {
  let clock = 0;
  const reads = [];
  let error = null;
  try {
    const now = () => (clock += 10);
    const given = { fetch: answering(pieces, options), now, signal: options.signal };
    for await (const read of streamChat({ model: "demo" }, given)) reads.push(read);
  } catch (caught) {
    error = caught;
  }
  const text = reads
    .flatMap((read) => read.events)
    .map((event) => event.text)
    .join("");
  return { reads, text, error };
}

test("a stream is read to its end, with times, reason and usage", async () => {
  const pieces = [
    CHUNK({ role: "assistant", content: "" }) + CHUNK({ content: "Hé" }),
    CHUNK({ content: "llo" }),
    CHUNK({}, "stop") + USAGE + DONE,
  ];
  const { reads, text, error } = await collect(pieces);
  assert.equal(error, null);
  assert.equal(text, "Héllo");
  assert.deepEqual(
    reads.map((read) => read.atMs),
    [10, 20, 30],
  );
  const last = reads.at(-1).events;
  assert.equal(last[0].finishReason, "stop");
  assert.equal(last[1].usage.completion_tokens, 2);
});

test("reasoning comes beside the text", async () => {
  const pieces = [CHUNK({ reasoning_content: "Hm" }) + CHUNK({ content: "Hi" }) + DONE];
  const { reads, text } = await collect(pieces);
  assert.equal(text, "Hi");
  assert.deepEqual(
    reads[0].events.map((event) => event.reasoning),
    ["Hm", ""],
  );
});

test("a character may be cut in two", async () => {
  const bytes = new TextEncoder().encode(CHUNK({ content: "é😀" }) + DONE);
  const pieces = [...bytes].map((byte) => Uint8Array.of(byte));
  const fetch = async () =>
    new Response(
      new ReadableStream({
        pull: (c) => (pieces.length > 0 ? c.enqueue(pieces.shift()) : c.close()),
      }),
    );
  const texts = [];
  for await (const { events } of streamChat({}, { fetch }))
    texts.push(events.map((event) => event.text).join(""));
  assert.equal(texts.join(""), "é😀");
});

test("a stream without its end is broken, and what came of it is kept", async () => {
  for (const ending of [[], [new TypeError("network")]]) {
    const { text, error } = await collect([CHUNK({ content: "half" }), ...ending]);
    assert.equal(text, "half");
    assert.ok(error instanceof BrokenStream, String(error));
  }
  const { error } = await collect([CHUNK({ content: "half" }), "data: {\n\n"]);
  assert.ok(error instanceof BrokenStream);
});

test("an error in mid-stream is the server's own, after the text before it", async () => {
  const { text, error } = await collect([
    `${CHUNK({ content: "half" })}data: ${JSON.stringify({ error: ERROR })}\n\n`,
  ]);
  assert.equal(text, "half");
  assert.ok(error instanceof ApiError);
  assert.ok(error.isMidStream);
  assert.equal(error.message, "no room");
  assert.equal(error.code, "queue_full");
});

test("a refusal carries message, parameter, status and when to come back", async () => {
  const refusal = { ...ERROR, param: "top_p" };
  const options = { status: 429, headers: { "retry-after": "3" } };
  const { error } = await collect([JSON.stringify({ error: refusal })], options);
  assert.ok(error instanceof ApiError && !error.isMidStream);
  assert.deepEqual(
    [error.message, error.param, error.status, error.retryAfterS],
    ["no room", "top_p", 429, 3],
  );
});

test("an answer that is not of this API is an error with its status", async () => {
  const { error } = await collect(["<html>"], { status: 502 });
  assert.ok(error instanceof ApiError);
  assert.match(error.message, /502/);
});

test("no answer is no answer, and a stop is neither", async () => {
  const fetch = async () => {
    throw new TypeError("failed");
  };
  await assert.rejects(ask("/ps", { fetch }), Unreachable);
  const stop = new AbortController();
  stop.abort();
  await assert.rejects(ask("/ps", { fetch, signal: stop.signal }), TypeError);
  const { error } = await collect([CHUNK({ content: "a" }), new TypeError("aborted")], {
    signal: stop.signal,
  });
  assert.ok(error instanceof TypeError);
});

test("a key goes into the header, and a body makes a POST of JSON", async () => {
  const seen = {};
  await ask("/v1/models", { key: "abc", fetch: answering(["{}"], { seen }) });
  assert.equal(seen.method, "GET");
  assert.deepEqual(seen.headers, { Authorization: "Bearer abc" });
  await ask("/x", { body: { a: 1 }, fetch: answering(["{}"], { seen }) });
  assert.equal(seen.method, "POST");
  assert.deepEqual(seen.headers, { "Content-Type": "application/json" });
  assert.equal(seen.body, '{"a":1}');
});
