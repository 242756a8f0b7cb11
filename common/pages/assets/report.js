// The curation report. Data block `clips`, one entry per clip in each column:
//   count, id[], label (place in `labels`), thumb (1 where thumbs/ID.jpg exists),
//   scores {name: numbers, NaN where there is no valid measure}, units {name: unit}, rules (see limits.js),
//   decided_by (the setting that the run's limits follow from, or null); and where known start_us,
//   end_us, fps, num_frames, and as {values[], rows} source (with duration_s[]), caption, size,
//   caption_source, bucket, camera.
// Data block `labels`: [{name, kind, colour}]; the first is what was kept.
// Data block `tables`: sources and failures, for pagedTable.

const clips = readClips(readData("clips"));
const labels = readData("labels");
const tables = readData("tables");
const scoreNames = Object.keys(clips.scores);
const everyClip = Uint32Array.from({ length: clips.count }, (_, i) => i);

function readClips(raw) {
  const read = { ...raw, scores: {} };
  for (const [name, column] of Object.entries(raw.scores)) read.scores[name] = readColumn(column);
  for (const name of ["label", "thumb", "start_us", "end_us", "fps", "num_frames"]) {
    if (raw[name]) read[name] = readColumn(raw[name]);
  }
  for (const name of ["source", "caption", "size", "caption_source", "bucket", "camera"]) {
    if (raw[name]) read[name] = { ...raw[name], rows: readColumn(raw[name].rows) };
  }
  read.length_us = read.end_us ? read.end_us.map((end, i) => end - read.start_us[i]) : null;
  return read;
}

const state = { label: "all", query: "", source: "all", sort: "source", falling: false, focus: null };
const scoreReasons = new Set(clips.rules.map((rule) => rule.reason));
const trial = makeTrial({
  count: clips.count, label: clips.label, scores: clips.scores, rules: clips.rules,
  lengths: clips.length_us ?? new Float64Array(clips.count),
  decidable: labels.map(({ name, kind }) => kind === "kept" || (kind === "rejected" && scoreReasons.has(name))),
});
const hand = makeHandLabels(clips.id, () => labelled());
const cards = makeCards({
  clips, labels, trial, hand, listed: () => chosen,
  focus: () => (state.sort in clips.scores ? state.sort : state.focus),
});
const captioned = clips.caption?.values.some(Boolean) ?? false;
const sheet = makeGrid({
  label: "Clips", minWidth: 196, gap: 20,
  rowHeight: (width) => Math.round((width * 9) / 16) + (captioned ? 108 : 66),
  make: cards.make, update: cards.update,
});
sheet.node.classList.toggle("without-captions", !captioned);
let haystacks = null; // Made at the first search: most visits never search.
let chosen = everyClip;

function matches(i, words) {
  if (state.label === "flips" && !trial.flips(i)) return false;
  if (state.label === "rejected" && labels[clips.label[i]].kind !== "rejected") return false;
  if (state.label === "hand" && hand.get(clips.id[i]) === undefined) return false;
  if (typeof state.label === "number" && clips.label[i] !== state.label) return false;
  if (state.source !== "all" && clips.source.rows[i] !== state.source) return false;
  return words.every((word) => haystacks[i].includes(word));
}

// All clips in the order that is asked for; those without the value come last in either direction.
let inOrder = { key: "", places: everyClip };
function ordered() {
  const key = `${state.sort} ${state.falling}`;
  if (key === inOrder.key) return inOrder.places;
  const { sort, falling } = state;
  const values = sort === "length" ? clips.length_us : clips.scores[sort];
  let known = sort === "source" || !values ? everyClip : sort === "length" ? sortedPlaces(values) : trial.orderOf(sort);
  if (falling) known = known.slice().reverse();
  const places = new Uint32Array(clips.count);
  places.set(known);
  if (known.length < clips.count) {
    places.set(everyClip.filter((i) => Number.isNaN(values[i])), known.length);
  }
  inOrder = { key, places };
  return places;
}

function choose() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !haystacks) {
    haystacks = Array.from(everyClip, (i) =>
      `${cards.lookUp("source", i) ?? ""}\n${cards.lookUp("caption", i) ?? ""}`.toLowerCase());
  }
  chosen = ordered().filter((i) => matches(i, words));
}

const tally = element("p", { class: "num", role: "status" });
const empty = element("p", { class: "empty", hidden: true }, "No clip fits these filters.");

// Chooses the clips again and shows them; the place of scrolling stays if `keep`.
function refresh(keep = false) {
  choose();
  let us = 0;
  if (clips.length_us) for (const i of chosen) us += clips.length_us[i];
  tally.textContent = `${counted(chosen.length)} ${chosen.length === 1 ? "clip" : "clips"}, ${spoken(us / 1e6)}`;
  empty.hidden = chosen.length > 0;
  sheet.node.hidden = !chosen.length;
  sheet.set(chosen, keep);
}

const chipOf = new Map(); // State's label to its chip.

function press(label) {
  state.label = label;
  for (const [value, chip] of chipOf) chip.setAttribute("aria-pressed", String(value === label));
  refresh();
}

function labelChips() {
  const totals = labels.map(() => 0);
  for (const label of clips.label) totals[label] += 1;
  const reasons = totals.filter((total, label) => total && labels[label].kind === "rejected");
  const options = [["all", "All", clips.count, null], [0, "Kept", totals[0] ?? 0, labels[0].colour]];
  if (reasons.length > 1) {
    options.push(["rejected", "All rejected", reasons.reduce((sum, total) => sum + total, 0), null]);
  }
  labels.forEach(({ name, colour }, label) => {
    if (label && totals[label]) options.push([label, name, totals[label], colour]);
  });
  options.push(["flips", "Would change", 0, null], ["hand", "Labelled by hand", 0, null]);
  const buttons = options.map(([value, name, total, colour]) => {
    const button = element("button", { type: "button", "aria-pressed": String(value === state.label), "data-label": name },
      colour ? element("span", { class: `dot ${colour}` }) : "",
      element("span", { class: "untrusted" }, name),
      element("span", { class: "count" }, counted(total)));
    button.hidden = value === "flips" || value === "hand"; // Until there are any.
    chipOf.set(value, button);
    button.addEventListener("click", () => press(value));
    return button;
  });
  return element("div", { class: "chips", role: "group", "aria-label": "Show" }, ...buttons);
}

function showCount(label, count) {
  const chip = chipOf.get(label);
  find(".count", chip).textContent = counted(count);
  chip.hidden = !count && state.label !== label;
}

function selector(id, label, options, changed) {
  const select = element("select", { id }, ...options.map(([value, name]) => element("option", { value }, name)));
  select.addEventListener("change", () => changed(select.value));
  return element("label", { class: "field" }, label, select);
}

function fields() {
  const search = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.query = search.value; refresh(); }, 120);
  });
  const node = element("div", { class: "fields" }, element("label", { class: "field" }, "Search captions and sources", search));
  if (clips.source) {
    const named = clips.source.values.map((value, i) => [String(i), fileName(value)]);
    named.sort((a, b) => a[1].localeCompare(b[1]));
    node.append(selector("source", "Source", [["all", "All sources"], ...named], (value) => {
      state.source = value === "all" ? "all" : Number(value);
      refresh();
    }));
  }
  const flip = element("button", { type: "button", "aria-label": "Falling order", "aria-pressed": "false", title: "Falling order" }, "↓");
  flip.addEventListener("click", () => {
    state.falling = !state.falling;
    flip.setAttribute("aria-pressed", String(state.falling));
    refresh();
  });
  const sorts = [["source", "source and time"], ["length", "length"], ...scoreNames.map((name) => [name, `score ${name}`])];
  node.append(element("div", { class: "order" },
    selector("sort", "Sort by", sorts, (value) => { state.sort = value; refresh(); }), flip));
  return node;
}

function browser() {
  const head = element("div", { class: "controls" }, labelChips(), fields());
  cards.dialog.addEventListener("close", () => sheet.draw());
  return element("div", { class: "light-table" }, head, labelBar.node,
    element("div", { class: "shown" }, tally,
      element("span", { class: "meta hint" }, "Arrow keys move, K keeps, R rejects, Enter opens.")),
    sheet.node, empty, cards.dialog);
}

// The folder of this page, as a word for a shell: two names up from the page.
function folderWord() {
  const path = decodeURIComponent(location.pathname).replace(/\/report\/[^/]*$/, "");
  return location.protocol === "file:" ? quoted(path) : "DIR";
}

const labelBar = (() => {
  const said = element("span", { class: "num" });
  const save = element("button", { type: "button" }, "Save labels");
  save.addEventListener("click", () => saveFile("labels.csv", hand.csv()));
  const copy = copyButton("Copy command that fits limits to them", () => `vfm refilter ${folderWord()} labels=labels.csv`);
  const clear = element("button", { type: "button" }, "Clear");
  clear.addEventListener("click", () => hand.clear());
  const node = element("div", { class: "label-bar", hidden: true }, said,
    element("div", { class: "buttons" }, save, copy, clear));
  return { node, said };
})();

function labelled() {
  const given = [...hand.ids().values()];
  const kept = given.filter(Boolean).length;
  labelBar.node.hidden = !given.length;
  labelBar.said.textContent = `${counted(given.length)} labelled by hand: ${counted(kept)} to keep, ${counted(given.length - kept)} to reject.`;
  showCount("hand", given.length);
  if (state.label === "hand") refresh(true);
  else sheet.draw();
}

// What the limits under trial keep, and how to take them.
const verdict = (() => {
  const yields = element("p", { class: "yield num", role: "status" });
  const change = element("p", { class: "change num" });
  const bar = element("div", { class: "yield-bar" }, element("i"));
  const words = element("code", { class: "untrusted" });
  const copy = copyButton("Copy command", () => `vfm refilter ${folderWord()} ${asWords(changes())}`);
  const save = element("button", { type: "button" }, "Save YAML");
  save.addEventListener("click", () => saveFile("limits.yaml", asYaml(changes())));
  const reset = element("button", { type: "button" }, "Back to the run");
  const offer = element("div", { class: "offer", hidden: true }, words, element("div", { class: "buttons" }, copy, save, reset));
  const node = element("div", { class: "verdict-bar" }, yields, bar, change, offer);
  const changes = () => changedLimits(trial, clips.decided_by);
  let total = 0;
  if (clips.length_us) for (const us of clips.length_us) total += us;
  reset.addEventListener("click", () => {
    trial.reset();
    if (state.label === "flips") press("all");
    tried(null, true);
  });
  const update = () => {
    const { clips: kept, us, gained, lost } = trial.tally;
    const share = total ? us / total : clips.count ? kept / clips.count : 0;
    yields.replaceChildren(element("b", {}, `${(100 * share).toFixed(1)}%`),
      ` ${counted(kept)} of ${counted(clips.count)} clips, ${spoken(us / 1e6)} of ${spoken(total / 1e6)}`);
    find("i", bar).style.width = `${100 * share}%`;
    change.textContent = trial.changed() ? `${counted(gained)} gained, ${counted(lost)} lost against the run` : "as the run decided";
    offer.hidden = !trial.changed();
    words.textContent = asWords(changes());
    showCount("flips", gained + lost);
  };
  return { node, update };
})();

let frame = 0;
let settling = false;
let movedAt = null;
// A limit moved: everything that follows from it, once per frame.
function tried(at, settled) {
  movedAt = at;
  settling ||= settled;
  state.focus = at === null ? null : trial.rules[at].score;
  if (at !== null && state.label === "all" && trial.changed()) press("flips");
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const whole = settling;
    settling = false;
    verdict.update();
    for (const panel of panels.values()) panel.update(whole, movedAt);
    if (state.label === "flips") refresh(true);
    else sheet.draw();
    if (whole) timeline?.draw();
  });
}

// The sheet in the order of a score, as the name of its panel asks for.
function sortBy(score) {
  state.sort = score;
  find("#sort").value = score;
  refresh();
}

const panels = new Map(); // Place to the panel, once it has come into view.

function filters() {
  if (!scoreNames.length) return element("p", { class: "muted" }, "No scores were measured.");
  // Scores that decided something first.
  const weight = (name) => (clips.rules.some((rule) => rule.score === name && rule.limit !== null) ? 0
    : clips.rules.some((rule) => rule.score === name) ? 1 : 2);
  const names = [...scoreNames].sort((a, b) => weight(a) - weight(b));
  const list = element("div", { class: "histograms" }, ...names.map((name) =>
    element("article", { class: "panel histogram waiting", "data-score": name }, element("h3", { class: "untrusted" }, name))));
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      const name = target.dataset.score;
      const panel = histogram(name, clips.scores[name], trial, { unit: clips.units[name], sort: () => sortBy(name), moved: tried, thumb: cards.thumb, open: (i) => cards.show(i) });
      panels.set(name, panel);
      target.replaceWith(panel.node);
      panel.update(true);
    }
  }, { rootMargin: "200px" });
  for (const place of list.children) seen.observe(place);
  const key = (kind, name) => element("span", {}, element("span", { class: `dot ${kind}` }), name);
  return element("div", { class: "filters" }, verdict.node,
    element("div", { class: "keys" }, key("fill-kept", "kept"), key("fill-0", "outside this limit"),
      key("rejected-bar", "rejected otherwise")), list);
}

function cutsOfVideos() {
  if (!clips.source || !clips.start_us || !clips.count) return null;
  return makeTimeline({
    clips, labels, trial, cards,
    pick(source) {
      find("#source").value = String(source);
      state.source = source;
      press("all");
      find("#browse").scrollIntoView();
    },
    open: cards.show,
  });
}

const table = clips.count
  ? element("div", { class: "workbench" }, filters(), browser())
  : element("p", { class: "muted" }, "This folder has no clips.");
find("#browser").replaceWith(table);
if (clips.count) {
  verdict.update();
  refresh();
  labelled();
}
const timeline = cutsOfVideos();
find("#timeline").replaceWith(timeline?.node ?? element("p", { class: "muted" }, "No times of clips were written."));
find("#source-table").replaceWith(pagedTable(tables.sources, "No table of sources was written."));
find("#failure-table").replaceWith(pagedTable(tables.failures, "Nothing failed."));
