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

// `groups[i]`: 0 kept, 1 rejected and outside the bounds, 2 rejected and within. `bounds`: {min, max};
// each has a slider, and `moved(side, value)` is called when a viewer tries another value.
function histogram(name, values, groups, bounds, moved) {
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
  const sliders = sides.map(([side, value]) => limitSlider({ name, side, value, low, high, x, floor, chart, moved }));
  panel.append(chart, ...sliders);
  return panel;
}

// The dashed line of one bound, and the slider that moves it.
function limitSlider({ name, side, value, low, high, x, floor, chart, moved }) {
  const word = side === "min" ? "at least" : "at most";
  const line = drawn("line", { class: "limit", y1: HISTOGRAM.top - 8, y2: floor });
  const label = drawn("text", { class: "limit-label", y: HISTOGRAM.top - 13 });
  chart.append(line, label);
  const input = element("input", {
    type: "range", min: low, max: high, step: "any", "aria-label": `${name}: ${word}`,
  });
  const show = (limit) => {
    const at = x(limit);
    line.setAttribute("x1", at);
    line.setAttribute("x2", at);
    label.setAttribute("x", at);
    label.setAttribute("text-anchor", at > HISTOGRAM.width * 0.6 ? "end" : "start");
    label.textContent = `${word} ${shortNumber(limit)}`;
    input.setAttribute("aria-valuetext", shortNumber(limit));
  };
  input.value = value;
  show(value);
  input.addEventListener("input", () => {
    // What is shown is what counts: three digits, as they can be copied.
    const limit = Number(input.valueAsNumber.toPrecision(3));
    show(limit);
    moved(side, limit);
  });
  input.addEventListener("reset-limit", () => {
    input.value = value;
    show(value);
  });
  return element("label", { class: "slider" }, word, input);
}
