// The cuts of every video: its clips side by side over its length, in the colour of their fate, and
// below them, while other limits are tried, which would be kept.

const TRACK = { width: 1000, height: 30, trial: 8 };

// `pick(source)` is called when a viewer wants the clips of one video, `open(i, among)` shows one.
function makeTimeline({ clips, labels, trial, cards, pick, open }) {
  const sources = clips.source.values;
  const starts = new Uint32Array(sources.length + 1);
  for (const row of clips.source.rows) starts[row + 1] += 1;
  for (let at = 0; at < sources.length; at += 1) starts[at + 1] += starts[at];
  const places = new Uint32Array(clips.count);
  const next = starts.slice();
  for (let i = 0; i < clips.count; i += 1) {
    places[next[clips.source.rows[i]]] = i;
    next[clips.source.rows[i]] += 1;
  }
  const ofSource = (source) =>
    places.subarray(starts[source], starts[source + 1]).sort((a, b) => clips.start_us[a] - clips.start_us[b] || a - b);
  const endOf = (i) => clips.start_us[i] + clips.length_us[i];

  const updates = new WeakMap();
  const make = (source) => {
    const among = ofSource(source);
    let length = (clips.source.duration_s?.[source] ?? 0) * 1e6;
    for (const i of among) length = Math.max(length, endOf(i));
    const x = (us) => (us / (length || 1)) * TRACK.width;
    const slot = (i, top, tall) => {
      const wide = Math.max(x(clips.length_us[i]), 0.4);
      return `M${x(clips.start_us[i]).toFixed(2)} ${top}h${wide.toFixed(2)}v${tall}h${(-wide).toFixed(2)}z`;
    };
    const byLabel = new Map();
    for (const i of among) byLabel.set(clips.label[i], (byLabel.get(clips.label[i]) ?? "") + slot(i, 0, TRACK.height));
    const now = drawn("path", { class: "fill-kept" });
    const svg = drawn("svg", {
      class: "cuts", viewBox: `0 0 ${TRACK.width} ${TRACK.height + TRACK.trial}`, preserveAspectRatio: "none", role: "img",
      "aria-label": `${counted(among.length)} clips of ${sources[source]} over ${spoken(length / 1e6)}`,
    }, ...[...byLabel].map(([label, path]) => drawn("path", { class: labels[label].colour, d: path })), now);
    const said = element("span", { class: "meta num" });
    const name = element("button", { type: "button", class: "track-name", title: sources[source] },
      element("span", { class: "untrusted", dir: "auto" }, fileName(sources[source])));
    name.addEventListener("click", () => pick(source));
    const at = (event) => {
      const rect = svg.getBoundingClientRect();
      const us = ((event.clientX - rect.left) / rect.width) * length;
      return among.find((i) => clips.start_us[i] <= us && us < endOf(i));
    };
    const summary = () => {
      let kept = 0;
      for (const i of among) kept += trial.is(i);
      return `${counted(kept)} of ${counted(among.length)} clips kept, ${spoken(length / 1e6)}`;
    };
    svg.addEventListener("pointermove", (event) => {
      const i = at(event);
      said.textContent = i === undefined ? "no clip here" : `${cards.span(i)} ${labels[clips.label[i]].name}`;
    });
    svg.addEventListener("pointerleave", () => { said.textContent = summary(); });
    svg.addEventListener("click", (event) => {
      const i = at(event);
      if (i !== undefined) open(i, among);
    });
    const track = element("li", { class: "track" },
      element("div", { class: "track-head" }, name, said), svg);
    let before = null;
    updates.set(track, () => {
      const tried = trial.changed();
      const path = tried ? Array.from(among.filter(trial.is), (i) => slot(i, TRACK.height + 2, TRACK.trial - 2)).join("") : "";
      if (path === before) return;
      before = path;
      now.setAttribute("d", path);
      said.textContent = summary();
    });
    return track;
  };
  const grid = makeGrid({
    label: "Cuts by video", minWidth: 1e9, gap: 14, rowHeight: () => 66, make,
    update: (track) => updates.get(track)(),
  });
  grid.node.classList.add("tracks");
  grid.set(sources.map((_, source) => source));
  return grid;
}
