// How one score is spread over the clips, with a handle for each limit that it may have: kept,
// rejected outside the limits of this score, rejected for another reason. All three follow what is
// being tried.

const HISTOGRAM = { width: 320, height: 132, left: 6, right: 6, top: 24, bottom: 20, bins: 48 };

// Range of the bins. The outermost half percent on each side is put into the end bins, so that one
// stray value does not press all the others into one bar; limits are always within the range.
function histogramRange(order, values, limits) {
  const at = (share) => values[order[Math.min(order.length - 1, Math.floor(share * order.length))]];
  const low = Math.min(at(0.005), ...limits);
  const high = Math.max(at(0.995), ...limits);
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

// `unit` may be none; `sort()` is called when a viewer wants the clips in the order of this score.
// `moved(at, settled)` is called when a viewer tries another limit of rule `at`; `settled` once the
// hand is off. `thumb(i)` is the small picture of a clip, `open(i)` shows its details.
function histogram(name, values, trial, { unit, sort, moved, thumb, open }) {
  const box = HISTOGRAM;
  const order = trial.orderOf(name);
  const sides = trial.rules.flatMap((rule, at) => (rule.score === name ? [at] : []));
  const said = element("p", { class: "num" });
  const title = element("button", { type: "button", class: "sort-by", title: "Sort the clips by this" },
    element("span", { class: "untrusted" }, name));
  title.addEventListener("click", sort);
  const panel = element("article", { class: "panel histogram", "data-score": name },
    element("h3", {}, title, unit ? element("span", { class: "unit" }, unit) : ""), said);
  if (!order.length) {
    said.textContent = "no clip has a valid measure";
    return { node: panel, update: () => {} };
  }
  const [low, high] = histogramRange(order, values,
    sides.map((at) => trial.limits[at]).filter((limit) => limit !== null));
  const inner = { width: box.width - box.left - box.right, height: box.height - box.top - box.bottom };
  const floor = box.height - box.bottom;
  const x = (value) => box.left + Math.min(Math.max((value - low) / (high - low), 0), 1) * inner.width;
  const step = 10 ** Math.floor(Math.log10((high - low) / 300));
  // What is shown is what counts, so limits have few digits.
  const rounded = (value) => Number((Math.round(value / step) * step).toPrecision(12));

  const bins = new Uint8Array(values.length).fill(255);
  for (const i of order) {
    const bin = Math.floor(((values[i] - low) / (high - low)) * box.bins);
    bins[i] = Math.min(Math.max(bin, 0), box.bins - 1);
  }
  const chart = drawn("svg", { class: "chart", viewBox: `0 0 ${box.width} ${box.height}` });
  const bars = ["kept-bar", "here-bar", "rejected-bar"].map((kind) => {
    const bar = drawn("path", { class: kind });
    chart.append(bar);
    return bar;
  });
  chart.append(drawn("line", { class: "axis", x1: box.left, x2: box.width - box.right, y1: floor, y2: floor }));
  for (const value of ticks(low, high, 4)) {
    if (x(value) < box.left + 10 || x(value) > box.width - box.right - 10) continue;
    chart.append(drawn("text", { x: x(value), y: box.height - 5, "text-anchor": "middle" }, shortNumber(value)));
  }

  const wide = inner.width / box.bins;
  const counts = [0, 1, 2].map(() => new Uint32Array(box.bins));
  const drawBars = () => {
    for (const group of counts) group.fill(0);
    const bounds = { min: -Infinity, max: Infinity };
    for (const at of sides) bounds[trial.rules[at].side] = trial.limits[at] ?? bounds[trial.rules[at].side];
    let outside = 0;
    for (const i of order) {
      const value = values[i];
      const out = value < bounds.min || value > bounds.max;
      outside += out;
      counts[trial.against[i] === 0 ? 0 : out ? 1 : 2][bins[i]] += 1;
    }
    let tallest = 1;
    for (let bin = 0; bin < box.bins; bin += 1) {
      tallest = Math.max(tallest, counts[0][bin] + counts[1][bin] + counts[2][bin]);
    }
    const base = new Float64Array(box.bins).fill(floor);
    counts.forEach((group, kind) => {
      let path = "";
      for (let bin = 0; bin < box.bins; bin += 1) {
        if (!group[bin]) continue;
        // A bin with a single clip among thousands must still be seen.
        const tall = Math.max((group[bin] / tallest) * inner.height, 1.5);
        base[bin] -= tall;
        path += `M${(box.left + bin * wide + 0.5).toFixed(2)} ${base[bin].toFixed(2)}h${(wide - 1).toFixed(2)}v${tall.toFixed(2)}h${(1 - wide).toFixed(2)}z`;
      }
      bars[kind].setAttribute("d", path);
    });
    const missing = values.length - order.length;
    said.textContent = `${counted(outside)} of ${counted(order.length)} outside`
      + (missing ? `, ${counted(missing)} without a measure` : "");
    chart.setAttribute("aria-label", `${name}: ${said.textContent}`);
  };

  const change = (at, wanted, settled) => {
    const { side } = trial.rules[at];
    const other = sides.find((one) => one !== at);
    let value = wanted;
    if (value !== null && other !== undefined && trial.limits[other] !== null) {
      value = side === "min" ? Math.min(value, trial.limits[other]) : Math.max(value, trial.limits[other]);
    }
    trial.set(at, value);
    moved(at, settled);
  };
  // A place on the chart as a limit; the end of the chart on its own side is no limit.
  const valueAt = (side, share) => {
    if (side === "min" ? share <= 0.004 : share >= 0.996) return null;
    return rounded(low + Math.min(Math.max(share, 0), 1) * (high - low));
  };
  const handles = sides.map((at) => limitHandle({ name, at, trial, x, floor, low, high, change, valueAt }));
  chart.append(...handles.map((handle) => handle.node));
  const shareOf = (event) => {
    const rect = chart.getBoundingClientRect();
    return (((event.clientX - rect.left) / rect.width) * box.width - box.left) / inner.width;
  };
  let dragged = null;
  chart.addEventListener("pointerdown", (event) => {
    if (!sides.length || event.button) return;
    const share = shareOf(event);
    const far = (at) => Math.abs((x(trial.limits[at] ?? (trial.rules[at].side === "min" ? low : high)) - box.left) / inner.width - share);
    dragged = sides.reduce((best, at) => (far(at) < far(best) ? at : best));
    chart.setPointerCapture(event.pointerId);
    handles[sides.indexOf(dragged)].node.focus({ preventScroll: true });
    change(dragged, valueAt(trial.rules[dragged].side, share), false);
    event.preventDefault();
  });
  chart.addEventListener("pointermove", (event) => {
    if (dragged !== null) change(dragged, valueAt(trial.rules[dragged].side, shareOf(event)), false);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    chart.addEventListener(kind, () => {
      if (dragged !== null) moved(dragged, true);
      dragged = null;
    });
  }
  const strips = sides.map((at) => borderStrip(at, trial, thumb, open));
  panel.append(chart);
  if (sides.length) {
    panel.append(element("div", { class: "limit-fields" }, ...handles.map((handle) => handle.field)),
      ...strips.map((strip) => strip.node));
  }
  return {
    node: panel,
    // `whole`: also what takes pictures to show.
    update(whole, at) {
      drawBars();
      handles.forEach((handle) => handle.update());
      strips.forEach((strip, k) => { if (whole || sides[k] === at) strip.update(); });
    },
  };
}

// The line of one limit, which can be dragged and moved by keys, and the field to type it into.
function limitHandle({ name, at, trial, x, floor, low, high, change, valueAt }) {
  const rule = trial.rules[at];
  const word = rule.side === "min" ? "at least" : "at most";
  const line = drawn("line", { y1: HISTOGRAM.top - 6, y2: floor });
  const grip = drawn("rect", { class: "grip", y: HISTOGRAM.top + 14, width: 9, height: 26, rx: 4.5 });
  const label = drawn("text", { class: "limit-label", y: HISTOGRAM.top - 11 });
  const node = drawn("g", {
    class: "limit", tabindex: "0", role: "slider", "aria-label": `${name}: ${word}`,
    "aria-valuemin": low, "aria-valuemax": high,
  }, line, grip, label);
  const input = element("input", {
    type: "number", step: "any", placeholder: "none", "aria-label": `${rule.setting}`, id: `limit ${rule.setting}`,
  });
  const asked = element("span", { class: "untrusted asked" });
  const update = () => {
    const limit = trial.limits[at];
    const place = x(limit ?? (rule.side === "min" ? -Infinity : Infinity));
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    grip.setAttribute("x", place - 4.5);
    label.setAttribute("x", place);
    label.setAttribute("text-anchor", place > HISTOGRAM.width * 0.6 ? "end" : "start");
    label.textContent = limit === null ? "" : `${word} ${shortNumber(limit)}`;
    node.classList.toggle("off", limit === null);
    node.setAttribute("aria-valuenow", limit ?? (rule.side === "min" ? low : high));
    node.setAttribute("aria-valuetext", limit === null ? "no limit" : shortNumber(limit));
    if (document.activeElement !== input) input.value = limit ?? "";
    asked.textContent = rule.typed && limit === rule.limit ? rule.typed : "";
  };
  node.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
    if (event.key === "Delete" || event.key === "Backspace") change(at, null, true);
    else if (event.key in steps) {
      const from = trial.limits[at] ?? (rule.side === "min" ? low : high);
      change(at, valueAt(rule.side, (from - low) / (high - low) + steps[event.key] / 100), true);
    } else return;
    event.preventDefault();
  });
  input.addEventListener("change", () => {
    const typed = input.value.trim() === "" ? null : input.valueAsNumber;
    if (typed === null || Number.isFinite(typed)) change(at, typed, true);
    input.value = trial.limits[at] ?? "";
  });
  const field = element("label", { class: "limit-field" }, element("span", {}, word), input, asked);
  return { node, field, update };
}

// The clips at a limit: the last that it rejects, and the first that it lets pass.
function borderStrip(at, trial, thumb, open) {
  const each = 3;
  const rejected = element("div", { class: "border-side" });
  const kept = element("div", { class: "border-side" });
  const min = trial.rules[at].side === "min";
  const node = element("div", { class: "border" },
    ...(min ? [rejected, kept] : [kept, rejected]));
  let before = "";
  const fill = (side, clips, word, mirrored) => {
    const buttons = clips.map((i) => {
      const button = element("button", { type: "button", class: "tiny", "data-clip": i, "aria-label": `${word} clip` }, thumb(i));
      button.addEventListener("click", () => open(i));
      return button;
    });
    side.replaceChildren(...(mirrored ? buttons.reverse() : buttons));
    side.className = `border-side ${word}`;
  };
  return {
    node,
    update() {
      const limit = trial.limits[at];
      const found = trial.border(at, each);
      const key = `${limit === null} ${found.rejected} ${found.kept}`;
      if (key === before) return;
      before = key;
      fill(rejected, found.rejected, "rejected", min);
      fill(kept, found.kept, "kept", !min);
      node.hidden = limit === null;
    },
  };
}
