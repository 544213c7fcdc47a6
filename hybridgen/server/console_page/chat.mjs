// A conversation: what was said, and the stream that is running.

import { AnswerTurn, userTurn } from "./answer.mjs";
import { ApiError, BrokenStream, streamChat, Unreachable } from "./api.mjs";
import { byId, everyFrame, setText } from "./element.mjs";
import { count } from "./format.mjs";
import { FieldError } from "./request.mjs";
import { StreamTiming } from "./statistics.mjs";

/** Within so many pixels of the end the log follows the text. */
const FOLLOW_PX = 48;
const ENDINGS = { stop: "", length: "cut at the limit" };

export class Chat {
  #log = byId("log");
  #turns = [];
  #stop = null; // of the running stream
  #answer = null; // the newest
  #wholeMs = -Infinity; // when a stream was last complete
  #follows = true; // the log shows its end, and is to stay there
  #top = 0; // where it was scrolled to

  /** `measure` takes what is known of each stream: first(ms), gap(atMs, ms), done(timing). */
  constructor(key, measure) {
    this.key = key;
    this.measure = measure;
    this.contextTokens = null; // of the model, once known
    this.#log.addEventListener("scroll", () => this.#scrolled());
    new ResizeObserver(() => this.#follow()).observe(this.#log);
  }

  connect(composer) {
    this.composer = composer;
  }

  get turns() {
    return this.#turns;
  }

  get isRunning() {
    return this.#stop !== null;
  }

  /** Send what stands in the composer. */
  send() {
    const text = this.composer.text;
    if (this.#stop !== null || text.trim() === "") return;
    const turn = { role: "user", content: text };
    if (this.#body([...this.#turns, turn]) === null) return;
    byId("empty").hidden = true;
    // The conversation goes on after them.
    this.#log.querySelectorAll(".error button").forEach((button) => button.remove());
    this.#log.append(userTurn(text));
    this.composer.text = "";
    this.#run(turn);
  }

  /** End the running stream. */
  stop() {
    this.#stop?.abort();
  }

  clear() {
    this.stop();
    this.#turns = [];
    this.#log.querySelectorAll(".turn").forEach((turn) => turn.remove());
    byId("empty").hidden = false;
    setText(byId("context"), "");
    this.composer.show();
    this.composer.focus();
  }

  /** A process was replaced after `sinceMs`: says so where a stream went on over it. */
  note(text, sinceMs) {
    if (this.#stop !== null) this.#answer.note(`${text}. The stream goes on.`);
    else if (this.#wholeMs > sinceMs) this.#answer.note(`${text}. The stream went on.`);
    this.#follow();
  }

  #body(turns) {
    try {
      return this.composer.body(turns);
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      this.composer.complain(error);
      return null;
    }
  }

  async #run(turn) {
    const body = this.#body([...this.#turns, turn]);
    if (body === null) return;
    const turns = this.#turns;
    turns.push(turn);
    const answer = new AnswerTurn(body.model ?? "Answer");
    const stop = new AbortController();
    [this.#answer, this.#stop] = [answer, stop];
    this.#log.append(answer.root);
    this.composer.run(true);
    this.#scroll();
    const timing = new StreamTiming(performance.now());
    try {
      await this.#stream(body, answer, timing, stop.signal);
    } catch (error) {
      this.#ended(error, { answer, timing, stop, turn, turns });
    } finally {
      this.#stop = null;
      answer.close();
      if (answer.text !== "") turns.push({ role: "assistant", content: answer.text });
      this.composer.run(false);
      this.composer.show();
      this.measure.done(timing);
    }
  }

  async #stream(body, answer, timing, signal) {
    const show = everyFrame(() => timing.numTokens ?? answer.figures(timing));
    let finishReason = "";
    for await (const { atMs, events } of streamChat(body, { key: this.key.value, signal })) {
      const pieces = events.filter(({ text, reasoning }) => text !== "" || reasoning !== "");
      this.#measure(timing, atMs, pieces.length);
      answer.think(events.map((event) => event.reasoning).join(""));
      answer.add(events.map((event) => event.text).join(""));
      this.#follow();
      for (const event of events) {
        finishReason = event.finishReason ?? finishReason;
        if (event.usage) this.#count(event.usage, timing);
      }
      show();
    }
    timing.numTokens ??= timing.numPieces;
    this.#wholeMs = timing.lastMs ?? timing.startMs;
    answer.figures(timing, ENDINGS[finishReason] ?? finishReason);
    this.#announce("The answer is complete.");
  }

  #measure(timing, atMs, numPieces) {
    if (numPieces === 0) return;
    const gapMs = timing.pieces(atMs, numPieces);
    if (gapMs === null) this.measure.first(timing.firstTokenMs);
    else this.measure.gap(atMs, gapMs, timing);
  }

  #count(usage, timing) {
    timing.numTokens = usage.completion_tokens;
    const all = this.contextTokens === null ? "" : ` of ${count(this.contextTokens)}`;
    setText(byId("context"), `${count(usage.total_tokens)}${all} tokens of context used`);
  }

  /** The stream ended otherwise than complete. */
  #ended(error, { answer, timing, stop, turn, turns }) {
    timing.numTokens ??= timing.numPieces; // no more will be counted
    if (stop.signal.aborted) {
      answer.figures(timing, "stopped");
      this.#announce("Stopped.");
      return;
    }
    const isKnown = [ApiError, BrokenStream, Unreachable].some((kind) => error instanceof kind);
    if (!isKnown) console.error(error);
    if (timing.numPieces > 0) answer.figures(timing, "broken off");
    const again = () => {
      if (this.#stop !== null) return;
      answer.root.remove();
      if (turns.at(-1)?.role === "assistant") turns.pop();
      if (turns.at(-1) === turn) turns.pop();
      this.#run(turn);
    };
    answer.fail(error, again);
    this.composer.blame(error.param);
    // What got no answer is not part of the conversation that goes on.
    if (answer.text === "") turns.pop();
    if (error.status === 401) this.key.ask(error.message).then((isGiven) => isGiven && again());
    this.#scroll();
  }

  #announce(text) {
    setText(byId("announcement"), "");
    setText(byId("announcement"), text);
  }

  #isAtEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.#log;
    return scrollHeight - scrollTop - clientHeight < FOLLOW_PX;
  }

  #follow() {
    if (this.#follows) this.#scroll();
  }

  /** Whoever scrolls up wants to read there; text may have come since the log was last scrolled. */
  #scrolled() {
    if (this.#isAtEnd()) this.#follows = true;
    else if (this.#log.scrollTop < this.#top) this.#follows = false;
    this.#top = this.#log.scrollTop;
  }

  #scroll() {
    this.#follows = true;
    this.#log.scrollTop = this.#log.scrollHeight;
  }
}
