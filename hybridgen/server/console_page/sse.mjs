// Server-sent events: pieces of text in, the data of whole events out.

export class SseParser {
  #rest = "";
  #data = [];

  /** Take the next piece, cut anywhere; the data of each event that it completes. */
  push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop(); // not ended yet, or its \r may be half of a \r\n
    const events = [];
    for (const line of lines) {
      if (line !== "") this.#take(line);
      else if (this.#data.length > 0) events.push(this.#data.splice(0).join("\n"));
    }
    return events;
  }

  #take(line) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    if (field !== "data") return; // comments, and fields that this API does not use
    this.#data.push(colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, ""));
  }
}
