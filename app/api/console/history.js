// What was, for as long as the charts reach back: rings of fixed size, so that an open page never grows.

export const SAMPLES = 600;
export const METRICS = ["actual", "target", "queue", "rate", "p50", "p99"];
const HIGHEST_GAP = 5; // in usual intervals: beyond it the line breaks

const ring = () => new Float32Array(SAMPLES).fill(NaN);

// The models that a status tells of, and those that they call and that nobody else tells of.
export function flatten(models) {
  const found = new Map(models.map((model) => [model.name, { ...model, partOf: "" }]));
  for (const model of models) {
    for (const part of model.parts) {
      if (!found.has(part.name)) found.set(part.name, { ...part, partOf: model.name });
    }
  }
  return found;
}

// What is shown of a status: all of it, or of several workers one, the named or the first that says how it is.
export function shown(told, name) {
  if (!told.workers) return told;
  const worker = told.workers.find((each) => each.name === name) ?? told.workers.find((each) => each.status);
  if (!worker?.status) throw new Error(worker ? `worker ${worker.name} does not answer` : "no worker answers");
  return { ...worker.status, worker: `${worker.name} of ${told.workers.map((each) => `#${each.name}`).join(" ")} · ` };
}

export class History {
  #count = 0;
  #times = new Float64Array(SAMPLES).fill(NaN);
  #series = new Map(); // name → {rings, seen, ok}
  #totals = { queue: ring(), rate: ring() };
  #at = 0;
  #busy = 0;
  busyNow = NaN;

  // One status, as of `now` (milliseconds); `usual` is the time between two. Returns the answers per second since the
  // one before, if they are known.
  add(status, models, now, usual) {
    const elapsed = (now - this.#at) / 1000;
    if (this.#count && now - this.#at > HIGHEST_GAP * usual) this.#write(now - 1, new Map(), NaN, NaN);
    const busy = (status.device_busy_seconds - this.#busy) / elapsed;
    this.busyNow = this.#at && busy >= 0 ? Math.min(busy, 1) : NaN;
    const rate = this.#write(now, models, status.queue_depth, elapsed);
    this.#at = now;
    this.#busy = status.device_busy_seconds;
    return rate;
  }

  // The instants of the samples, oldest first.
  times() {
    return this.#unrolled(this.#times);
  }

  // One metric of one model, beside `times()`; of all together where the name is null.
  values(name, metric) {
    const rings = name === null ? this.#totals : this.#series.get(name)?.rings;
    return rings ? this.#unrolled(rings[metric]) : [];
  }

  latest(name, metric) {
    const rings = this.#series.get(name)?.rings;
    return rings ? rings[metric][(this.#count - 1) % SAMPLES] : NaN;
  }

  get names() {
    return this.#series.size;
  }

  #unrolled(values) {
    const first = this.#count % SAMPLES;
    if (this.#count < SAMPLES) return values.subarray(0, this.#count);
    const found = new values.constructor(SAMPLES);
    found.set(values.subarray(first), 0);
    found.set(values.subarray(0, first), SAMPLES - first);
    return found;
  }

  #write(now, models, queue, elapsed) {
    const slot = this.#count % SAMPLES;
    let total = 0;
    for (const [name, model] of models) {
      if (model.serving) total += this.#sample(name, model, slot, elapsed) || 0;
    }
    for (const [name, kept] of this.#series) {
      if (kept.seen !== this.#count) for (const metric of METRICS) kept.rings[metric][slot] = NaN;
      if (this.#count - kept.seen > SAMPLES) this.#series.delete(name);
    }
    this.#times[slot] = now;
    this.#totals.queue[slot] = queue;
    this.#totals.rate[slot] = this.#at ? total : NaN;
    this.#count += 1;
    return this.#totals.rate[slot];
  }

  #sample(name, model, slot, elapsed) {
    const { serving } = model;
    let kept = this.#series.get(name);
    if (!kept) {
      kept = { rings: Object.fromEntries(METRICS.map((metric) => [metric, ring()])), seen: -1, ok: NaN };
      this.#series.set(name, kept);
    }
    const more = serving.ok - kept.ok;
    const rate = kept.seen === this.#count - 1 && more >= 0 ? more / elapsed : NaN; // fewer: a server that is new
    const told = [serving.share_actual, serving.share_target, serving.queue_depth, rate, serving.wait_p50, serving.wait_p99];
    METRICS.forEach((metric, index) => (kept.rings[metric][slot] = told[index]));
    kept.seen = this.#count;
    kept.ok = serving.ok;
    return model.partOf ? 0 : rate;
  }
}
