// Latencies of everybody's streams, where the server offers its metrics.

import { ApiError, ask } from "./api.mjs";
import { bucketsOf, quantile, since } from "./prometheus.mjs";

const PERIOD_MS = 5000;
/** Figures are those of the last minute. */
const NUM_PAGES = 13;
const NAMES = {
  first: "hybridgen_time_to_first_token_seconds",
  gap: "hybridgen_inter_token_latency_seconds",
};

export class ServerLatency {
  #pages = []; // buckets by name, oldest first
  #askedMs = -Infinity;
  #isOffered = true;

  constructor(key) {
    this.key = key;
  }

  /** Look again if it is time to; never fails: these figures are an extra. */
  async look(atMs) {
    if (!this.#isOffered || atMs - this.#askedMs < PERIOD_MS) return;
    this.#askedMs = atMs;
    try {
      const page = await (await ask("/metrics", { key: this.key.value })).text();
      this.#pages.push(
        Object.fromEntries(
          Object.entries(NAMES).map(([key, name]) => [key, bucketsOf(page, name)]),
        ),
      );
      this.#pages.splice(0, this.#pages.length - NUM_PAGES);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.#isOffered = false;
    }
  }

  /** A quantile of the last minute in milliseconds; `name` is a key of NAMES. */
  quantileMs(name, p) {
    const newest = this.#pages.at(-1)?.[name] ?? [];
    const value = quantile(since(newest, this.#pages[0]?.[name] ?? []), p);
    return value === null ? null : value * 1000;
  }
}
