// Asks for the status, and shows what came: once a second, less often where an answer takes long, never while hidden.

import { Bars, Lines } from "./charts.js";
import { clock, count, percent, put, seconds } from "./format.js";
import { flatten, History, shown } from "./history.js";
import { Table } from "./models.js";
import { drops, problems, tiles, weights } from "./panels.js";

const INTERVAL = 1000; // milliseconds
const LONGEST = 10_000;
const PART = 20; // an answer that takes t is asked for again after at least PART × t
const SLOTS = 6; // models with a colour of their own
const SMOOTH = 0.1;
const STICKY = 1.3; // how much busier another model must be to take a place in the charts
const IDLE = 1e-4; // score of a model that is not worth a line beside busy ones
const TOKEN = "inference-server.token";

const at = (id) => document.getElementById(id);
const history = new History();
const focus = new Set();
const slots = new Map(); // name → colour

let models = new Map();
let scores = new Map(); // name → how busy it was of late
let interval = INTERVAL;
let timer = 0;
let asking = false;
let heard = 0;
let wasReady = false;

const hover = (time) => Object.values(lines).forEach((chart) => chart.hover(time));
const lines = {
  share: new Lines("share", { format: percent, least: 0.1, onHover: hover }),
  queue: new Lines("queue", { format: count, least: 1, whole: true, onHover: hover }),
  rate: new Lines("rate", { format: count, least: 1, onHover: hover }),
  wait: new Lines("wait", { format: seconds, log: 1e-5, onHover: hover }),
};
const batches = new Bars("batches", "Nothing was executed yet.");
const table = new Table((name) => {
  if (!focus.delete(name)) focus.add(name);
  draw();
});

// The state of the connection, in a word for the style sheet and a sentence for the reader.
function link(state, text) {
  document.body.dataset.link = state;
  put(at("link-text"), text);
}

async function ask(path, headers) {
  return fetch(path, { headers, cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(LONGEST) });
}

async function poll() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const began = performance.now();
  let told = null;
  try {
    told = await look();
    interval = Math.min(LONGEST, Math.max(INTERVAL, PART * (performance.now() - began)));
  } catch (error) {
    interval = Math.min(LONGEST / 2, interval * 1.5);
    const since = heard ? ` since ${clock(heard)}` : "";
    link("gone", `No answer${since} (${error.message}). Trying again every ${seconds(interval / 1000)}.`);
  }
  asking = false;
  if (!document.hidden && at("door").hidden) timer = setTimeout(poll, interval);
  if (told) show(...told);
}

// The status and whether the server is ready; null where it asks for a token.
async function look() {
  const token = sessionStorage.getItem(TOKEN);
  const [answer, ready] = await Promise.all([ask("status", token ? { Authorization: `Bearer ${token}` } : {}), ask("v2/health/ready", {})]);
  if (answer.status === 401 || answer.status === 403) return refuse(token);
  if (!answer.ok) throw new Error(`the server says ${answer.status}`);
  return [shown(await answer.json(), location.hash.slice(1)), ready.ok];
}

function refuse(token) {
  sessionStorage.removeItem(TOKEN);
  if (token) put(at("door-text"), "That token was refused.");
  link("locked", "Waiting for the token");
  at("door").hidden = false;
  at("main").hidden = true;
  at("token").focus();
  return null;
}

function show(status, ready) {
  heard = Date.now();
  wasReady ||= ready;
  models = flatten(status.models);
  const rate = history.add(status, models, heard, interval);
  for (const [name, model] of models) model.rate = history.latest(name, "rate");
  rank(status, rate);
  at("main").hidden = false;
  at("forget").hidden = !sessionStorage.getItem(TOKEN);
  put(at("facts"), `${status.worker ?? ""}${status.discipline} · ${status.control_mode} · ${status.backend}`);
  if (!status.alive) link("dead", "Not alive: nothing is executed any more");
  else if (ready) link("live", `Live · ${clock(heard)}`);
  else link("unready", unready(status));
  tiles(status, models, history.busyNow, rate);
  problems(status, models);
  draw(status);
}

function unready(status) {
  const loading = status.models.filter((model) => model.state === "LOADING").length;
  if (wasReady) return "Draining: not ready any more, what was accepted is finished";
  return loading ? `Starting: ${loading} models are loading` : "Not ready: it starts, drains, or a required model is missing";
}

// Who is busiest, smoothed so that rows do not dance; who is in the charts stays there unless another is clearly busier.
function rank(status, rate) {
  const before = scores;
  scores = new Map();
  for (const [name, model] of models) {
    const told = model.serving;
    const now = told ? told.share_actual + told.queue_depth / (status.queue_depth || 1) + (model.rate || 0) / (rate || 1) : -1;
    model.score = before.has(name) ? before.get(name) + SMOOTH * (now - before.get(name)) : now;
    model.sticky = model.score * (slots.has(name) ? STICKY : 1);
    scores.set(name, model.score);
  }
  for (const name of focus) if (!models.has(name)) focus.delete(name);
}

function chosen() {
  const all = [...models.values()].filter((model) => model.serving);
  if (focus.size) return all.filter((model) => focus.has(model.name)).slice(0, SLOTS);
  const busy = all.filter((model) => model.score > IDLE);
  return (busy.length ? busy : all).sort((left, right) => right.sticky - left.sticky || (left.name < right.name ? -1 : 1)).slice(0, SLOTS);
}

function colour(names) {
  for (const name of slots.keys()) if (!names.includes(name)) slots.delete(name);
  for (const name of names) {
    const taken = new Set(slots.values());
    if (!slots.has(name)) slots.set(name, [0, 1, 2, 3, 4, 5].find((slot) => !taken.has(slot)));
  }
}

let latest = null;

function draw(status = latest) {
  latest = status;
  if (!status) return;
  const names = chosen().map((model) => model.name).sort((left, right) => (left < right ? -1 : 1));
  colour(names);
  const times = history.times();
  const of = (metric, dashed = false) => names.map((name) => ({ name, slot: slots.get(name), values: history.values(name, metric), dashed }));
  const all = (metric) => (models.size > names.length && !focus.size ? [{ name: "all", slot: "all", values: history.values(null, metric) }] : []);
  lines.share.update(times, [...of("actual"), ...of("target", true)]);
  lines.queue.update(times, [...all("queue"), ...of("queue")]);
  lines.rate.update(times, [...all("rate"), ...of("rate")]);
  lines.wait.update(times, [...of("p50", true), ...of("p99")]);
  const scope = [...models.values()].filter((model) => !focus.size || focus.has(model.name));
  batches.update(histogram(scope));
  drops(focus.size ? scope.map((model) => ({ ...model, partOf: "" })) : scope);
  weights(status, scope);
  table.update([...models.values()], slots, focus);
  put(at("scope-text"), scoped(names));
  at("scope-all").hidden = !focus.size;
}

function scoped(names) {
  if (focus.size) return `Charts of ${names.join(", ")}.`;
  if (!models.size) return "No models yet.";
  return models.size > names.length ? `Lines of the ${names.length} busiest of ${models.size} models; pick others in the table.` : "Pick models in the table to see them alone.";
}

function histogram(scope) {
  const counts = new Map();
  for (const { serving } of scope) {
    for (const [rows, seen] of Object.entries(serving?.batch_rows ?? {})) counts.set(+rows, (counts.get(+rows) ?? 0) + seen);
  }
  return counts;
}

at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  at("door").hidden = true;
  poll();
});
at("forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  location.reload();
});
at("scope-all").addEventListener("click", () => {
  focus.clear();
  draw();
});
window.addEventListener("hashchange", () => location.reload());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && at("door").hidden) poll();
});
poll();
