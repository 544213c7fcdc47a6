import assert from "node:assert/strict";
import { test } from "node:test";
import {
  percentile,
  Recent,
  StreamTiming,
} from "../../../hybridgen/server/console_page/statistics.mjs";

test("a percentile lies between its neighbours", () => {
  assert.equal(percentile([], 0.5), null);
  assert.equal(percentile([7], 0.99), 7);
  assert.equal(percentile([10, 2, 9], 0.5), 9);
  assert.equal(percentile([1, 2, 3, 4], 0.5), 2.5);
  assert.equal(percentile([1, 2, 3, 4], 1), 4);
});

test("recent items are the last ones", () => {
  const recent = new Recent(3);
  recent.push(1, 2);
  recent.push(3, 4);
  assert.deepEqual(recent.items, [2, 3, 4]);
});

test("a stream's times are measured from its request and its first piece", () => {
  const timing = new StreamTiming(1000);
  assert.equal(timing.firstTokenMs, null);
  assert.equal(timing.tokensPerS, null);
  assert.equal(timing.pieces(1040, 1), null);
  assert.equal(timing.firstTokenMs, 40);
  assert.equal(timing.pieces(1060, 1), 20);
  assert.equal(timing.pieces(1140, 4), 80); // pieces that come together were waited for once
  assert.equal(timing.tokensPerS, 50);
  timing.numTokens = 11; // as the server counted
  assert.equal(timing.tokensPerS, 100);
});

test("one read has no rate", () => {
  const timing = new StreamTiming(0);
  timing.pieces(10, 5);
  assert.equal(timing.tokensPerS, null);
});
