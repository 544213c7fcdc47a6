// Looks at the tree again and again, as long as somebody looks at the page.

import { ApiError, ask } from "./api.mjs";

const PERIOD_MS = 1000;
const BUSY_PERIOD_MS = 500;
/** A server that answers nothing for so long is down. */
const TIMEOUT_MS = 4000;

export class Watch {
  #timer = null;
  #isLooking = false;

  /**
   * `onList(list, atMs)` gets each answer of /ps, `onTrouble(error)` whatever comes instead;
   * while `isBusy()` it is asked for more often.
   */
  constructor(key, { onList, onTrouble, isBusy }) {
    Object.assign(this, { key, onList, onTrouble, isBusy });
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Look now, and then again and again. */
  async look() {
    clearTimeout(this.#timer);
    if (document.hidden || this.#isLooking) return;
    this.#isLooking = true;
    try {
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const response = await ask("/ps", { key: this.key.value, signal });
      this.onList(await response.json(), performance.now());
    } catch (error) {
      this.onTrouble(error);
      if (error instanceof ApiError && error.status === 401 && !(await this.key.ask(error.message)))
        return;
    } finally {
      this.#isLooking = false;
    }
    this.#timer = setTimeout(() => this.look(), this.isBusy() ? BUSY_PERIOD_MS : PERIOD_MS);
  }
}
