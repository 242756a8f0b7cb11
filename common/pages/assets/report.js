// The curation report. Data block `clips`: columns, one entry per clip:
//   count, id[], label[] (place in labels), labels[] ("kept", the reasons, then the failures) and
//   beside them colours[] and rejected[] (whether the label is a reason of rejection),
//   thumb[] (1 where report/thumbs/ID.jpg exists), scores {name: value or null, per clip},
//   bounds {name: {min, max}}, settings {"name.side": setting where it has another name},
//   units {name: unit}, on_card[] (names of the scores that a card shows),
//   by_score[] (per label: whether a score and its bounds decided it); and where known start_s[], end_s[], fps[], num_frames[], caption[],
//   source, size, caption_source, bucket, camera as {values[], rows[]}.
// Data block `tables`: sources and failures, for pagedTable.

const PER_PAGE = 60;
const clips = readData("clips");
const tables = readData("tables");
const scoreNames = Object.keys(clips.scores);
const everyClip = Array.from({ length: clips.count }, (_, i) => i);
const lookUp = (column, i) => (clips[column] ? clips[column].values[clips[column].rows[i]] : null);
const captionOf = (i) => clips.caption?.[i] ?? "";
const fileName = (source) => source.split(/[\\/]/).pop() || source;
const secondsOf = (i) => (clips.end_s ? clips.end_s[i] - clips.start_s[i] : 0);

const state = { label: "all", query: "", source: "all", sort: "source", falling: false };
const trial = makeTrial(clips);
let refresh = () => {}; // Chooses and shows again; set once the browser of clips stands.
let haystacks = null; // Made at the first search: most visits never search.
let chosen = everyClip;

function matches(i, words) {
  if (state.label === "flips" && !trial.flips.has(i)) return false;
  if (state.label === "rejected" && !clips.rejected[clips.label[i]]) return false;
  if (typeof state.label === "number" && clips.label[i] !== state.label) return false;
  if (state.source !== "all" && clips.source.rows[i] !== state.source) return false;
  return words.every((word) => haystacks[i].includes(word));
}

// Clips without the value come last in either direction.
function comparison() {
  if (state.sort === "source") return state.falling ? (a, b) => b - a : null;
  const values = state.sort === "length" ? everyClip.map(secondsOf) : clips.scores[state.sort];
  const sign = state.falling ? -1 : 1;
  return (a, b) => {
    if (values[a] === null || values[b] === null) {
      return (values[a] === null) - (values[b] === null) || a - b;
    }
    return sign * (values[a] - values[b]) || a - b;
  };
}

function choose() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !haystacks) {
    haystacks = everyClip.map((i) => `${lookUp("source", i) ?? ""}\n${captionOf(i)}`.toLowerCase());
  }
  chosen = everyClip.filter((i) => matches(i, words));
  const compare = comparison();
  if (compare) chosen.sort(compare);
}

function badge(i) {
  const label = clips.label[i];
  const flip = trial.flips.get(i);
  return element("span", { class: "badge" },
    element("span", { class: `dot ${clips.colours[label]}` }),
    element("span", { class: "untrusted" }, clips.labels[label]),
    flip === undefined ? "" : element("span", { class: "flip" }, flip ? "would be kept" : "would be rejected"));
}

function picture(i) {
  if (!clips.thumb[i]) return "no picture";
  return element("img", {
    src: `thumbs/${encodeURIComponent(clips.id[i])}.jpg`, alt: "", loading: "lazy", decoding: "async",
  });
}

const span = (i) =>
  clips.end_s ? `${clock(clips.start_s[i])} – ${clock(clips.end_s[i])}` : "";

// The few scores on each card, and the one that the clips are sorted by.
const onCard = () => {
  const sorted = scoreNames.includes(state.sort) && !clips.on_card.includes(state.sort);
  return sorted ? [...clips.on_card, state.sort] : clips.on_card;
};

function card(i) {
  const open = element("button", {
    type: "button", class: "thumb", "aria-label": `Details of clip ${clips.id[i]}`,
  }, picture(i));
  open.addEventListener("click", () => showDetails(i));
  const source = lookUp("source", i);
  return element("li", { class: `card ${clips.label[i] ? "rejected" : "kept"}`, "data-clip": clips.id[i] },
    open,
    element("div", { class: "topline" }, badge(i), element("span", { class: "meta" }, spoken(secondsOf(i)))),
    captionOf(i) ? element("p", { class: "caption untrusted", dir: "auto" }, captionOf(i)) : null,
    source === null ? null
      : element("div", { class: "meta source", title: source },
        element("span", { dir: "auto", class: "untrusted" }, fileName(source))),
    element("div", { class: "meta" }, span(i)),
    element("div", { class: "scores" }, ...onCard().map((name) =>
      element("span", { class: name === state.sort ? "sorted" : null },
        `${name} ${shortNumber(clips.scores[name][i])}`))),
  );
}

const dialog = element("dialog", { "aria-labelledby": "clip-title" });
let restore = null;

function showDetails(i) {
  const size = [lookUp("size", i), clips.fps ? `${shortNumber(clips.fps[i])} frames/s` : null,
    clips.num_frames ? `${counted(clips.num_frames[i])} frames` : null].filter(Boolean).join(", ");
  const rows = [
    ["Source", lookUp("source", i)], ["Span", span(i)], ["Picture", size],
    ["Camera", lookUp("camera", i)], ["Bucket", lookUp("bucket", i)], ["Caption from", lookUp("caption_source", i)],
    ["Clip", clips.id[i]],
    ...scoreNames.map((name) => {
      const value = clips.scores[name][i];
      const limits = Object.entries(clips.bounds[name] ?? {}).map(([side, limit]) =>
        `${side === "min" ? "at least" : "at most"} ${shortNumber(limit)}`).join(", ");
      const unit = clips.units[name] ? ` (${clips.units[name]})` : "";
      const shown = value === null ? "no valid measure" : `${shortNumber(value)}${unit}`;
      return [`Score ${name}`, limits ? `${shown} (asked: ${limits})` : shown];
    }),
  ].filter(([, value]) => value);
  const place = chosen.indexOf(i);
  const step = (by, name) => {
    const button = element("button", { type: "button" }, name);
    button.disabled = chosen[place + by] === undefined;
    button.addEventListener("click", () => showDetails(chosen[place + by]));
    return button;
  };
  const close = element("button", { type: "button" }, "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(
    element("div", { class: "thumb" }, picture(i)),
    element("div", { id: "clip-title" }, badge(i)),
    captionOf(i) ? element("p", { class: "caption untrusted", dir: "auto" }, captionOf(i)) : "",
    element("dl", {}, ...rows.flatMap(([name, value]) => [
      element("dt", {}, name), element("dd", { class: "untrusted", dir: "auto" }, value)])),
    element("div", { class: "buttons" }, step(-1, "Previous clip"), step(1, "Next clip"), close),
  );
  if (!dialog.open) {
    restore = document.activeElement;
    dialog.showModal();
  }
  close.focus();
}
dialog.addEventListener("close", () => restore?.focus());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

const chipOf = new Map(); // State's label to its chip.

function labelChips(changed) {
  const totals = clips.labels.map(() => 0);
  clips.label.forEach((label) => { totals[label] += 1; });
  const reasons = totals.filter((total, label) => total && clips.rejected[label]);
  const rejected = reasons.reduce((sum, total) => sum + total, 0);
  const options = [["all", "All", clips.count, null], [0, "Kept", totals[0] ?? 0, clips.colours[0]]];
  if (reasons.length > 1) {
    options.push(["rejected", "All rejected", rejected, null]);
  }
  clips.labels.forEach((name, label) => {
    if (label && totals[label]) options.push([label, name, totals[label], clips.colours[label]]);
  });
  if (Object.keys(clips.bounds).length) options.push(["flips", "Would change", null, null]);
  const buttons = options.map(([value, name, total, colour]) => {
    const button = element("button", { type: "button", "aria-pressed": String(value === state.label), "data-label": name },
      colour ? element("span", { class: `dot ${colour}` }) : "",
      element("span", { class: "untrusted" }, name),
      total === null ? "" : element("span", { class: "count" }, counted(total)));
    button.hidden = value === "flips"; // Until limits are tried that change something.
    chipOf.set(value, button);
    button.addEventListener("click", () => {
      state.label = value;
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      changed();
    });
    return button;
  });
  return element("div", { class: "chips", role: "group", "aria-label": "Show" }, ...buttons);
}

function selector(id, label, options, changed) {
  const select = element("select", { id }, ...options.map(([value, name]) => element("option", { value }, name)));
  select.addEventListener("change", () => changed(select.value));
  return element("label", { class: "field" }, label, select);
}

function browser() {
  if (!clips.count) return element("p", { class: "muted" }, "This folder has no clips.");
  const sheet = element("ol", { class: "sheet" });
  const tally = element("p", { class: "num", role: "status" });
  const fill = (first) => {
    sheet.replaceChildren(...chosen.slice(first, first + PER_PAGE).map(card));
  };
  const top = makePager(PER_PAGE, (first) => { fill(first); bottom.follow(first); });
  const bottom = makePager(PER_PAGE, (first) => {
    fill(first);
    top.follow(first);
    find("#browse").scrollIntoView();
  });
  const changed = () => {
    choose();
    const seconds = chosen.reduce((sum, i) => sum + secondsOf(i), 0);
    tally.textContent = `${counted(chosen.length)} ${chosen.length === 1 ? "clip" : "clips"}, ${spoken(seconds)}`;
    top.reset(chosen.length);
    bottom.reset(chosen.length);
    fill(0);
    if (!chosen.length) sheet.append(element("li", { class: "empty" }, "No clip fits these filters."));
  };

  const search = element("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.query = search.value; changed(); }, 120);
  });
  const fields = element("div", { class: "fields" }, element("label", { class: "field" }, "Search captions and sources", search));
  if (clips.source) {
    const named = clips.source.values.map((value, i) => [String(i), fileName(value)]);
    named.sort((a, b) => a[1].localeCompare(b[1]));
    fields.append(selector("source", "Source", [["all", "All sources"], ...named], (value) => {
      state.source = value === "all" ? "all" : Number(value);
      changed();
    }));
  }
  const flip = element("button", { type: "button", "aria-label": "Falling order", "aria-pressed": "false", title: "Falling order" }, "↓");
  flip.addEventListener("click", () => {
    state.falling = !state.falling;
    flip.setAttribute("aria-pressed", String(state.falling));
    changed();
  });
  const sorts = [["source", "source and time"], ["length", "length"], ...scoreNames.map((name) => [name, `score ${name}`])];
  fields.append(element("div", { class: "order" },
    selector("sort", "Sort by", sorts, (value) => { state.sort = value; changed(); }),
    flip));
  changed();
  refresh = changed;
  return element("div", {},
    element("div", { class: "controls" }, labelChips(changed), fields),
    element("div", { class: "shown" }, tally, top.node), sheet,
    element("div", { class: "shown" }, element("span"), bottom.node), dialog);
}

function histograms() {
  if (!scoreNames.length || !clips.count) return element("p", { class: "muted" }, "No scores were measured.");
  const panels = scoreNames.map((name) => {
    const values = clips.scores[name];
    const { min, max } = clips.bounds[name] ?? {};
    const groups = clips.label.map((label, i) => {
      if (label === 0) return 0;
      const value = values[i];
      return value !== null && (value < (min ?? -Infinity) || value > (max ?? Infinity)) ? 1 : 2;
    });
    return histogram(name, values, groups, clips.bounds[name] ?? {}, (side, value) => {
      trial.set(name, side, value);
      tried.update();
    });
  });
  const tried = trialLine();
  const key = (kind, name) => element("span", {}, element("span", { class: `dot ${kind}` }), name);
  return element("div", {},
    element("div", { class: "keys" }, key("fill-kept", "kept"), key("fill-0", "rejected, outside the limit"),
      key("rejected-bar", "rejected for another reason")),
    tried.node,
    element("div", { class: "histograms" }, ...panels));
}

// Says what the limits under trial would change; empty while they are those of the run.
function trialLine() {
  const kept = clips.label.filter((label) => label === 0).length;
  const said = element("p", { class: "num", role: "status" });
  const values = element("code", { class: "untrusted" });
  const show = element("button", { type: "button" }, "Show these clips");
  const reset = element("button", { type: "button" }, "Back to the run's limits");
  const node = element("div", { class: "trial", hidden: true }, said, values,
    element("div", { class: "buttons" }, show, reset));
  const update = () => {
    const gained = [...trial.flips.values()].filter(Boolean).length;
    const lost = trial.flips.size - gained;
    node.hidden = trial.changes() === "";
    said.textContent = `${counted(kept + gained - lost)} of ${counted(clips.count)} clips would be kept `
      + `instead of ${counted(kept)}: ${counted(gained)} gained, ${counted(lost)} lost.`;
    values.textContent = trial.changes();
    show.disabled = !trial.flips.size;
    chipOf.get("flips").hidden = state.label !== "flips" && !trial.flips.size;
    refresh();
  };
  show.addEventListener("click", () => {
    chipOf.get("flips").click();
    find("#browse").scrollIntoView();
  });
  reset.addEventListener("click", () => {
    trial.reset();
    findAll("input[type=range]", find("#scores")).forEach((input) => input.dispatchEvent(new Event("reset-limit")));
    if (state.label === "flips") chipOf.get("all").click();
    update();
  });
  return { node, update };
}

find("#browser").replaceWith(browser());
find("#histograms").replaceWith(histograms());
find("#source-table").replaceWith(pagedTable(tables.sources, "No table of sources was written."));
find("#failure-table").replaceWith(pagedTable(tables.failures, "Nothing failed."));
