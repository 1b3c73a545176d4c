// Line charts over time and bars, drawn by d3 as SVG: colours come from the style sheet, so dark mode needs no redraw.

import { clock, count } from "./format.js";

const HEIGHT = 170;
const MARGIN = { top: 8, right: 16, bottom: 20, left: 46 };
const LEAST_SPAN = 60_000; // milliseconds on the time axis, also of a page just opened
const { d3 } = window;

// A figure with an SVG that follows its width; `draw` is called again when that changes.
function canvas(figure, draw) {
  const svg = d3.select(figure).append("svg").attr("role", "img");
  svg.attr("aria-label", figure.querySelector("figcaption").firstChild.textContent);
  new ResizeObserver(() => draw()).observe(figure);
  return svg;
}

const inner = (figure, svg) => {
  const style = getComputedStyle(figure);
  const width = Math.max(0, figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  svg.attr("width", width).attr("height", HEIGHT);
  return { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
};

const axisOf = (scale, side) => d3.svg.axis().scale(scale).orient(side).outerTickSize(0).innerTickSize(0).tickPadding(6);

// Lines over one time axis. `series`: {name, slot, values, dashed?}; two of a name share a colour and a legend entry.
export class Lines {
  #figure;
  #svg;
  #data = { times: [], series: [] };
  #options;

  // `options`: format of values, least (end of an axis), log (its beginning), whole, onHover(time or null).
  constructor(id, options) {
    this.#figure = document.getElementById(id);
    this.#options = options;
    this.#svg = canvas(this.#figure, () => this.draw());
    this.plot = this.#svg.append("g").attr("transform", `translate(${MARGIN.left},${MARGIN.top})`);
    for (const part of ["grid y", "axis x", "lines", "cursor"]) this.plot.append("g").attr("class", part);
    this.legend = d3.select(this.#figure).append("ul").attr("class", "legend");
    const told = (event) => options.onHover(this.#timeAt(event));
    this.#svg.node().addEventListener("pointermove", told);
    this.#svg.node().addEventListener("pointerdown", told);
    this.#svg.node().addEventListener("pointerleave", () => options.onHover(null));
  }

  update(times, series) {
    this.#data = { times, series };
    this.draw();
  }

  draw() {
    const { times, series } = this.#data;
    const { width, height } = inner(this.#figure, this.#svg);
    if (width <= 0 || !times.length) return;
    this.x = d3.time.scale().domain([Math.min(times[0], times.at(-1) - LEAST_SPAN), times.at(-1)]).range([0, width]);
    const y = this.#vertical(series, height);
    this.#axes(y, width, height);
    const path = d3.svg.line().defined(Number.isFinite).x((_, index) => this.x(times[index])).y((value) => y(value));
    const lines = this.plot.select(".lines").selectAll("path").data(series);
    lines.enter().append("path");
    lines.exit().remove();
    lines.attr("class", (each) => `slot-${each.slot}${each.dashed ? " dashed" : ""}`).attr("d", (each) => path(each.values));
    this.hover(this.hovered ?? null);
  }

  // Marks an instant, and tells the values there; the latest ones without one.
  hover(time) {
    const { times, series } = this.#data;
    if (!this.x || !times.length) return;
    this.hovered = time;
    const index = time === null ? times.length - 1 : Math.max(0, Math.min(d3.bisectLeft(times, time), times.length - 1));
    const cursor = this.plot.select(".cursor").selectAll("line").data(time === null ? [] : [this.x(times[index])]);
    cursor.enter().append("line").attr("y1", 0);
    cursor.exit().remove();
    cursor.attr("x1", Number).attr("x2", Number).attr("y2", HEIGHT - MARGIN.top - MARGIN.bottom);
    this.#tell(series, index, time === null ? "" : clock(times[index]));
  }

  #tell(series, index, when) {
    const entries = d3.nest().key((each) => each.name).entries(series);
    const items = this.legend.selectAll("li").data(entries, (entry) => entry.key);
    const made = items.enter().append("li");
    made.append("i");
    made.append("span").attr("class", "name").text((entry) => entry.key);
    made.append("span").attr("class", "value");
    items.exit().remove();
    items.order().select("i").attr("class", (entry) => `slot-${entry.values[0].slot}`);
    const { format } = this.#options;
    items.select(".value").text((entry) => entry.values.map((each) => format(each.values[index] ?? NaN)).join(" / "));
    this.#figure.dataset.when = when;
  }

  #vertical(series, height) {
    const { least, log } = this.#options;
    const most = d3.max(series, (each) => d3.max(each.values)) || 0;
    if (log) return d3.scale.log().clamp(true).domain([log, Math.max(most, log * 100)]).range([height, 0]).nice();
    return d3.scale.linear().domain([0, Math.max(most, least)]).range([height, 0]).nice();
  }

  #axes(y, width, height) {
    const { format, log, whole } = this.#options;
    const marks = axisOf(y, "left").innerTickSize(-width).tickFormat(format);
    this.plot.select(".grid").call(log ? marks.tickValues(powers(y.domain())) : marks.tickValues(steps(y, whole)));
    const time = axisOf(this.x, "bottom").ticks(Math.max(2, Math.floor(width / 110))).tickFormat(d3.time.format("%H:%M:%S"));
    this.plot.select(".x").attr("transform", `translate(0,${height})`).call(time);
  }

  #timeAt(event) {
    const left = event.clientX - this.#svg.node().getBoundingClientRect().left;
    return this.x ? this.x.invert(left - MARGIN.left).getTime() : null;
  }
}

// Round values of an axis; no halves of what comes in wholes.
const steps = (scale, whole) => scale.ticks(4).filter((value) => !whole || Number.isInteger(value));

// The powers of ten in a domain, so few that their texts do not touch.
function powers(domain) {
  const [low, high] = domain.map((each) => Math.round(Math.log10(each)));
  return d3.range(low, high + 1, Math.ceil((high - low + 1) / 5)).map((power) => 10 ** power);
}

// Upright bars: `counts` maps a number of rows to how often it was seen.
export class Bars {
  #counts = new Map();

  constructor(id, empty) {
    this.figure = document.getElementById(id);
    this.svg = canvas(this.figure, () => this.draw());
    this.plot = this.svg.append("g").attr("transform", `translate(${MARGIN.left},${MARGIN.top})`);
    for (const part of ["grid y", "axis x", "bars"]) this.plot.append("g").attr("class", part);
    this.note = d3.select(this.figure).append("p").attr("class", "empty").text(empty);
  }

  update(counts) {
    this.#counts = counts;
    this.draw();
  }

  draw() {
    const { width, height } = inner(this.figure, this.svg);
    const data = [...binned(this.#counts)].sort((left, right) => left[0] - right[0]);
    this.note.classed("shown", !data.length);
    if (width <= 0) return;
    const x = d3.scale.ordinal().domain(data.map(([rows]) => rows)).rangeRoundBands([0, width], 0.3, 0.2);
    const y = d3.scale.linear().domain([0, d3.max(data, ([, seen]) => seen) || 1]).range([height, 0]).nice();
    this.plot.select(".grid").call(axisOf(y, "left").innerTickSize(-width).tickValues(steps(y, true)).tickFormat(count));
    this.plot.select(".x").attr("transform", `translate(0,${height})`).call(axisOf(x, "bottom"));
    const bars = this.plot.select(".bars").selectAll("rect").data(data, ([rows]) => rows);
    bars.enter().append("rect").append("title");
    bars.exit().remove();
    bars.attr("x", ([rows]) => x(rows)).attr("width", Math.min(x.rangeBand(), 64));
    bars.attr("transform", `translate(${Math.max(0, (x.rangeBand() - 64) / 2)},0)`);
    bars.attr("y", ([, seen]) => y(seen)).attr("height", ([, seen]) => Math.max(height - y(seen), seen ? 1 : 0));
    bars.select("title").text(([rows, seen]) => `${rows} rows: ${seen} times`);
  }
}

const MOST_BARS = 16;

// Many different counts are told by the power of two that holds them.
function binned(counts) {
  if (counts.size <= MOST_BARS) return counts;
  const found = new Map();
  for (const [rows, seen] of counts) {
    const bin = 2 ** Math.ceil(Math.log2(rows));
    found.set(bin, (found.get(bin) ?? 0) + seen);
  }
  return found;
}
