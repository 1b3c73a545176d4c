// What is no chart over time: figures of the node, weights against their budget, drops, faults.

import { bytes, count, percent, put } from "./format.js";

const { d3 } = window;

const LARGEST = 10; // models in the picture of weights

const RESTING = ["not loaded", "unloaded"]; // reasons that are no faults: `RESTING` of app/runtime/registry.py

const REASONS = {
  expired_queue: "deadline passed in the queue",
  infeasible_admission: "refused on arrival: too late already",
  infeasible_dispatch: "could only be late",
  queue_full: "queue full",
  cancelled: "client gave up",
  withdrawn: "withdrawn",
  shutdown: "shutdown",
};

export const dropsOf = (serving) => Object.values(serving.dropped).reduce((sum, each) => sum + each, 0);

export function tiles(status, models, busy, rate) {
  const serving = [...models.values()].filter((model) => model.serving && !model.partOf).map((model) => model.serving);
  const sum = (pick) => serving.reduce((total, each) => total + pick(each), 0);
  const limit = status.device_memory_limit_bytes;
  const memory = bytes(status.device_memory_in_use_bytes);
  const pool = status.weight_pool_bytes;
  // On the CPU what is in use is the process, of which the limit bounds a part: the weights and activations.
  const room = status.backend === "cpu" ? ["Process memory", memory, limit ? `weights ${bytes(status.resident_weight_bytes)} of ${bytes(pool)}` : "no limit", limit ? status.resident_weight_bytes / pool : undefined]
    : ["Device memory", memory, limit ? `of ${bytes(limit)}` : "no limit", limit ? status.device_memory_in_use_bytes / limit : undefined];
  const failed = sum((each) => each.failed);
  const dropped = sum(dropsOf);
  const ready = [...models.values()].filter((model) => !model.partOf && model.state === "READY").length;
  const all = [...models.values()].filter((model) => !model.partOf).length;
  const hit = status.weight_hit_rate;
  draw([
    ["Answers per second", count(rate), `${count(sum((each) => each.ok))} in all`],
    ["Device busy", percent(busy), `${status.backend}${status.device === status.backend ? "" : ` ${status.device}`}`, busy],
    room,
    ["Queued", count(status.queue_depth), `${count(sum((each) => each.in_flight))} in flight`],
    ["Failed", count(failed), `${count(dropped)} dropped`, undefined, failed ? "bad" : ""],
    ["Models ready", `${ready} / ${all}`, hit === null ? "" : `${percent(hit)} found their weights`, undefined, ready < all ? "warn" : ""],
  ]);
}

function draw(data) {
  const tiles = d3.select("#tiles").selectAll("div.tile").data(data);
  const made = tiles.enter().append("div");
  for (const part of ["label", "figure", "more"]) made.append("span").attr("class", part);
  made.append("span").attr("class", "meter").append("span");
  tiles.attr("class", ([, , , , mood]) => `tile ${mood ?? ""}`);
  ["label", "figure", "more"].forEach((part, index) => tiles.select(`.${part}`).each(function (each) { put(this, each[index]); }));
  tiles.select(".meter").classed("shown", ([, , , part]) => part !== undefined);
  tiles.select(".meter > span").style("width", ([, , , part]) => `${Math.min(100, 100 * (part || 0))}%`);
}

export function problems(status, models) {
  const faults = [...models.values()].filter((model) => model.reason && !RESTING.includes(model.reason)).map((model) => `${model.name}: ${model.reason}`);
  for (const [path, fault] of Object.entries(status.problems)) faults.push(`${path}: ${fault}`);
  if (!status.alive) faults.unshift("The device or its dispatcher is dead: nothing is executed any more.");
  const shown = faults.slice(0, 5);
  if (faults.length > shown.length) shown.push(`and ${faults.length - shown.length} more: see the models below`);
  const lines = d3.select("#problems").selectAll("p").data(shown);
  lines.enter().append("p");
  lines.exit().remove();
  lines.text(String);
  document.getElementById("problems").hidden = !shown.length;
}

export function drops(models) {
  const totals = new Map();
  for (const { serving, partOf } of models) {
    if (!serving || partOf) continue;
    for (const [reason, seen] of Object.entries(serving.dropped)) totals.set(reason, (totals.get(reason) ?? 0) + seen);
  }
  const data = [...totals].filter(([, seen]) => seen).sort((left, right) => right[1] - left[1]);
  const most = d3.max(data, ([, seen]) => seen);
  const told = ([reason, seen]) => [REASONS[reason] ?? reason, count(seen), seen / most, "dropped", reason];
  bars("drops", data.map(told), "Nothing was dropped.");
}

export function weights(status, models) {
  const pool = status.weight_pool_bytes;
  const held = [...models].filter(({ serving }) => serving && serving.weight_bytes);
  const plain = held.filter(({ parts }) => !parts.length); // a meta model's weights are those of its parts
  const resident = plain.filter(({ serving }) => serving.resident);
  const budget = pool ? `of a budget of ${bytes(pool)}` : "no budget: every model stays";
  const pinned = status.pinned_weight_bytes ? `, ${bytes(status.pinned_weight_bytes)} pinned` : "";
  const known = `${bytes(status.resident_weight_bytes)} on the device${pinned}, ${budget}`;
  put(document.getElementById("weights-text"), `${known} · ${resident.length} of ${plain.length} shown models resident`);
  const data = plain.sort((left, right) => right.serving.weight_bytes - left.serving.weight_bytes).slice(0, LARGEST);
  const most = Math.max(pool, d3.max(data, ({ serving }) => serving.weight_bytes) || 1);
  const rows = data.map(({ name, serving }) => [
    name,
    `${bytes(serving.weight_bytes)} · ${residency(serving)}`,
    serving.weight_bytes / most,
    serving.resident ? "resident" : "absent",
    `${serving.weight_loads} loads, ${serving.weight_evicts} evictions`,
  ]);
  if (pool && data.length) {
    const used = status.resident_weight_bytes;
    rows.unshift(["all on the device", `${bytes(used)} of ${bytes(pool)}`, used / pool, "total", "weights against their budget"]);
  }
  bars("weights", rows, "No model has weights.");
}

// Where the weights are, and the least that they may sink to.
export function residency(serving) {
  const away = { system: "host memory", unpinned: "disk" }[serving.residency_floor] ?? "not there";
  return serving.resident ? `on device (floor ${serving.residency_floor})` : `${away} (floor ${serving.residency_floor})`;
}

// Lying bars: [name, text, part of the width, kind, title].
function bars(id, data, empty) {
  const figure = d3.select(`#${id}`);
  const rows = figure.selectAll("div.bar").data(data, ([name]) => name);
  const made = rows.enter().append("div").attr("class", "bar");
  made.append("span").attr("class", "name");
  made.append("span").attr("class", "text");
  made.append("span").attr("class", "track").append("span");
  rows.exit().remove();
  rows.order().attr("title", (each) => each[4]);
  rows.select(".name").each(function ([name]) { put(this, name); });
  rows.select(".text").each(function ([, text]) { put(this, text); });
  rows.select(".track > span").attr("class", ([, , , kind]) => kind).style("width", ([, , part]) => `${Math.min(100, 100 * part)}%`);
  const note = figure.selectAll("p.empty").data(data.length ? [] : [empty]);
  note.enter().append("p").attr("class", "empty shown");
  note.exit().remove();
  note.text(String);
}
