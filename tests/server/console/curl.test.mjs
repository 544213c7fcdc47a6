import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { curlLine, shellQuote } from "../../../hybridgen/server/console_page/curl.mjs";

const HOSTILE = [
  "it's",
  "$(reboot)",
  "`x`",
  "a\\b",
  "new\nline",
  '"',
  "!x",
  "",
  "'",
  "''",
  "~",
  "é😀",
  "-n",
  "*",
];

test("a shell reads a quoted word as it was", () => {
  for (const word of HOSTILE) {
    const read = execFileSync("sh", ["-c", `printf %s ${shellQuote(word)}`], { encoding: "utf8" });
    assert.equal(read, word);
  }
});

test("plain words stay plain", () => {
  assert.equal(shellQuote("http://127.0.0.1:8080/v1"), "http://127.0.0.1:8080/v1");
});

test("the line passes on the very body, and the name of the key only", () => {
  const body = { messages: HOSTILE.map((content) => ({ role: "user", content })), stream: true };
  const line = curlLine("http://127.0.0.1/x", body, { hasKey: true });
  const script = `curl() { printf '%s\\0' "$@"; }; KEY=abc; ${line}`;
  const words = execFileSync("sh", ["-c", script], { encoding: "utf8" }).split("\0");
  assert.deepEqual(JSON.parse(words[words.indexOf("-d") + 1]), body);
  assert.ok(words.includes("Authorization: Bearer abc"));
  assert.ok(!curlLine("http://127.0.0.1/x", body).includes("Authorization"));
});
