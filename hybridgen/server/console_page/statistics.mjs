// What is measured of a stream, and what a set of numbers says.

/** The value below which the share `p` (0 … 1) of the values lies, between neighbours linearly. */
export function percentile(values, p) {
  if (values.length === 0) return null;
  const sorted = Float64Array.from(values).sort();
  const place = (sorted.length - 1) * p;
  const low = Math.floor(place);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

/** The newest `max` items of a series. */
export class Recent {
  constructor(max) {
    this.max = max;
    this.items = [];
  }

  push(...items) {
    this.items.push(...items);
    if (this.items.length > this.max) this.items.splice(0, this.items.length - this.max);
  }
}

/** The times of one stream, all in milliseconds of one clock. */
export class StreamTiming {
  constructor(startMs) {
    this.startMs = startMs;
    this.firstMs = null;
    this.lastMs = null;
    this.numPieces = 0;
    this.numTokens = null; // as the server counts; known at the end
  }

  /**
   * Note `count` pieces that one read brought.
   * Returns how long its reader waited for them; null for the first read.
   */
  pieces(atMs, count) {
    const beforeMs = this.lastMs;
    this.firstMs ??= atMs;
    this.lastMs = atMs;
    this.numPieces += count;
    return beforeMs === null ? null : atMs - beforeMs;
  }

  /** Time from the request to the first piece of text. */
  get firstTokenMs() {
    return this.firstMs === null ? null : this.firstMs - this.startMs;
  }

  /** Tokens after the first, over the time that they took. */
  get tokensPerS() {
    const count = this.numTokens ?? this.numPieces;
    const spanMs = this.lastMs - this.firstMs;
    return count < 2 || !(spanMs > 0) ? null : ((count - 1) * 1000) / spanMs;
  }
}
