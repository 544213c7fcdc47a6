// Numbers as a person reads them.

const NONE = "–";

/** Three significant digits, no exponent. */
function short(value) {
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** A time given in milliseconds. */
export function duration(ms) {
  if (ms === null || !Number.isFinite(ms)) return NONE;
  if (ms >= 1000) return `${short(ms / 1000)} s`;
  return ms >= 1 ? `${short(ms)} ms` : `${short(ms * 1000)} µs`;
}

/** A number of things per second. */
export function rate(perS) {
  if (perS === null || !Number.isFinite(perS)) return NONE;
  return perS === 0 ? "0" : short(perS);
}

export function count(value) {
  return value === null || value === undefined
    ? NONE
    : value.toLocaleString("en").replaceAll(",", "\u202f");
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : short(value)} ${units[unit]}`;
}

/** How long ago something was, or how long it lasts: coarse. */
export function age(seconds) {
  if (seconds === null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d`;
}

/** Numbers of processors: [0, 1, 2, 5] is "0–2, 5". */
export function cores(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const run = runs.at(-1);
    if (run && number === run[1] + 1) run[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([low, high]) => (low === high ? `${low}` : `${low}–${high}`)).join(", ");
}

/** A time of day. */
export function clockTime(date) {
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}
