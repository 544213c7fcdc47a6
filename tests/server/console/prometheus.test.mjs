import assert from "node:assert/strict";
import { test } from "node:test";
import { bucketsOf, quantile, since } from "../../../hybridgen/server/console_page/prometheus.mjs";

const PAGE = `# HELP gap_seconds Time between tokens.
# TYPE gap_seconds histogram
gap_seconds_bucket{le="0.01"} 10
gap_seconds_bucket{le="0.1"} 30.0
gap_seconds_bucket{le="+Inf"} 40 1700000000
gap_seconds_count 40
other_bucket{le="1"} 7
`;
const BUCKETS = [
  [0.01, 10],
  [0.1, 30],
  [Infinity, 40],
];

test("buckets are read from a page", () => {
  assert.deepEqual(bucketsOf(PAGE, "gap_seconds"), BUCKETS);
  assert.deepEqual(bucketsOf(PAGE, "gap"), []);
  assert.deepEqual(bucketsOf("", "gap_seconds"), []);
});

test("quantiles lie within their bucket", () => {
  assert.equal(quantile(BUCKETS, 0.25), 0.01);
  assert.ok(Math.abs(quantile(BUCKETS, 0.5) - 0.055) < 1e-12);
  assert.equal(quantile(BUCKETS, 0.99), 0.1);
  assert.equal(quantile([], 0.5), null);
  assert.equal(
    quantile(
      [
        [1, 0],
        [Infinity, 0],
      ],
      0.5,
    ),
    null,
  );
});

test("only what was added counts, unless counting began anew", () => {
  assert.deepEqual(
    since(BUCKETS, [
      [0.01, 10],
      [0.1, 20],
      [Infinity, 30],
    ]),
    [
      [0.01, 0],
      [0.1, 10],
      [Infinity, 10],
    ],
  );
  assert.deepEqual(since(BUCKETS, []), BUCKETS);
  assert.deepEqual(
    since(BUCKETS, [
      [0.01, 99],
      [0.1, 99],
      [Infinity, 99],
    ]),
    BUCKETS,
  );
});
