// The contact sheet: one card per clip, and the dialog with everything that is known of one.

const fileName = (source) => source.split(/[\\/]/).pop() || source;

// `clips`: see report.js. `trial` and `hand` may change what a card says; `focus()` names the score
// that cards show, `listed()` gives the clips that the dialog of a card steps through.
function makeCards({ clips, labels, trial, hand, focus, listed }) {
  const lookUp = (column, i) => (clips[column] ? clips[column].values[clips[column].rows[i]] : null);
  const span = (i) =>
    (clips.start_us ? `${clock(clips.start_us[i] / 1e6)} – ${clock((clips.start_us[i] + clips.length_us[i]) / 1e6)}` : "");
  const thumb = (i) => {
    if (!clips.thumb[i]) return "no picture";
    return element("img", {
      src: `thumbs/${encodeURIComponent(clips.id[i])}.jpg`, alt: "", loading: "lazy", decoding: "async",
    });
  };
  const badge = (i) => {
    const { name, colour } = labels[clips.label[i]];
    return element("span", { class: "badge" },
      element("span", { class: `dot ${colour}` }),
      element("span", { class: "untrusted" }, name),
      trial.flips(i) ? element("span", { class: "flip" }, trial.is(i) ? "would be kept" : "would be rejected") : "");
  };
  const scoreName = (i) => {
    const broken = trial.rules.find((rule) => rule.reason === labels[clips.label[i]].name);
    return focus() ?? broken?.score ?? null;
  };
  const scoreText = (i) => {
    const name = scoreName(i);
    if (name === null) return "";
    const value = clips.scores[name][i];
    return `${name} ${Number.isNaN(value) ? "–" : shortNumber(value)}`;
  };

  const handButtons = (i) => {
    const choices = [[true, "Keep", "✓"], [false, "Reject", "✕"]].map(([keep, word, sign]) => {
      const button = element("button", { type: "button", title: `${word} (${word[0]})`, "aria-label": `${word} clip ${clips.id[i]}` }, sign);
      button.addEventListener("click", () => hand.set(clips.id[i], keep));
      return [button, keep];
    });
    const node = element("div", { class: "hand", role: "group", "aria-label": "Label by hand" }, ...choices.map(([button]) => button));
    const update = () => {
      const label = hand.get(clips.id[i]);
      for (const [button, keep] of choices) button.setAttribute("aria-pressed", String(label === keep));
      node.classList.toggle("given", label !== undefined);
    };
    update();
    return { node, update };
  };

  const updates = new WeakMap();
  const make = (i) => {
    const open = element("button", { type: "button", class: "thumb", "aria-label": `Details of clip ${clips.id[i]}` }, thumb(i));
    open.addEventListener("click", () => show(i, listed()));
    const buttons = handButtons(i);
    const top = element("div", { class: "topline" });
    const score = element("span", { class: "card-score untrusted" });
    const source = lookUp("source", i);
    const caption = lookUp("caption", i);
    const card = element("li", { class: "card", "data-clip": clips.id[i] },
      element("div", { class: "picture" }, open, buttons.node), top,
      element("p", { class: "caption untrusted", dir: "auto" }, caption ?? ""),
      element("div", { class: "meta source", title: source },
        element("span", { dir: "auto", class: "untrusted" }, source === null ? "" : fileName(source))),
      element("div", { class: "meta lowest" }, element("span", {}, span(i)), score));
    card.addEventListener("keydown", (event) => {
      const keep = { k: true, r: false }[event.key];
      if (keep !== undefined && !event.ctrlKey && !event.metaKey) hand.set(clips.id[i], keep);
    });
    let before = null;
    updates.set(card, () => {
      const said = `${trial.is(i)} ${hand.get(clips.id[i])} ${scoreName(i)}`;
      if (said === before) return;
      before = said;
      top.replaceChildren(badge(i), element("span", { class: "meta" }, clips.length_us ? spoken(clips.length_us[i] / 1e6) : ""));
      score.textContent = scoreText(i);
      card.classList.toggle("rejected", !trial.is(i));
      buttons.update();
    });
    return card;
  };

  const dialog = element("dialog", { "aria-labelledby": "clip-title" });
  let restore = null;
  let around = []; // The clips that the dialog steps through.
  const show = (i, among = around) => {
    around = among;
    const size = [lookUp("size", i), clips.fps ? `${shortNumber(clips.fps[i])} frames/s` : null,
      clips.num_frames ? `${counted(clips.num_frames[i])} frames` : null].filter(Boolean).join(", ");
    const rows = [
      ["Source", lookUp("source", i)], ["Span", span(i)], ["Picture", size],
      ["Camera", lookUp("camera", i)], ["Bucket", lookUp("bucket", i)], ["Caption from", lookUp("caption_source", i)],
      ["Clip", clips.id[i]],
    ].filter(([, value]) => value);
    const scores = Object.entries(clips.scores).map(([name, values]) => {
      const limits = trial.rules.flatMap((rule, at) => (rule.score === name && trial.limits[at] !== null
        ? [`${rule.side === "min" ? "at least" : "at most"} ${shortNumber(trial.limits[at])}`] : []));
      const shown = Number.isNaN(values[i]) ? "no valid measure" : shortNumber(values[i]);
      return element("div", { class: trial.outside(name, i) ? "outside" : "" },
        element("dt", { class: "untrusted" }, name),
        element("dd", {}, shown, element("small", {}, limits.join(", ") || clips.units[name] || "")));
    });
    const place = around.indexOf(i);
    const step = (by, name) => {
      const button = element("button", { type: "button", "data-step": by }, name);
      button.disabled = place < 0 || around[place + by] === undefined;
      button.addEventListener("click", () => show(around[place + by]));
      return button;
    };
    const close = element("button", { type: "button" }, "Close");
    close.addEventListener("click", () => dialog.close());
    const caption = lookUp("caption", i);
    dialog.replaceChildren(
      element("div", { class: "picture" }, element("div", { class: "thumb" }, thumb(i)), handButtons(i).node),
      element("div", { id: "clip-title" }, badge(i)),
      caption ? element("p", { class: "caption untrusted", dir: "auto" }, caption) : "",
      element("dl", {}, ...rows.flatMap(([name, value]) => [
        element("dt", {}, name), element("dd", { class: "untrusted", dir: "auto" }, value)])),
      scores.length ? element("dl", { class: "score-table" }, ...scores) : "",
      element("div", { class: "buttons" }, step(-1, "Previous clip"), step(1, "Next clip"), close),
    );
    dialog.dataset.clip = i;
    if (!dialog.open) {
      restore = document.activeElement;
      dialog.showModal();
    }
    close.focus({ preventScroll: true });
    dialog.scrollTop = 0;
  };
  dialog.addEventListener("close", () => restore?.focus());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: "-1", ArrowRight: "1" }[event.key];
    if (step) find(`[data-step="${step}"]`, dialog)?.click();
    const keep = { k: true, r: false }[event.key];
    if (keep !== undefined) {
      hand.set(clips.id[Number(dialog.dataset.clip)], keep);
      show(Number(dialog.dataset.clip));
    }
  });
  return { make, update: (card) => updates.get(card)(), show, thumb, dialog, span, lookUp };
}
