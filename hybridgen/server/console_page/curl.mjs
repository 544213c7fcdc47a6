// A request as a line for a POSIX shell.

/** `text` as one word of a shell, whatever is in it. */
export function shellQuote(text) {
  if (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text)) return text;
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/**
 * The request as curl would send it.
 * The key itself never stands in it: the line is made to be passed on.
 */
export function curlLine(url, body, { hasKey = false } = {}) {
  const parts = [
    `curl -N ${shellQuote(url)}`,
    "-H 'Content-Type: application/json'",
    ...(hasKey ? ['-H "Authorization: Bearer $KEY"'] : []),
    `-d ${shellQuote(JSON.stringify(body))}`,
  ];
  return parts.join(" \\\n  ");
}
