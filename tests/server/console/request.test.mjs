import assert from "node:assert/strict";
import { test } from "node:test";
import {
  chatBody,
  FieldError,
  readParameters,
  summary,
} from "../../../hybridgen/server/console_page/request.mjs";

test("only what was given is sent", () => {
  const texts = {
    temperature: "0.7",
    top_p: "0,9",
    top_k: " 40 ",
    seed: "",
    stop: "END\n\n###\n",
    max_tokens: " ",
  };
  assert.deepEqual(readParameters(texts), {
    temperature: 0.7,
    top_p: 0.9,
    top_k: 40,
    stop: ["END", "###"],
  });
  assert.deepEqual(readParameters({}), {});
});

test("ranges are the server's to judge", () => {
  assert.deepEqual(readParameters({ temperature: "-1", seed: "-5", min_p: ".5", top_p: "7." }), {
    temperature: -1,
    min_p: 0.5,
    top_p: 7,
    seed: -5,
  });
  assert.deepEqual(readParameters({ temperature: "0.125", top_p: "1,05" }), {
    temperature: 0.125,
    top_p: 1.05,
  });
});

test("what is no number is named", () => {
  for (const [name, text] of [
    ["top_p", "much"],
    ["seed", "9007199254740993"],
    ["top_k", "1/0"],
    ["min_p", "Infinity"],
    ["max_tokens", "1,000"],
    ["max_tokens", "1.000"],
    ["top_k", "4.0"],
    ["seed", "1.5"],
    ["seed", "0x10"],
    ["temperature", "0x1"],
    ["temperature", "1,000"],
    ["temperature", "1.000,5"],
    ["top_p", "."],
  ]) {
    assert.throws(
      () => readParameters({ [name]: text }),
      (error) =>
        error instanceof FieldError && error.param === name && error.message.includes(name),
    );
  }
});

test("a body holds the system prompt first and asks for a stream with usage", () => {
  const turns = [{ role: "user", content: "Hi", extra: 1 }];
  assert.deepEqual(chatBody("demo", "Be brief.", turns, { seed: 7 }), {
    model: "demo",
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: "Hi" },
    ],
    seed: 7,
    stream: true,
    stream_options: { include_usage: true },
  });
  assert.ok(!JSON.stringify(chatBody("", "", turns, {})).includes("model"));
  assert.equal(chatBody("demo", "  ", turns, {}).messages.length, 1);
});

test("a summary names what is set", () => {
  assert.equal(
    summary({ temperature: 0, stop: ["a", "b"] }, "Be brief."),
    "system prompt · temperature 0 · stop ×2",
  );
  assert.match(summary({}, ""), /defaults/);
});
