// From values to places on a plot.

/** The next of 1, 2, 5 × 10ⁿ that is not below `value`. */
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((one) => one * power >= value * (1 - 1e-9));
  return step * power;
}

/** Places of horizontal lines from 0 to at least `max`, about `wanted` of them, evenly apart. */
export function ticks(max, wanted = 3) {
  const step = niceCeiling(max / wanted);
  const num = Math.max(1, Math.ceil(max / step - 1e-9));
  return Array.from({ length: num + 1 }, (_, index) => index * step);
}

/** Powers of ten: from the last that is not above `low` to the first that is not below `high`. */
export function decades(low, high) {
  const first = Math.floor(Math.log10(low) + 1e-9);
  const last = Math.max(first + 1, Math.ceil(Math.log10(high) - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
}

/** As `linear`, with equal steps for equal ratios. */
export function logarithmic(from, to, low, high) {
  const map = linear(Math.log(from), Math.log(to), low, high);
  return (value) => map(Math.log(Math.max(value, from)));
}

/** A function that maps [from, to] to [low, high], and stays within the latter. */
export function linear(from, to, low, high) {
  const span = to - from || 1;
  return (value) => low + (high - low) * Math.min(1, Math.max(0, (value - from) / span));
}

/** The `d` of a path through points; a null between them lifts the pen. */
export function path(points) {
  let isDown = false;
  const parts = [];
  for (const point of points) {
    if (point === null) {
      isDown = false;
      continue;
    }
    parts.push(`${isDown ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`);
    isDown = true;
  }
  return parts.join("");
}

/**
 * Thin out points to what `columns` columns of pixels can show: of each column its first, lowest,
 * highest and last. Points are [x, y] with rising x, or null; x runs from 0 to `width`.
 */
export function envelope(points, width, columns) {
  const kept = [];
  let column = null;
  const flush = () => {
    if (column === null) return;
    const indexes = [...new Set([column.first, column.low, column.high, column.last])];
    kept.push(...indexes.sort((a, b) => a - b).map((index) => points[index]));
    column = null;
  };
  points.forEach((point, index) => {
    if (point === null) {
      flush();
      kept.push(null);
      return;
    }
    const place = Math.floor((point[0] / width) * columns);
    if (column?.place !== place) flush();
    column ??= { place, first: index, low: index, high: index };
    column.last = index;
    if (point[1] < points[column.low][1]) column.low = index;
    if (point[1] > points[column.high][1]) column.high = index;
  });
  flush();
  return kept;
}
