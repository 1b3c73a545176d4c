// Numbers as people read them: three digits and a unit. What is not known is a dash.

const UNITS = ["B", "kB", "MB", "GB", "TB"];
const three = (value) => (value >= 999.5 ? Math.round(value).toString() : Number(value.toPrecision(3)).toString());

export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  let unit = 0;
  while (count >= 999.5 && unit < UNITS.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${three(count)} ${UNITS[unit]}`;
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  if (value >= 0.9995) return `${three(value)} s`;
  return value >= 0.0009995 ? `${three(value * 1e3)} ms` : `${three(value * 1e6)} µs`;
}

export function percent(part) {
  if (!Number.isFinite(part)) return "–";
  if (part > 0 && part < 0.0005) return "< 0.1 %";
  return part > 0 && part < 0.0995 ? `${(part * 100).toFixed(1)} %` : `${Math.round(part * 100)} %`;
}

export function count(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 999.5) return Number.isInteger(value) ? value.toString() : three(value);
  for (const [factor, unit] of [[1e3, "k"], [1e6, "M"], [1e9, "G"]]) {
    if (value < factor * 999.5) return `${three(value / factor)} ${unit}`;
  }
  return value.toExponential(2);
}

export const clock = (time) => new Date(time).toLocaleTimeString([], { hourCycle: "h23" });

// Sets a text only where it differs, so that an idle page costs nothing.
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
