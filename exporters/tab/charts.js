// Plots as SVG, drawn at the width they are shown with so that their text keeps its size. Text goes in as text nodes only.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 230;
const MARGIN = { top: 12, right: 88, bottom: 34, left: 58 };

/** Seconds as ms with four significant digits, as the report and the console write them. */
export function ms(seconds) {
  const value = seconds * 1e3;
  return value >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(4)));
}

/** How a figure differs from the baseline's, in the comparison's own words. */
export function change(value, base) {
  if (!(base > 0)) return value > 0 ? "from none" : "+0.0\u00a0%";
  const ratio = value / base;
  return ratio >= 2 ? `× ${ratio.toFixed(2)}` : `${ratio >= 1 ? "+" : "−"}${Math.abs((ratio - 1) * 100).toFixed(1)}\u00a0%`;
}

function node(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function logTicks(low, high) {
  const found = [];
  for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.ceil(Math.log10(high)); exponent += 1) {
    for (const step of high / low < 8 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : [1, 2, 5]) {
      const value = step * 10 ** exponent;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  // A wide range has room for its powers of ten only.
  return found.length > 7 ? found.filter((value) => /^1(e|$|0*$)|^0\.0*1$/.test(String(Number(value.toPrecision(3))))) : found;
}

function niceTicks(high, most) {
  const rough = high / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let value = 0; value <= high * 1.0001; value += step) found.push(value);
  return found;
}

const logScale = (low, high, from, to) => (value) =>
  from + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (to - from);

function frame(svg, description) {
  const width = Math.max(svg.clientWidth || svg.parentElement.clientWidth || 480, 260);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("height", HEIGHT);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", description);
  svg.replaceChildren();
  return { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: HEIGHT - MARGIN.bottom };
}

function say(svg, box, text) {
  svg.append(node("text", { x: (box.left + box.right) / 2, y: HEIGHT / 2, class: "empty", "text-anchor": "middle" }, text));
}

function axes(svg, box, x, xTicks, xText, y, yTicks, yText, xName) {
  for (const tick of yTicks) {
    svg.append(node("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), class: "grid" }));
    svg.append(node("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, yText(tick)));
  }
  for (const tick of xTicks) {
    svg.append(node("text", { x: x(tick), y: box.bottom + 16, "text-anchor": "middle" }, xText(tick)));
  }
  svg.append(node("text", { x: (box.left + box.right) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, xName));
}

/** Labels at the right end, pushed apart where they would cover each other. */
function endLabels(svg, box, labels) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => {
    label.at = Math.max(label.y, i ? labels[i - 1].at + 13 : box.top);
    svg.append(node("text", { x: box.right + 6, y: label.at + 4, class: `label ${label.kind}` }, label.text));
  });
}

/**
 * Quantiles over time. `points`: [seconds, p50, p95, p99], seconds or null; `baseline`: {p50, p95, p99} or {}.
 */
export function overTime(svg, name, points, baseline) {
  const levels = ["p50", "p95", "p99"];
  const values = points.flatMap((point) => point.slice(1)).filter((value) => value > 0);
  const last = Object.fromEntries(levels.map((level, i) => [level, points.at(-1)?.[i + 1] ?? null]));
  const told = levels.filter((level) => last[level]).map((level) => `${level} ${ms(last[level])} ms`);
  const box = frame(svg, `${name} over time, ms, log scale. Now: ${told.join(", ") || "too few observations"}`);
  if (!values.length) return say(svg, box, "too few observations yet");
  const bases = levels.map((level) => baseline[level]).filter((value) => value > 0);
  const low = Math.min(...values, ...bases) / 1.15;
  const high = Math.max(...values, ...bases) * 1.15;
  const end = Math.max(points.at(-1)[0], 4);
  const x = (seconds) => box.left + (seconds / end) * (box.right - box.left);
  const y = logScale(low, high, box.bottom, box.top);
  const clock = (s) => (end >= 180 ? `${Math.floor(s / 60)}:${String(Math.round(s % 60)).padStart(2, "0")}` : `${s}`);
  const xName = end >= 180 ? "minutes since the warm-up" : "seconds since the warm-up";
  axes(svg, box, x, niceTicks(end, 6), clock, y, logTicks(low, high), (tick) => ms(tick), xName);
  for (const level of levels) {
    if (baseline[level] > 0) {
      const at = y(baseline[level]);
      svg.append(node("line", { x1: box.left, x2: box.right, y1: at, y2: at, class: `base ${level}` }));
    }
  }
  const labels = [];
  levels.forEach((level, i) => {
    const kept = points.filter((point) => point[i + 1] > 0);
    if (!kept.length) return;
    const line = kept.map((point) => `${x(point[0]).toFixed(1)},${y(point[i + 1]).toFixed(1)}`);
    if (kept.length > 1) svg.append(node("polyline", { points: line.join(" "), class: `run ${level}` }));
    const [cx, cy] = line.at(-1).split(",");
    svg.append(node("circle", { cx, cy, r: 2.5, class: `dot ${level}` }));
    labels.push({ y: Number(cy), kind: level, text: `${level} ${ms(kept.at(-1)[i + 1])}` });
  });
  endLabels(svg, box, labels);
}

/** Shares by latency, both axes logarithmic. `bins`, `baseline`: [from_s, to_s, share]. */
export function distribution(svg, name, bins, baseline) {
  const all = [...bins, ...baseline];
  const box = frame(svg, `Distribution of ${name}: share of the observations by latency, both axes logarithmic`);
  box.right += MARGIN.right - 20;
  if (!bins.length) return say(svg, box, "no observations yet");
  const low = Math.min(...all.map((bin) => bin[0])) / 1.05;
  const high = Math.max(...all.map((bin) => bin[1])) * 1.05;
  const least = Math.min(...all.map((bin) => bin[2])) / 1.5;
  const most = Math.min(Math.max(...all.map((bin) => bin[2])) * 1.5, 1.5);
  const x = logScale(low, high, box.left, box.right);
  const y = logScale(least, most, box.bottom, box.top);
  const percent = (share) => `${Number((share * 100).toPrecision(2))} %`;
  const decades = logTicks(least, most);
  axes(svg, box, x, logTicks(low, high), (tick) => ms(tick), y, decades, percent, "ms, log scale");
  // Steps that touch are joined; a gap stays one.
  const outline = (shares) =>
    shares
      .map(([from, to, share], i) => {
        const joined = i > 0 && Math.abs(shares[i - 1][1] - from) < from * 1e-9;
        const start = joined ? `V${y(share).toFixed(1)}` : `M${x(from).toFixed(1)},${y(share).toFixed(1)}`;
        return `${start}H${x(to).toFixed(1)}`;
      })
      .join("");
  for (const [from, to, share] of bins) {
    const top = y(share);
    svg.append(node("rect", { x: x(from), y: top, width: Math.max(x(to) - x(from), 1), height: box.bottom - top, class: "bar" }));
  }
  svg.append(node("path", { d: outline(bins), class: "run p99" }));
  if (baseline.length) svg.append(node("path", { d: outline(baseline), class: "base p99" }));
}
