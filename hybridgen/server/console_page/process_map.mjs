// The processes of the tree as a map and as a list, kept up to date in place.

import { byId, element, setText, svgElement } from "./element.mjs";
import { age, bytes, cores, count, duration, rate } from "./format.mjs";
import { isAlive, isUp, ringsOf } from "./processes.mjs";
import { path } from "./scale.mjs";

/** In the order in which a request meets them. */
const MAP_ROLES = ["gateway", "tokenizer", "coscheduler", "detokenizer", "sampler", "gpu"];
const UNITS = { sampler: "tok/s", detokenizer: "tok/s" };
const MAX_CELLS = 8;
const FRESH_MS = 4000;
/** Shown in the row itself, or of no interest to people. */
const TOLD = ["name", "role", "index", "state", "counters", "rings"];
const SPARK = { width: 80, height: 18 };

export class ProcessMap {
  #nodes = new Map(MAP_ROLES.map((role) => [role, new MapNode(role)]));
  #rows = new Map();

  constructor() {
    byId("map").append(...[...this.#nodes.values()].map((node) => node.root));
  }

  /** `history` knows how busy each has been. */
  show(list, history) {
    for (const [role, node] of this.#nodes) {
      node.show(
        list.processes.filter((process) => process.role === role),
        history,
      );
    }
    for (const process of list.processes) {
      let row = this.#rows.get(process.name);
      if (row === undefined) {
        row = new ProcessRow(process.name);
        this.#rows.set(process.name, row);
        byId("process-list").append(row.root);
      }
      row.show(process, history.work(process.name));
    }
    const names = new Set(list.processes.map((process) => process.name));
    for (const [name, row] of this.#rows) {
      if (names.has(name)) continue;
      row.root.remove();
      this.#rows.delete(name);
    }
  }

  /** Draw eyes to a process that was replaced. */
  mark(name) {
    const root = this.#rows.get(name)?.root;
    root?.classList.add("fresh");
    setTimeout(() => root?.classList.remove("fresh"), FRESH_MS);
  }

  /** Nobody can say how they are. */
  showUnknown() {
    for (const node of this.#nodes.values()) node.root.dataset.works = "false";
  }
}

/** All processes of one role. */
class MapNode {
  #dots = element("span", { class: "line" });
  #rings = element("div", {});

  constructor(role) {
    this.role = role;
    this.root = element(
      "li",
      { "data-role": role, "data-state": "down" },
      element("div", { class: "role" }, role),
      this.#dots,
      this.#rings,
    );
  }

  show(processes, history) {
    const numUp = processes.filter(isUp).length;
    const state = numUp === 0 ? "down" : numUp < processes.length ? "partly" : "ready";
    const perS = processes.reduce(
      (sum, process) => sum + (history.work(process.name).at(-1) ?? 0),
      0,
    );
    const text =
      perS > 0 ? `${rate(perS)} ${UNITS[this.role] ?? "/s"}` : `${numUp} of ${processes.length}`;
    this.root.dataset.state = state;
    this.root.dataset.works = String(perS > 0);
    this.root.setAttribute("aria-label", `${this.role}: ${numUp} of ${processes.length} ready`);
    const numRestarts = processes.reduce((sum, process) => sum + process.restarts, 0);
    const again =
      numRestarts > 0
        ? [element("b", { title: `restarted ${numRestarts}×` }, `${numRestarts}×`)]
        : [];
    this.#dots.replaceChildren(
      ...processes.map(dotOf),
      ...again,
      element("span", { class: "rate" }, text),
    );
    this.#rings.replaceChildren(...processes.flatMap(ringsOf).map(ringBar));
  }
}

/** One process: what matters in two lines, the rest when opened. */
class ProcessRow {
  #dot = element("span", { class: "dot", "aria-hidden": "true" });
  #spark = svgElement("path");
  #rate = element("span", { class: "rate" });
  #brief = element("span", { class: "brief" });
  #facts = element("dl");

  constructor(name) {
    const box = `0 0 ${SPARK.width} ${SPARK.height}`;
    const spark = svgElement(
      "svg",
      { class: "spark", viewBox: box, "aria-hidden": "true" },
      this.#spark,
    );
    const title = element("span", { class: "name" }, name);
    const summary = element("summary", {}, this.#dot, title, spark, this.#rate, this.#brief);
    this.root = element("li", {}, element("details", {}, summary, this.#facts));
  }

  show(process, work) {
    this.#dot.dataset.state = dotState(process);
    this.#spark.setAttribute("d", sparkline(work));
    setText(this.#rate, work.at(-1) > 0 ? `${rate(work.at(-1))} /s` : idleText(process));
    const restarts =
      process.restarts > 0 ? [element("b", {}, `restarted ${process.restarts}×`)] : [];
    const brief = [
      ...(isUp(process) ? [] : [element("b", {}, process.state)]),
      ...restarts,
      ...briefFacts(process),
    ];
    const parts = brief.flatMap((part, index) => (index === 0 ? [part] : [" · ", part]));
    const shown = element("span", {}, ...parts);
    if (shown.textContent !== this.#brief.textContent)
      this.#brief.replaceChildren(...shown.childNodes);
    if (this.root.firstElementChild.open) this.#facts.replaceChildren(...factPairs(process));
    else
      this.root.firstElementChild.ontoggle = () =>
        this.#facts.replaceChildren(...factPairs(process));
  }
}

function briefFacts(process) {
  const facts = [`pid ${process.pid || "–"}`];
  if (process.cpus?.length > 0)
    facts.push(`${process.cpus.length === 1 ? "core" : "cores"} ${cores(process.cpus)}`);
  if (process.rss_bytes) facts.push(bytes(process.rss_bytes));
  if (process.restarts > 0 && process.last_exit) facts.push(process.last_exit);
  for (const ring of ringsOf(process)) facts.push(`${ring.name} ${depthText(ring)}`);
  return facts;
}

function idleText({ progress_age_s: ageS }) {
  return ageS >= 1 ? `idle ${age(ageS)}` : "";
}

/** Everything that /ps says, known here or not. */
function factPairs(process) {
  const facts = Object.entries(process).filter(([name]) => !TOLD.includes(name));
  const counters = Object.entries(process.counters ?? {});
  const rings = ringsOf(process).map((ring) => [`ring ${ring.name}`, depthText(ring)]);
  return [["state", process.state], ...facts, ...rings, ...counters].flatMap(([name, value]) => {
    const [, label, unit] = name.match(/^(.+?)(?:_(bytes|s|ns))?$/);
    return [
      element("dt", {}, label.replaceAll("_", " ")),
      element("dd", {}, factText(label, value, unit)),
    ];
  });
}

const IN_UNITS = { bytes, s: age, ns: (value) => duration(value / 1e6) };

function factText(name, value, unit) {
  if (value === null || value === "") return "–";
  if (name === "pid") return String(value);
  if (name === "cpus") return cores(value);
  if (typeof value === "number") return (IN_UNITS[unit] ?? count)(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function depthText({ depth, capacity }) {
  return capacity === null ? count(depth) : `${count(depth)} of ${count(capacity)}`;
}

function dotState(process) {
  if (isUp(process)) return "ready";
  return isAlive(process) ? process.state : "dead";
}

function dotOf(process) {
  const dot = element("span", { class: "dot", "data-state": dotState(process) });
  dot.title = `${process.name}: ${process.state}`;
  return dot;
}

/** A ring's depth beside its capacity: place by place where they are few, else to scale. */
function ringBar(ring) {
  const text = element("span", {}, `${ring.name} ${ring.depth}`);
  const line = element("div", { class: "ring", title: `${ring.name}: ${depthText(ring)}` }, text);
  if (ring.capacity !== null) line.append(track(ring));
  return line;
}

function track({ depth, capacity }) {
  const cells = [];
  if (depth === 0 && capacity > MAX_CELLS) cells.push(element("i"));
  else if (capacity <= MAX_CELLS) {
    for (let index = 0; index < capacity; index++)
      cells.push(element("i", index < depth ? { class: "full" } : {}));
  } else {
    const share = Math.min(1, depth / capacity);
    cells.push(element("i", { class: "full" }), element("i"));
    cells[0].style.flexGrow = share;
    cells[1].style.flexGrow = 1 - share;
  }
  return element("span", { class: "track", "aria-hidden": "true" }, ...cells);
}

function sparkline(work) {
  const max = Math.max(...work, 0);
  if (max === 0) return "";
  const step = SPARK.width / 39;
  const begin = SPARK.width - (work.length - 1) * step;
  return path(
    work.map((value, index) => [
      begin + index * step,
      SPARK.height - 1 - (value / max) * (SPARK.height - 3),
    ]),
  );
}
