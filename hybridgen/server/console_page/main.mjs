// Puts the parts of the page together.

import { ApiError, ask } from "./api.mjs";
import { Chat } from "./chat.mjs";
import { Composer } from "./composer.mjs";
import { byId, element, setFigures, setText } from "./element.mjs";
import { age, clockTime, count, duration, rate } from "./format.mjs";
import { Key } from "./key.mjs";
import { Latency } from "./latency.mjs";
import { ProcessMap } from "./process_map.mjs";
import { ProcessHistory } from "./processes.mjs";
import { ServerLatency } from "./server_latency.mjs";
import { connectTheme } from "./theme.mjs";
import { Watch } from "./watch.mjs";

const MAX_EVENTS = 8;

const key = new Key();
const latency = new Latency();
const chat = new Chat(key, latency);
const composer = new Composer({
  turns: () => chat.turns,
  key,
  onSend: () => chat.send(),
  onStop: () => chat.stop(),
});
chat.connect(composer);
const map = new ProcessMap();
const history = new ProcessHistory();
const serverLatency = new ServerLatency(key);
const watch = new Watch(key, {
  onList: showTree,
  onTrouble: showTrouble,
  isBusy: () => chat.isRunning,
});
let before = null; // the last look at the tree
let hasModels = false;
let isDown = false;

// --- the tree ------------------------------------------------------------------------------------

function showTree(list, atMs) {
  for (const { name, text } of history.update(list, atMs)) {
    happened(`${name} ${text}`, atMs);
    map.mark(name);
    if (text.startsWith("was replaced")) chat.note(`${name} ${text}`, before.atMs);
  }
  if (isDown) happened("the server answers again", atMs);
  isDown = false;
  map.show(list, history);
  setStatus(list.is_ready ? "ready" : "starting", list.is_ready ? "ready" : "not ready");
  const device = [list.model, list.device, `instance ${list.instance}`, `up ${age(list.uptime_s)}`];
  setText(byId("server-facts"), device.join(" · "));
  if (before !== null && before.list.instance === list.instance)
    showWork(list, (atMs - before.atMs) / 1000);
  before = { list, atMs };
  serverLatency.look(atMs);
  if (!hasModels) loadModels();
}

function showWork(list, spanS) {
  const { tokens, stepMs, samplingMs } = ProcessHistory.figures(
    before.list.processes,
    list.processes,
  );
  const brain = list.processes.find((process) => process.role === "coscheduler")?.counters ?? {};
  setFigures(byId("server-figures"), [
    ["tokens/s", rate(tokens / spanS)],
    ["first, p50", duration(serverLatency.quantileMs("first", 0.5))],
    ["gap, p99", duration(serverLatency.quantileMs("gap", 0.99))],
    ["a step", duration(stepMs)],
    ["sampling", duration(samplingMs)],
    ["running", count(brain.running)],
    ["waiting", count(brain.waiting)],
    ["free blocks", count(brain.free_blocks)],
  ]);
}

function showTrouble(error) {
  if (error instanceof ApiError) {
    setStatus("starting", error.status === 401 ? "wants a key" : error.message);
    return;
  }
  if (!isDown && before !== null) happened("the server does not answer", performance.now());
  isDown = true;
  map.showUnknown();
  setStatus("down", "no answer, trying again");
}

function setStatus(state, text) {
  byId("status").dataset.state = state;
  setText(byId("status"), text);
}

function happened(text, atMs) {
  latency.event(atMs, text);
  const now = new Date();
  const time = element("time", { datetime: now.toISOString() }, clockTime(now));
  byId("events").prepend(element("li", {}, time, text));
  while (byId("events").children.length > MAX_EVENTS) byId("events").lastElementChild.remove();
}

async function loadModels() {
  hasModels = true;
  try {
    const { data } = await (await ask("/v1/models", { key: key.value })).json();
    composer.models = data.map((model) => model.id);
    chat.contextTokens = data[0]?.max_model_len ?? null;
  } catch {
    hasModels = false; // asked again with the next look at the tree
  }
}

// --- the page ------------------------------------------------------------------------------------

/** On a narrow page one of the two is seen at a time. */
function showView(view) {
  document.body.dataset.view = view;
  for (const one of ["chat", "server"])
    byId(`view-${one}`).setAttribute("aria-pressed", String(one === view));
}

byId("view-chat").addEventListener("click", () => showView("chat"));
byId("view-server").addEventListener("click", () => showView("server"));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("key-dialog").open) chat.stop();
});
byId("new-button").addEventListener("click", () => chat.clear());
byId("key-dialog").addEventListener("close", () => watch.look());

connectTheme(byId("theme-button"));
showView("chat");
latency.show();
watch.look();
if (matchMedia("(pointer: fine)").matches) composer.focus();
