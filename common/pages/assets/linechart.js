// A line chart drawn from data: linear or logarithmic height, a read-out under the pointer or the
// arrow keys. `series`: [{name, kind, points: [[x, y]], dots}]; `kind` is a class of the style sheet.

function lineChart({ label, xName, series, format = shortNumber }) {
  const box = { width: 900, height: 340, left: 58, right: 14, top: 14, bottom: 42 };
  const shown = series.filter((line) => line.points.length);
  const xs = [...new Set(shown.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const ys = shown.flatMap((line) => line.points.map(([, y]) => y));
  const low = ys.reduce((least, value) => Math.min(least, value), Infinity);
  const high = ys.reduce((most, value) => Math.max(most, value), -Infinity);
  const canLog = low > 0;
  let logarithmic = false;
  const floor = box.height - box.bottom;
  const x = (value) => {
    const share = xs.length > 1 ? (value - xs[0]) / (xs.at(-1) - xs[0]) : 0.5;
    return box.left + share * (box.width - box.left - box.right);
  };
  let y = null;

  const chart = drawn("svg", {
    class: "chart line-chart", role: "img", "aria-label": label,
    tabindex: "0",
  });
  const read = element("p", { class: "readout num small", "aria-live": "polite" });
  const cursor = drawn("g", { class: "cursor", visibility: "hidden" });

  function scale() {
    if (logarithmic) {
      const [from, to] = [Math.log(low), Math.log(high)];
      const room = (to - from || 1) * 0.06;
      const span = to - from + 2 * room;
      y = (value) => floor - ((Math.log(value) - from + room) / span) * (floor - box.top);
      const marks = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
        for (const factor of [1, 2, 5]) marks.push(factor * 10 ** power);
      }
      const inside = marks.filter((value) => value >= low * 0.97 && value <= high * 1.03);
      return inside.length >= 2 ? inside : ticks(low, high, 5).filter((value) => value > 0);
    }
    const from = low > 0 ? 0 : low;
    const top = high + (high - from) * 0.05 || 1;
    y = (value) => floor - ((value - from) / (top - from)) * (floor - box.top);
    return ticks(from, top, 5);
  }

  function draw() {
    chart.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    const marks = scale();
    const parts = marks.flatMap((value) => [
      drawn("line", { class: "grid", x1: box.left, x2: box.width - box.right, y1: y(value), y2: y(value) }),
      drawn("text", { x: box.left - 10, y: y(value) + 4, "text-anchor": "end" }, format(value)),
    ]);
    for (const value of ticks(xs[0], xs.at(-1), Math.max(2, Math.round(box.width / 130)))) {
      parts.push(drawn("text", { x: x(value), y: floor + 20, "text-anchor": "middle" }, counted(value)));
    }
    parts.push(drawn("line", { class: "axis", x1: box.left, x2: box.width - box.right, y1: floor, y2: floor }));
    parts.push(drawn("text", { x: box.width - box.right, y: box.height - 4, "text-anchor": "end" }, xName));
    for (const line of shown) {
      const path = line.points.map(([px, py], i) => `${i ? "L" : "M"}${x(px).toFixed(1)} ${y(py).toFixed(1)}`);
      parts.push(drawn("path", { class: `line ${line.kind}`, d: path.join("") }));
      if (line.dots) {
        parts.push(...line.points.map(([px, py]) =>
          drawn("circle", { class: `mark ${line.kind}`, cx: x(px), cy: y(py), r: 3.5 })));
      }
    }
    chart.replaceChildren(...parts, cursor);
    point(null);
  }

  // Shows the values at the place `at` of `xs`; a series without a point there shows its last one.
  function point(at) {
    cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) {
      read.textContent = "Point at the chart, or focus it and use the arrow keys, to read values.";
      return;
    }
    const here = xs[at];
    const parts = [drawn("line", { class: "axis", x1: x(here), x2: x(here), y1: box.top, y2: floor })];
    const said = [`${xName} ${counted(here)}`];
    for (const line of shown) {
      const before = line.points.filter(([px]) => px <= here).at(-1);
      if (!before) continue;
      said.push(`${line.name} ${format(before[1])}${before[0] === here ? "" : ` (at ${counted(before[0])})`}`);
      parts.push(drawn("circle", { class: `mark ${line.kind}`, cx: x(before[0]), cy: y(before[1]), r: 4.5 }));
    }
    cursor.replaceChildren(...parts);
    read.textContent = said.join("   ·   ");
  }

  let at = null;
  const nearest = (event) => {
    const area = chart.getBoundingClientRect();
    const wanted = ((event.clientX - area.left) / area.width) * box.width;
    return xs.reduce((best, value, i) => (Math.abs(x(value) - wanted) < Math.abs(x(xs[best]) - wanted) ? i : best), 0);
  };
  chart.addEventListener("pointermove", (event) => point((at = nearest(event))));
  chart.addEventListener("pointerleave", () => point((at = null)));
  chart.addEventListener("blur", () => point((at = null)));
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -xs.length, End: xs.length }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    at = Math.min(Math.max((at ?? (by > 0 ? -1 : xs.length)) + by, 0), xs.length - 1);
    point(at);
  });

  const logSwitch = element("button", { type: "button", "aria-pressed": "false", disabled: !canLog }, "Logarithmic");
  logSwitch.addEventListener("click", () => {
    logarithmic = !logarithmic;
    logSwitch.setAttribute("aria-pressed", String(logarithmic));
    draw();
  });
  const keys = shown.map((line) => {
    const swatch = drawn("svg", { width: 26, height: 10, "aria-hidden": "true" },
      drawn("path", { class: `line ${line.kind}`, d: "M1 5H25" }));
    return element("span", {}, swatch, line.name);
  });
  // Drawn at the width it has on screen, so that its text keeps its size.
  new ResizeObserver(([entry]) => {
    const width = Math.max(240, Math.round(entry.contentRect.width));
    if (width === box.width) return;
    box.width = width;
    draw();
  }).observe(read);
  draw();
  return element("div", { class: "panel" },
    element("div", { class: "chart-head" }, element("div", { class: "keys" }, ...keys), logSwitch),
    chart, read);
}
