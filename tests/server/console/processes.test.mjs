import assert from "node:assert/strict";
import { test } from "node:test";
import {
  isAlive,
  isUp,
  ProcessHistory,
  ringsOf,
} from "../../../hybridgen/server/console_page/processes.mjs";

function sampler(changes = {}) {
  return {
    name: "sampler-0",
    role: "sampler",
    pid: 100,
    incarnation: 1,
    state: "ready",
    restarts: 0,
    last_exit: "",
    progress: 0,
    counters: { tokens: 0, sampling_ns: 0 },
    ...changes,
  };
}

function texts(...looks) {
  const history = new ProcessHistory();
  return looks
    .flatMap((processes, index) => history.update({ instance: "a", processes }, index * 1000))
    .map(({ name, text }) => `${name} ${text}`);
}

test("a process that goes on is no news", () => {
  assert.deepEqual(texts([sampler()], [sampler({ progress: 9 })]), []);
});

test("a replacement between two looks is seen, with its reason", () => {
  const next = sampler({ pid: 200, incarnation: 2, restarts: 1, last_exit: "killed by SIGKILL" });
  assert.deepEqual(texts([sampler()], [next]), [
    "sampler-0 was replaced: pid 100 → 200 (killed by SIGKILL)",
  ]);
});

test("a death is seen, and then the replacement", () => {
  const dead = sampler({ pid: 0, state: "exited", last_exit: "exit code 1" });
  const next = sampler({ pid: 200, incarnation: 2, state: "starting", last_exit: "exit code 1" });
  assert.deepEqual(texts([sampler()], [dead], [next]), [
    "sampler-0 died (exit code 1)",
    "sampler-0 was replaced: pid – → 200 (exit code 1)",
  ]);
});

test("processes come and go", () => {
  const other = sampler({ name: "sampler-1" });
  assert.deepEqual(texts([sampler()], [sampler(), other], [sampler()]), [
    "sampler-1 is new",
    "sampler-1 is gone",
  ]);
});

test("another tree begins anew", () => {
  const history = new ProcessHistory();
  history.update({ instance: "a", processes: [sampler()] }, 0);
  const [event] = history.update(
    { instance: "b", processes: [sampler({ pid: 9, incarnation: 1 })] },
    1000,
  );
  assert.match(event.text, /another tree/);
  assert.deepEqual(history.work("sampler-0"), []);
});

test("work is counted per second, and begins at zero with each incarnation", () => {
  const history = new ProcessHistory();
  const look = (tokens, incarnation, atMs) =>
    history.update(
      { instance: "a", processes: [sampler({ incarnation, counters: { tokens } })] },
      atMs,
    );
  look(100, 1, 0);
  look(150, 1, 500);
  look(20, 2, 1500);
  assert.deepEqual(history.work("sampler-0"), [100, 20]);
});

test("figures are those between two looks", () => {
  const gpu = (steps, step_ns) => ({
    name: "gpu-0",
    role: "gpu",
    incarnation: 1,
    counters: { steps, step_ns },
  });
  const before = [sampler({ counters: { tokens: 10, sampling_ns: 1000 } }), gpu(5, 5e6)];
  const after = [sampler({ counters: { tokens: 30, sampling_ns: 41_000 } }), gpu(15, 25e6)];
  assert.deepEqual(ProcessHistory.figures(before, after), {
    tokens: 20,
    stepMs: 2,
    samplingMs: 0.002,
  });
  assert.deepEqual(ProcessHistory.figures(after, after), {
    tokens: 0,
    stepMs: null,
    samplingMs: null,
  });
  assert.deepEqual(ProcessHistory.figures([], []), { tokens: 0, stepMs: null, samplingMs: null });
});

test("states", () => {
  assert.ok(isUp(sampler()));
  assert.ok(isAlive(sampler({ state: "starting" })) && !isUp(sampler({ state: "starting" })));
  assert.ok(!isAlive(sampler({ state: "exited" })));
  assert.ok(!isAlive(sampler({ state: "ready", pid: 0 })));
});

test("rings are read, and what is new about them is left out", () => {
  const ring = { name: "logits", depth: 1, capacity: 3 };
  assert.deepEqual(ringsOf({}), []);
  assert.deepEqual(ringsOf({ rings: [{ ...ring, unknown: true }] }), [ring]);
  assert.deepEqual(ringsOf({ rings: [{ name: "texts", depth: 1 }] }), [
    { name: "texts", depth: 1, capacity: null },
  ]);
});
