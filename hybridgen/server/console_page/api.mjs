// The server's API: answers, streams, and what can be wrong with them.

import { SseParser } from "./sse.mjs";

/** The server answered with an error. */
export class ApiError extends Error {
  constructor(error, { status = null, retryAfterS = null, isMidStream = false } = {}) {
    super(error.message);
    Object.assign(this, { status, retryAfterS, isMidStream });
    this.param = error.param ?? null;
    this.code = error.code ?? null;
  }
}

/** No answer came. */
export class Unreachable extends Error {}

/** A stream ended before it was complete, and nothing said why. */
export class BrokenStream extends Error {}

/** Send a request; the answer, once its head is there and says 200. */
export async function ask(
  path,
  { key = "", body = null, signal = null, fetch = globalThis.fetch } = {},
) {
  const headers = key === "" ? {} : { Authorization: `Bearer ${key}` };
  if (body !== null) headers["Content-Type"] = "application/json";
  const options = { method: body === null ? "GET" : "POST", headers, signal, cache: "no-store" };
  if (body !== null) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("The server cannot be reached.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  const retryAfterS = Number(response.headers.get("retry-after")) || null;
  let error;
  try {
    ({ error } = await response.json());
  } catch {
    error = null; // not one of this API's; a proxy's, perhaps
  }
  error ??= { message: `The answer was ${response.status} ${response.statusText}.` };
  return new ApiError(error, { status: response.status, retryAfterS });
}

/** What one event of a chat says; null for the last. */
export function readEvent(data) {
  if (data === "[DONE]") return null;
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new BrokenStream("The stream holds an event that is not JSON.");
  }
  if (event.error) throw new ApiError(event.error, { isMidStream: true });
  const choice = event.choices?.[0];
  return {
    text: choice?.delta?.content ?? "",
    reasoning: choice?.delta?.reasoning_content ?? "",
    finishReason: choice?.finish_reason ?? null,
    usage: event.usage ?? null,
  };
}

/**
 * Stream an answer: yields, for each read that brought something, when it came and its events.
 *
 * Throws ApiError, Unreachable, BrokenStream; what `signal` throws when it was used.
 */
export async function* streamChat(body, options) {
  const { now = () => performance.now(), ...rest } = options;
  const response = await ask("/v1/chat/completions", { ...rest, body });
  const parser = new SseParser();
  for await (const [text, atMs] of texts(response.body, options.signal, now)) {
    const events = [];
    for (const data of parser.push(text)) {
      let event;
      try {
        event = readEvent(data);
      } catch (error) {
        if (events.length > 0) yield { atMs, events };
        throw error;
      }
      if (event === null) {
        yield { atMs, events };
        return;
      }
      events.push(event);
    }
    if (events.length > 0) yield { atMs, events };
  }
  throw new BrokenStream("The stream ended before the answer was complete.");
}

async function* texts(stream, signal, now) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      let read;
      try {
        read = await reader.read();
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new BrokenStream("The connection broke before the answer was complete.");
      }
      if (read.done) return;
      yield [decoder.decode(read.value, { stream: true }), now()];
    }
  } finally {
    reader.cancel().catch(() => {}); // it is over already; there is nobody to tell
  }
}
