// Distributions from a page of metrics in Prometheus' text format.

/** Buckets of a histogram without labels of its own: [[upper bound, number up to there], …]. */
export function bucketsOf(page, name) {
  const buckets = [];
  const start = `${name}_bucket{`;
  for (const line of page.split("\n")) {
    if (!line.startsWith(start)) continue;
    const bound = line.match(/[{,]le="([^"]+)"/)?.[1];
    const number = Number(
      line
        .slice(line.lastIndexOf("}") + 1)
        .trim()
        .split(" ")[0],
    );
    if (bound !== undefined && Number.isFinite(number))
      buckets.push([bound === "+Inf" ? Infinity : Number(bound), number]);
  }
  return buckets.sort((a, b) => a[0] - b[0]);
}

/** What came on top of an earlier page; all of it when the counting began anew in between. */
export function since(buckets, earlier) {
  const numbers = new Map(earlier);
  const added = buckets.map(([bound, number]) => [bound, number - (numbers.get(bound) ?? 0)]);
  return added.some(([, number]) => number < 0) ? buckets : added;
}

/** The value below which the share `p` lies, linearly within its bucket; null without values. */
export function quantile(buckets, p) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  let [low, below] = [0, 0];
  for (const [bound, number] of buckets) {
    if (number >= p * total && number > below) {
      if (bound === Infinity) return low; // nobody knows how far beyond
      return low + (bound - low) * ((p * total - below) / (number - below));
    }
    [low, below] = [bound, number];
  }
  return low;
}
