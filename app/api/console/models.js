// The table of models: searched, sorted, and no longer than what a browser draws at once.

import { bytes, count, percent, put, seconds } from "./format.js";
import { dropsOf, residency } from "./panels.js";

const { d3 } = window;

const FIRST = 25;
const MORE = 50;

const number = (pick) => (row) => (row.serving ? pick(row.serving, row) : NaN);

// Heading, text, what is sorted by (numbers: the largest first).
const COLUMNS = [
  ["Model", (row) => row.name, (row) => row.name],
  ["State", (row) => row.state, (row) => (row.state === "READY" ? `~${row.state}` : row.state)],
  ["Share / target", (row) => (row.serving ? `${percent(row.serving.share_actual)} / ${percent(row.serving.share_target)}` : ""), number((told) => told.share_actual)],
  ["Queue", (row) => count(number((told) => told.queue_depth)(row)), number((told) => told.queue_depth)],
  ["Answers/s", (row) => count(row.rate), (row) => row.rate],
  ["Answered", (row) => count(number((told) => told.ok)(row)), number((told) => told.ok)],
  ["Failed", (row) => count(number((told) => told.failed)(row)), number((told) => told.failed)],
  ["Dropped", (row) => count(number(dropsOf)(row)), number(dropsOf)],
  ["Rows/run", (row) => count(number(perRun)(row)), number(perRun)],
  ["p50", (row) => seconds(number((told) => told.wait_p50)(row)), number((told) => told.wait_p50)],
  ["p99", (row) => seconds(number((told) => told.wait_p99)(row)), number((told) => told.wait_p99)],
  ["Weights", (row) => (row.serving ? `${bytes(row.serving.weight_bytes)}, ${residency(row.serving)}` : ""), number((told) => told.weight_bytes)],
];

function perRun(serving) {
  return serving.dispatches ? serving.rows / serving.dispatches : NaN;
}

export class Table {
  #limit = FIRST;
  #rows = [];
  #shown = { slots: new Map(), focus: new Set() };

  // `pick(name)` is called when a reader asks for the charts of one model.
  constructor(pick) {
    this.search = document.getElementById("search");
    this.sort = document.getElementById("sort");
    this.more = document.getElementById("more");
    this.count = document.getElementById("count");
    this.pick = pick;
    const orders = [["Busiest", "busy"], ...COLUMNS.map(([heading], index) => [heading, index])];
    d3.select(this.sort).selectAll("option").data(orders).enter().append("option").attr("value", (each) => each[1]).text((each) => each[0]);
    const heads = d3.select("#models thead tr").selectAll("th").data(COLUMNS).enter().append("th").attr("scope", "col");
    heads.append("button").text(([heading]) => heading).on("click", (_, index) => this.#by(index));
    this.search.addEventListener("input", () => this.draw());
    this.sort.addEventListener("change", () => this.draw());
    this.more.addEventListener("click", () => {
      this.#limit += MORE;
      this.draw();
    });
  }

  // `models`: with `rate` and `score`; `slots`: name → colour of those in the charts; `focus`: the picked ones.
  update(models, slots, focus) {
    this.#rows = models;
    this.#shown = { slots, focus };
    this.draw();
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => `${row.name} ${row.state} ${row.reason} ${row.partOf}`.toLowerCase();
    const found = this.#rows.filter((row) => words.every((word) => text(row).includes(word))).sort(this.#order());
    const shown = found.slice(0, this.#limit);
    put(this.count, `${shown.length} of ${this.#rows.length} models${words.length ? `, ${found.length} match` : ""}`);
    this.more.hidden = shown.length === found.length;
    const rows = d3.select("#models tbody").selectAll("tr").data(shown, (row) => row.name);
    this.#make(rows.enter().append("tr"));
    rows.exit().remove();
    rows.order().attr("class", (row) => `${row.state.toLowerCase()} ${this.#shown.focus.has(row.name) ? "picked" : ""}`);
    this.#fill(rows);
  }

  #by(index) {
    this.sort.value = index;
    this.draw();
  }

  #order() {
    if (this.sort.value === "busy") return (left, right) => right.score - left.score || d3.ascending(left.name, right.name);
    const value = COLUMNS[this.sort.value][2];
    const known = (row) => (Number.isNaN(value(row)) ? -1 : value(row));
    return (left, right) => {
      const texts = typeof value(left) === "string";
      return (texts ? d3.ascending : d3.descending)(known(left), known(right)) || d3.ascending(left.name, right.name);
    };
  }

  #make(made) {
    const cells = made.selectAll("td").data(COLUMNS).enter().append("td").attr("data-label", ([heading]) => heading);
    cells.filter((_, index) => index).append("span");
    const first = made.select("td:first-child");
    first.append("button").attr("title", "Draw the charts of this model").on("click", (row) => this.pick(row.name));
    first.select("button").append("i");
    first.select("button").append("span");
    first.append("small");
  }

  #fill(rows) {
    const table = this;
    rows.each(function (row) {
      const { slots } = table.#shown;
      const [first, ...others] = this.children;
      first.querySelector("i").className = slots.has(row.name) ? `slot-${slots.get(row.name)}` : "";
      put(first.querySelector("span"), row.name);
      put(first.querySelector("small"), (row.serving && row.reason) || (row.partOf ? `part of ${row.partOf}` : ""));
      others.forEach((cell, index) => put(cell.firstChild, COLUMNS[index + 1][1](row)));
      // A model that does not serve has no figures: its reason has their cells, since no column is wide enough for it.
      const [, told, ...figures] = others;
      const why = !row.serving && row.reason;
      told.colSpan = why ? figures.length + 1 : 1;
      told.className = why ? "why" : "";
      told.dataset.label = why ? "Reason" : COLUMNS[2][0];
      if (why) put(told.firstChild, row.reason);
      figures.forEach((cell) => (cell.hidden = Boolean(why)));
    });
  }
}
