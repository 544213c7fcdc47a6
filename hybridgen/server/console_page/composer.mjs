// Where a request is written: the message, its parameters, and the same as a curl line.

import { curlLine } from "./curl.mjs";
import { byId, element, everyFrame, setText } from "./element.mjs";
import { chatBody, FieldError, FIELDS, readParameters, summary } from "./request.mjs";

const COPIED_MS = 1600;

export class Composer {
  #form = byId("composer");
  #message = byId("message");
  #button = byId("send-button");
  #complaint = byId("complaint");

  /** `turns()` are those that a message would be added to; `key` says whether one is sent. */
  constructor({ turns, key, onSend, onStop }) {
    this.turns = turns;
    this.key = key;
    this.isRunning = false;
    this.show = everyFrame(() => this.#show());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isRunning) onStop();
      else onSend();
    });
    this.#form.addEventListener("input", (event) => {
      event.target.removeAttribute("aria-invalid");
      this.complain(null);
      this.show();
    });
    this.#form.addEventListener("keydown", (event) => this.#key(event, onSend));
    byId("curl").addEventListener("toggle", this.show);
    byId("copy-button").addEventListener("click", () => this.#copy());
    this.show();
  }

  set models(names) {
    this.#field("model").replaceChildren(...names.map((name) => element("option", {}, name)));
    this.show();
  }

  get model() {
    return this.#field("model").value;
  }

  get text() {
    return this.#message.value;
  }

  set text(text) {
    this.#message.value = text;
    this.show();
  }

  /** The body of a request for `turns`. Throws FieldError. */
  body(turns) {
    return chatBody(this.model, this.#field("system").value, turns, this.#parameters());
  }

  /** While a stream runs the button stops it. */
  run(isRunning) {
    this.isRunning = isRunning;
    this.#button.textContent = isRunning ? "Stop" : "Send";
    this.#button.dataset.does = isRunning ? "stop" : "send";
  }

  /** Say why nothing can be sent; null takes it back. */
  complain(error) {
    this.#complaint.hidden = error === null;
    setText(this.#complaint, error === null ? "" : error.message);
    this.blame(error?.param);
  }

  /** Lead to the field of a parameter, if it has one. */
  blame(param) {
    const field = param && this.#field(param);
    if (!field) return;
    byId("parameters").open = true;
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }

  focus() {
    this.#message.focus();
  }

  #field(name) {
    return this.#form.elements.namedItem(name);
  }

  #parameters() {
    const texts = Object.keys(FIELDS).map((name) => [name, this.#field(name).value]);
    return readParameters(Object.fromEntries(texts));
  }

  #key(event, onSend) {
    // Enter that ends a composition of characters belongs to it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    const isMessage = event.target === this.#message;
    if (!isMessage && event.target.tagName !== "INPUT") return;
    event.preventDefault();
    if (!this.isRunning) onSend();
  }

  #show() {
    this.#message.style.height = "auto";
    this.#message.style.height = `${this.#message.scrollHeight + 2}px`;
    try {
      setText(byId("parameters-summary"), summary(this.#parameters(), this.#field("system").value));
      if (byId("curl").open) setText(byId("curl-line"), this.#curl());
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      setText(byId("parameters-summary"), error.message);
    }
  }

  #curl() {
    const next = { role: "user", content: this.text || "…" };
    const url = new URL("/v1/chat/completions", location.href).href;
    return curlLine(url, this.body([...this.turns(), next]), { hasKey: this.key.value !== "" });
  }

  async #copy() {
    const button = byId("copy-button");
    const line = byId("curl-line");
    try {
      await navigator.clipboard.writeText(line.textContent);
      button.textContent = "Copied";
    } catch {
      // Browsers give the clipboard only to this machine's pages and to TLS.
      getSelection().selectAllChildren(line);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
  }
}
