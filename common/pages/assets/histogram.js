// How one score is spread over the clips: kept, rejected outside its limit, rejected within it.

const HISTOGRAM = { width: 400, height: 172, left: 4, right: 4, top: 26, bottom: 24, bins: 40 };

// Range of the bins. The outermost half percent on each side is put into the end bins, so that one
// stray value does not press all the others into one bar; limits are always within the range.
function histogramRange(values, limits) {
  const sorted = Float64Array.from(values).sort();
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  let low = Math.min(at(0.005), ...limits);
  let high = Math.max(at(0.995), ...limits);
  if (high <= low) {
    low -= 0.5;
    high += 0.5;
  }
  const margin = limits.length ? (high - low) * 0.02 : 0;
  return [low - margin, high + margin];
}

// `groups[i]`: 0 kept, 1 rejected and outside the bounds, 2 rejected and within. `bounds`: {min, max}.
function histogram(name, values, groups, bounds) {
  const box = HISTOGRAM;
  const known = values.filter((value) => value !== null);
  const sides = Object.entries(bounds);
  const totals = [0, 0, 0];
  values.forEach((value, i) => { if (value !== null) totals[groups[i]] += 1; });
  const missing = values.length - known.length;
  const said = [
    `${counted(known.length)} clips measured`,
    missing ? `${counted(missing)} without a valid measure` : null,
    totals[1] ? `${counted(totals[1])} rejected outside the limit` : null,
  ].filter(Boolean).join(", ");
  const panel = element("article", { class: "panel histogram" },
    element("h3", {}, element("span", { class: "untrusted" }, name)), element("p", {}, said));
  if (!known.length) return panel;

  const [low, high] = histogramRange(known, sides.map(([, value]) => value));
  const counts = Array.from({ length: box.bins }, () => [0, 0, 0]);
  values.forEach((value, i) => {
    if (value === null) return;
    const bin = Math.floor(((value - low) / (high - low)) * box.bins);
    counts[Math.min(Math.max(bin, 0), box.bins - 1)][groups[i]] += 1;
  });
  const tallest = Math.max(...counts.map((bin) => bin[0] + bin[1] + bin[2]));
  const inner = { width: box.width - box.left - box.right, height: box.height - box.top - box.bottom };
  const x = (value) => box.left + ((value - low) / (high - low)) * inner.width;
  const chart = drawn("svg", {
    class: "chart", viewBox: `0 0 ${box.width} ${box.height}`, role: "img",
    "aria-label": `${name}: ${said}, from ${shortNumber(low)} to ${shortNumber(high)}`,
  });
  const wide = inner.width / box.bins;
  counts.forEach((bin, i) => {
    let base = box.height - box.bottom;
    ["kept-bar", "here-bar", "rejected-bar"].forEach((kind, group) => {
      // A bin with a single clip among thousands must still be seen.
      const tall = bin[group] ? Math.max((bin[group] / tallest) * inner.height, 1.5) : 0;
      base -= tall;
      if (tall) {
        chart.append(drawn("rect", {
          class: kind, x: box.left + i * wide + 0.5, y: base, width: wide - 1, height: tall,
        }));
      }
    });
  });
  const floor = box.height - box.bottom;
  chart.append(drawn("line", { class: "axis", x1: box.left, x2: box.width - box.right, y1: floor, y2: floor }));
  for (const value of ticks(low, high, 5)) {
    if (x(value) < box.left + 8 || x(value) > box.width - box.right - 8) continue;
    chart.append(drawn("text", { x: x(value), y: box.height - 6, "text-anchor": "middle" }, shortNumber(value)));
  }
  for (const [side, value] of sides) {
    chart.append(drawn("line", { class: "limit", x1: x(value), x2: x(value), y1: box.top - 8, y2: floor }));
    const anchor = x(value) > box.width * 0.6 ? "end" : "start";
    chart.append(drawn("text", {
      class: "limit-label", x: x(value), y: box.top - 13, "text-anchor": anchor,
    }, `${side === "min" ? "at least" : "at most"} ${shortNumber(value)}`));
  }
  panel.append(chart);
  return panel;
}
