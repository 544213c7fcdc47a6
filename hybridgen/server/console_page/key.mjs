// The API key: asked for when the server wants one, kept for this tab only.

import { byId } from "./element.mjs";
import { keep, recall } from "./storage.mjs";

const PLACE = "hybridgen-key";

export class Key {
  #dialog = byId("key-dialog");
  #field = byId("key-field");
  #waiting = null;
  #isRefused = false; // by the person; they are not asked again until they want to be

  constructor() {
    this.value = recall("sessionStorage", PLACE) ?? "";
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#use(this.#field.value.trim());
      this.#dialog.close("use");
    });
    byId("key-cancel").addEventListener("click", () => this.#dialog.close("cancel"));
    byId("key-button").addEventListener("click", () => this.ask("", { isWanted: true }));
    byId("key-button").hidden = this.value === "";
    this.#dialog.addEventListener("close", () => this.#closed());
  }

  /** Ask for a key; true once there is one to try. All who ask at one time get the one answer. */
  ask(reason, { isWanted = false } = {}) {
    byId("key-button").hidden = false;
    if (this.#isRefused && !isWanted) return Promise.resolve(false);
    if (this.#waiting === null) {
      byId("key-reason").textContent = reason || "Requests are sent with this key.";
      this.#field.value = "";
      const { promise, resolve } = withResolvers();
      this.#waiting = { promise, resolve };
      this.#dialog.returnValue = "";
      this.#dialog.showModal();
    }
    return this.#waiting.promise;
  }

  #use(key) {
    this.value = key;
    keep("sessionStorage", PLACE, key);
  }

  #closed() {
    const isGiven = this.#dialog.returnValue === "use";
    this.#isRefused = !isGiven;
    this.#field.value = "";
    this.#waiting?.resolve(isGiven);
    this.#waiting = null;
  }
}

function withResolvers() {
  let resolve;
  const promise = new Promise((done) => (resolve = done));
  return { promise, resolve };
}
