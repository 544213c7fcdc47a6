// Plots of what this page's own streams have felt.

import { byId, paced, setFigures, setText, svgElement } from "./element.mjs";
import { duration, rate } from "./format.mjs";
import { decades, envelope, linear, logarithmic, path, ticks } from "./scale.mjs";
import { percentile, Recent } from "./statistics.mjs";

/** The plots sort and draw thousands of numbers: not in every frame. */
const SHOW_MS = 150;
const WINDOWS_MS = [10_000, 20_000, 30_000, 60_000];
const LONGEST_MS = WINDOWS_MS.at(-1);
const MAX_GAPS = 20_000;
const MAX_STREAMS = 40;
/** What happened is seen with the next look at the tree, maybe after the last token. */
const LATE_MS = 2000;
const TOP = 8;
const BOTTOM = 18;
const LEFT = 48;

export class Latency {
  #gaps = new Recent(MAX_GAPS); // {atMs, ms, stream}
  #firsts = new Recent(MAX_STREAMS);
  #events = new Recent(50); // {atMs, text}
  #last = null;

  constructor() {
    this.show = paced(SHOW_MS, () => this.#show());
    new ResizeObserver(this.show).observe(byId("gap-plot"));
  }

  // --- what is measured ------------------------------------------------------------------------

  first(ms) {
    this.#firsts.push(ms);
    this.show();
  }

  gap(atMs, ms, stream) {
    this.#gaps.push({ atMs, ms, stream });
    this.#last = stream;
    this.show();
  }

  done(timing) {
    if (timing.numPieces > 0) this.#last = timing;
    this.show();
  }

  /** Something happened to the tree that may explain what is seen. */
  event(atMs, text) {
    this.#events.push({ atMs, text });
    this.show();
  }

  // --- what is shown ---------------------------------------------------------------------------

  #show() {
    const endMs = this.#gaps.items.at(-1)?.atMs ?? 0;
    const gaps = this.#gaps.items.filter((gap) => gap.atMs > endMs - LONGEST_MS);
    const times = gaps.map((gap) => gap.ms);
    const [p50, p99] = [percentile(times, 0.5), percentile(times, 0.99)];
    setFigures(byId("stream-figures"), [
      ["first token", duration(this.#firsts.items.at(-1) ?? null)],
      ["tokens/s", rate(this.#last?.tokensPerS ?? null)],
      ["gap, p50", duration(p50)],
      ["gap, p99", duration(p99)],
    ]);
    setText(
      byId("gap-note"),
      times.length === 0 ? "" : `highest ${duration(times.reduce((a, b) => Math.max(a, b), 0))}`,
    );
    setText(
      byId("first-note"),
      this.#firsts.items.length === 0
        ? ""
        : `median ${duration(percentile(this.#firsts.items, 0.5))}`,
    );
    this.#showGaps(gaps, times, endMs);
    this.#showFirsts();
  }

  #showGaps(gaps, times, endMs) {
    const plot = new Plot(byId("gap-plot"));
    if (plot.width === 0) return;
    // Few are so short that they would stretch the axis for all; those are drawn at its foot.
    const lowest = Math.max(percentile(times, 0.05) ?? 10, 0.01);
    const highest = times.reduce((a, b) => Math.max(a, b), 0);
    plot.axis(decades(lowest, highest || 100), logarithmic);
    const ageMs = endMs - (gaps[0]?.atMs ?? endMs);
    const windowMs = WINDOWS_MS.find((one) => ageMs <= one) ?? LONGEST_MS;
    const x = linear(endMs - windowMs, endMs, 0, plot.width);
    const points = [];
    gaps.forEach((gap, index) => {
      if (index > 0 && gap.stream !== gaps[index - 1].stream) points.push(null);
      // As wide as it was long: a pause is not a slope.
      points.push([x(gap.atMs - gap.ms), plot.y(gap.ms)], [x(gap.atMs), plot.y(gap.ms)]);
    });
    plot.label(0, `−${windowMs / 1000} s`, "start");
    plot.label(plot.width, gaps.length === 0 ? "no stream yet" : "last token", "end");
    for (const event of this.#events.items) {
      if (event.atMs > endMs - windowMs && event.atMs < endMs + LATE_MS)
        plot.event(x(event.atMs), event.text);
    }
    plot.add("path", { class: "trace", d: path(envelope(points, plot.width, plot.width)) });
    plot.finish(
      gaps.length === 0
        ? "Time between tokens: no stream yet"
        : `Time between tokens: highest ${duration(highest)} of ${times.length} in the last minute`,
    );
  }

  #showFirsts() {
    const firsts = this.#firsts.items;
    const plot = new Plot(byId("first-plot"));
    if (plot.width === 0) return;
    plot.axis(ticks(Math.max(...firsts, 0) || 100, 2), linear);
    const slot = plot.width / MAX_STREAMS;
    const begin = plot.width - firsts.length * slot;
    firsts.forEach((ms, index) => {
      const top = plot.y(ms);
      plot.add("rect", {
        class: "bar",
        x: LEFT + begin + index * slot + 1,
        y: top,
        width: Math.max(1, slot - 2),
        height: Math.max(1, plot.bottom - top),
        rx: 1,
      });
    });
    plot.label(0, `${MAX_STREAMS} requests`, "start");
    plot.label(plot.width, firsts.length === 0 ? "no request yet" : "last", "end");
    plot.finish(`Time to the first token of the last ${firsts.length} requests`);
  }
}

/** A plot with lines of its vertical axis, drawn anew each time. */
class Plot {
  #parts = [];

  constructor(svg) {
    this.svg = svg;
    this.width = Math.max(0, svg.clientWidth - LEFT);
    this.bottom = svg.clientHeight - BOTTOM;
  }

  /** Lines at `places`, in milliseconds, lowest first; `scale` is linear or logarithmic. */
  axis(places, scale) {
    this.y = scale(places[0], places.at(-1), this.bottom, TOP);
    places.forEach((place, index) => {
      const y = Math.round(this.y(place)) + 0.5;
      this.add("line", {
        class: index === 0 ? "base" : "grid",
        x1: LEFT,
        x2: LEFT + this.width,
        y1: y,
        y2: y,
      });
      const text = place === 0 ? "0" : duration(place).replace(/\.0+(?= )/, "");
      this.add("text", { x: LEFT - 7, y: y + 4, "text-anchor": "end" }, text);
    });
  }

  label(x, text, anchor) {
    this.add("text", { x: LEFT + x, y: this.bottom + 14, "text-anchor": anchor }, text);
  }

  event(x, text) {
    const place = LEFT + x;
    const title = svgElement("title", {}, text);
    this.add("line", { class: "event", x1: place, x2: place, y1: TOP, y2: this.bottom });
    this.add("path", { class: "mark", d: `M${place - 4} ${TOP - 6}h8l-4 7z` }, title);
  }

  add(tag, attributes, ...children) {
    // Paths are in the plot's own coordinates, which begin right of the axis.
    const moved =
      attributes.class === "trace"
        ? { ...attributes, transform: `translate(${LEFT} 0)` }
        : attributes;
    this.#parts.push(svgElement(tag, moved, ...children));
  }

  finish(label) {
    this.svg.replaceChildren(...this.#parts);
    this.svg.setAttribute("aria-label", label);
  }
}
