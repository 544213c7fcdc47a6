import assert from "node:assert/strict";
import { test } from "node:test";
import { SseParser } from "../../../hybridgen/server/console_page/sse.mjs";

const STREAM = 'data: {"a":1}\n\n: a comment\nid: 7\ndata:two\ndata: lines\n\ndata\n\nevent: x\n\n';
const EVENTS = ['{"a":1}', "two\nlines", ""];

function parse(pieces) {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

test("events come out whole", () => {
  assert.deepEqual(parse([STREAM]), EVENTS);
});

test("a stream may be cut anywhere, whatever its line ends are", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const stream = `${STREAM.replaceAll("\n", end)}:${end}`; // a lone \r may be half of a \r\n
    for (let cut = 0; cut <= stream.length; cut++)
      assert.deepEqual(parse([stream.slice(0, cut), stream.slice(cut)]), EVENTS, `${cut}`);
    assert.deepEqual(parse([...stream]), EVENTS);
  }
});

test("an event that is not ended is not there yet", () => {
  assert.deepEqual(parse(["data: a\n"]), []);
  assert.deepEqual(parse(["data: a\n", "\n"]), ["a"]);
});
