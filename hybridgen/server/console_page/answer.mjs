// One turn of a conversation on the page. Texts of models are never more than texts.

import { element, setText } from "./element.mjs";
import { duration, rate } from "./format.mjs";

/** A person's turn. */
export function userTurn(text) {
  return element(
    "article",
    { class: "turn user" },
    element("h3", {}, "You"),
    element("div", { class: "text" }, text),
  );
}

/** An answer as it is made. */
export class AnswerTurn {
  #text = document.createTextNode("");
  #thought = document.createTextNode("");
  #reasoning = element(
    "details",
    { class: "reasoning", hidden: "" },
    element("summary", {}, "Reasoning"),
    element("div", { class: "thought" }, this.#thought),
  );
  #body = element("div", { class: "text" }, this.#text);
  #end = element("p", { class: "end" });

  constructor(model) {
    this.root = element(
      "article",
      { class: "turn", "aria-busy": "true" },
      element("h3", {}, model),
      this.#reasoning,
      this.#body,
      this.#end,
    );
  }

  get text() {
    return this.#text.data;
  }

  add(text) {
    this.#text.appendData(text);
  }

  /** More of what the model thinks before it answers; folded until somebody opens it. */
  think(text) {
    if (text === "") return;
    this.#thought.appendData(text);
    this.#reasoning.hidden = false;
  }

  /** How quick it is, and how it ended once it has. */
  figures(timing, ending = "") {
    const count = timing.numTokens ?? timing.numPieces;
    const parts = [
      ending,
      `${count} ${count === 1 ? "token" : "tokens"}`,
      timing.firstTokenMs === null ? "" : `first after ${duration(timing.firstTokenMs)}`,
      timing.tokensPerS === null ? "" : `${rate(timing.tokensPerS)} tokens/s`,
    ];
    setText(this.#end, parts.filter((part) => part !== "").join(" · "));
  }

  /** Something happened while it was made, and it went on. */
  note(text) {
    this.#end.before(element("p", { class: "note" }, text));
  }

  /** It failed; `again` is what to do when it is to be tried again. */
  fail(error, again) {
    const about = [error.code, error.param && `parameter ${error.param}`]
      .filter(Boolean)
      .join(", ");
    const wait = error.retryAfterS ? ` The server asks to wait ${error.retryAfterS} s.` : "";
    const button = element("button", { type: "button", class: "quiet" }, "Try again");
    button.addEventListener("click", again);
    const line = element("p", { class: "error", role: "alert" }, error.message + wait);
    if (about !== "") line.append(" ", element("code", {}, about));
    line.append(button);
    this.root.append(line);
  }

  close() {
    this.root.setAttribute("aria-busy", "false");
    if (this.text === "") this.#body.remove();
  }
}
