// What becomes of the processes, from one look at /ps to the next.

const SPARK_LENGTH = 40;
/** Roles whose counter is a better measure of work than the progress word. */
const WORK_COUNTER = {
  gpu: "rows",
  sampler: "tokens",
  detokenizer: "tokens",
  tokenizer: "prompts",
  gateway: "streams",
  coscheduler: "accepted",
};

export class ProcessHistory {
  #before = null;
  #work = new Map(); // name → rates, oldest first

  /** Rates of the last looks at a process: things done per second, oldest first. */
  work(name) {
    return this.#work.get(name) ?? [];
  }

  /** Take the next look, made at `atMs`; what happened since the one before, as texts by name. */
  update(list, atMs) {
    const before = this.#before;
    const now = {
      atMs,
      instance: list.instance,
      byName: new Map(list.processes.map((p) => [p.name, p])),
    };
    this.#before = now;
    if (before === null || before.instance !== now.instance) {
      this.#work.clear();
      return before === null
        ? []
        : [{ name: "tree", text: `another tree answers: ${list.instance}` }];
    }
    for (const process of list.processes) this.#note(before, now, process);
    return changes(before.byName, now.byName);
  }

  /** Sums over the tree between the last two looks; null where nothing can be said. */
  static figures(before, after) {
    const delta = (role, counter) => sumDelta(before, after, role, counter);
    const tokens = delta("sampler", "tokens");
    const steps = delta("gpu", "steps");
    return {
      tokens,
      stepMs: steps > 0 ? delta("gpu", "step_ns") / steps / 1e6 : null,
      samplingMs: tokens > 0 ? delta("sampler", "sampling_ns") / tokens / 1e6 : null,
    };
  }

  #note(before, now, process) {
    const rates = this.#work.get(process.name) ?? [];
    const old = before.byName.get(process.name);
    const spanS = (now.atMs - before.atMs) / 1000;
    rates.push(spanS > 0 ? workDelta(old, process) / spanS : 0);
    this.#work.set(process.name, rates.slice(-SPARK_LENGTH));
  }
}

/** What a process calls its work so far. */
export function workOf(process) {
  return process.counters?.[WORK_COUNTER[process.role]] ?? process.progress ?? 0;
}

function workDelta(old, process) {
  // Counters of a new incarnation begin at zero.
  const base = old && old.incarnation === process.incarnation ? workOf(old) : 0;
  return Math.max(0, workOf(process) - base);
}

function sumDelta(before, after, role, counter) {
  const old = new Map(before.map((process) => [process.name, process]));
  let sum = 0;
  for (const process of after) {
    if (process.role !== role) continue;
    const then = old.get(process.name);
    const isSame = then !== undefined && then.incarnation === process.incarnation;
    const base = isSame ? (then.counters?.[counter] ?? 0) : 0;
    sum += Math.max(0, (process.counters?.[counter] ?? 0) - base);
  }
  return sum;
}

function changes(before, now) {
  const events = [];
  for (const [name, process] of now) {
    const old = before.get(name);
    const text = old === undefined ? "is new" : change(old, process);
    if (text !== null) events.push({ name, text });
  }
  for (const name of before.keys()) {
    if (!now.has(name)) events.push({ name, text: "is gone" });
  }
  return events;
}

function change(old, process) {
  const isNew = process.incarnation !== old.incarnation || (process.pid !== old.pid && process.pid);
  const reason = process.last_exit ? ` (${process.last_exit})` : "";
  if (isNew && isAlive(process))
    return `was replaced: pid ${old.pid || "–"} → ${process.pid}${reason}`;
  if (!isNew && isUp(old) && !isAlive(process)) return `died${reason}`;
  if (isNew) return `died${reason} and is being replaced`;
  return null;
}

/** It can work. */
export function isUp(process) {
  return process.state === "ready";
}

/** It runs, whether it can work yet or not. */
export function isAlive(process) {
  return ["starting", "ready", "draining"].includes(process.state) && process.pid > 0;
}

/** What waits in front of a process: [{name, depth, capacity}], capacity null without a bound. */
export function ringsOf(process) {
  return (process.rings ?? []).map(({ name, depth, capacity = null }) => ({
    name,
    depth,
    capacity,
  }));
}
