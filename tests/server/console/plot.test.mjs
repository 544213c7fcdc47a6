import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../../../hybridgen/server/console_page/format.mjs";
import {
  decades,
  envelope,
  linear,
  logarithmic,
  niceCeiling,
  path,
  ticks,
} from "../../../hybridgen/server/console_page/scale.mjs";

test("axes end at round numbers", () => {
  assert.equal(niceCeiling(0.037), 0.05);
  assert.equal(niceCeiling(100), 100);
  assert.equal(niceCeiling(0), 1);
  assert.deepEqual(ticks(47), [0, 20, 40, 60]);
  assert.deepEqual(ticks(60), [0, 20, 40, 60]);
  assert.equal(ticks(3)[0], 0);
});

test("decades hold the values, one at least", () => {
  assert.deepEqual(decades(12, 45), [10, 100]);
  assert.deepEqual(decades(10, 1000), [10, 100, 1000]);
  assert.deepEqual(decades(10, 10), [10, 100]);
  assert.deepEqual(decades(0.5, 3), [0.1, 1, 10]);
});

test("equal ratios are equal steps", () => {
  const y = logarithmic(1, 100, 80, 0);
  assert.deepEqual(
    [1, 10, 100, 0, 1e9].map((value) => Math.round(y(value))),
    [80, 40, 0, 80, 0],
  );
});

test("values are mapped, and kept inside", () => {
  const y = linear(0, 10, 100, 0);
  assert.equal(y(5), 50);
  assert.equal(y(99), 0);
  assert.equal(linear(3, 3, 0, 1)(3), 0);
});

test("a path is lifted where a point is missing", () => {
  assert.equal(path([[0, 1], [2, 3], null, [4, 5]]), "M0.0 1.0L2.0 3.0M4.0 5.0");
  assert.equal(path([]), "");
});

test("thinning keeps every extreme, the order and the gaps", () => {
  const points = Array.from({ length: 10_000 }, (_, i) => [
    i / 100,
    i === 4321 ? 99 : i === 77 ? -9 : i % 7,
  ]);
  const kept = envelope([...points, null, [100, 1]], 100, 50);
  assert.ok(kept.length <= 50 * 4 + 5, `${kept.length}`);
  const values = kept.filter((point) => point !== null).map((point) => point[1]);
  assert.equal(Math.max(...values), 99);
  assert.equal(Math.min(...values), -9);
  const places = kept.filter((point) => point !== null).map((point) => point[0]);
  assert.deepEqual(
    places,
    [...places].sort((a, b) => a - b),
  );
  assert.deepEqual(kept.slice(-2), [null, [100, 1]]);
  assert.deepEqual(
    envelope(
      [
        [0, 1],
        [50, 2],
      ],
      100,
      50,
    ),
    [
      [0, 1],
      [50, 2],
    ],
  );
});

test("numbers read as people write them", () => {
  assert.equal(format.duration(0.0123), "12.3 µs");
  assert.equal(format.duration(19.84), "19.8 ms");
  assert.equal(format.duration(2500), "2.50 s");
  assert.equal(format.duration(null), "–");
  assert.equal(format.rate(51.234), "51.2");
  assert.equal(format.rate(0), "0");
  assert.equal(format.bytes(512), "512 B");
  assert.equal(format.bytes(45_000_000), "42.9 MiB");
  assert.equal(format.count(undefined), "–");
  assert.equal(format.count(4096), "4\u202f096");
  assert.equal(format.cores([2, 0, 1, 5]), "0–2, 5");
  assert.equal(format.age(59.9), "59 s");
  assert.equal(format.age(3720), "1 h 2 min");
  assert.equal(format.age(3 * 86_400), "3 d");
});
