// The body of a request, from what stands in the fields.

/** Field → what its text means. Their order is that of the body. */
export const FIELDS = {
  temperature: "number",
  top_p: "number",
  top_k: "integer",
  min_p: "number",
  max_tokens: "integer",
  seed: "integer",
  presence_penalty: "number",
  frequency_penalty: "number",
  repetition_penalty: "number",
  stop: "lines",
};

/** A field holds what cannot be sent. */
export class FieldError extends Error {
  constructor(param, message) {
    super(message);
    this.param = param;
  }
}

/**
 * Parameters that were given; an empty field leaves the choice to the server, which also judges
 * ranges.
 *
 * `texts` maps names of FIELDS to texts. Throws FieldError.
 */
export function readParameters(texts) {
  const parameters = {};
  for (const [name, kind] of Object.entries(FIELDS)) {
    const text = texts[name] ?? "";
    if (text.trim() !== "") parameters[name] = READERS[kind](name, text);
  }
  return parameters;
}

const INTEGER = /^-?\d+$/;
// A comma before three digits may just as well part thousands.
const DECIMAL = /^-?(?:\d+(?:\.\d*)?|\.\d+|\d*,(?!\d{3}$)\d+)$/;

const READERS = {
  number(name, text) {
    const value = Number(text.trim().replace(",", "."));
    if (!DECIMAL.test(text.trim()) || !Number.isFinite(value))
      throw new FieldError(name, `${name} is not a number: ${text}`);
    return value;
  },
  integer(name, text) {
    if (!INTEGER.test(text.trim()))
      throw new FieldError(name, `${name} is not a whole number: ${text}`);
    const value = Number(text.trim());
    // Beyond 2⁵³ a number of JavaScript is another one than was typed.
    if (!Number.isSafeInteger(value))
      throw new FieldError(name, `${name} is beyond 2⁵³, which a browser cannot send exactly`);
    return value;
  },
  lines(_, text) {
    return text.split("\n").filter((line) => line !== "");
  },
};

/** The whole body: `turns` are {role, content}, oldest first. */
export function chatBody(model, system, turns, parameters) {
  const opening = system.trim() === "" ? [] : [{ role: "system", content: system }];
  return {
    model: model || undefined, // the server's own, as long as its name is not known here
    messages: [...opening, ...turns.map(({ role, content }) => ({ role, content }))],
    ...parameters,
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** What is set, in a few words. */
export function summary(parameters, system) {
  const words = Object.entries(parameters).map(([name, value]) =>
    Array.isArray(value) ? `${name} ×${value.length}` : `${name} ${value}`,
  );
  if (system.trim() !== "") words.unshift("system prompt");
  return words.length === 0 ? "the server's defaults" : words.join(" · ");
}
