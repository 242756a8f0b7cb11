// Other limits, tried out on the stored scores: what would be kept, and which clips change sides.
//
// A clip is kept where no limit is against it. Per limit the clips are sorted once, so a limit that
// moves touches only the clips that it passes.

// `rules`: [{score, side, setting, reason, limit}]; `decidable[label]`: whether the limits alone
// decide on clips of that label. All others stay as they are. `lengths`: microseconds per clip.
function makeTrial({ count, label, scores, lengths, rules, decidable }) {
  const against = new Uint16Array(count); // Limits that a clip breaks, and one for what is fixed.
  const limits = rules.map((rule) => rule.limit);
  const edges = rules.map(() => 0); // Per rule: how many of its sorted clips break it.
  const orders = new Map(); // Score to its sorted places.
  const orderOf = (score) => {
    if (!orders.has(score)) orders.set(score, sortedPlaces(scores[score]));
    return orders.get(score);
  };
  const tally = { clips: 0, us: 0, gained: 0, lost: 0 };
  const was = (i) => label[i] === 0;
  const is = (i) => against[i] === 0;
  const turn = (i, sign) => {
    tally.clips += sign;
    tally.us += sign * lengths[i];
    if (was(i)) tally.lost -= sign;
    else tally.gained += sign;
  };
  const breaks = (rule, limit, value) =>
    limit !== null && (rule.side === "min" ? value < limit : value > limit);
  const edgeOf = (rule, limit) => {
    if (limit === null) return 0;
    const order = orderOf(rule.score);
    const below = countBelow(order, scores[rule.score], limit, rule.side === "max");
    return rule.side === "min" ? below : order.length - below;
  };

  for (let i = 0; i < count; i += 1) against[i] = decidable[label[i]] ? 0 : 1;
  rules.forEach((rule, at) => {
    const values = scores[rule.score];
    if (limits[at] === null) return;
    for (let i = 0; i < count; i += 1) {
      if (breaks(rule, limits[at], values[i])) {
        against[i] += 1;
        edges[at] += 1;
      }
    }
  });
  for (let i = 0; i < count; i += 1) {
    if (was(i)) tally.lost += 1;
    if (is(i)) turn(i, 1);
  }

  const set = (at, limit) => {
    const rule = rules[at];
    const order = orderOf(rule.score);
    const before = edges[at];
    const now = edgeOf(rule, limit);
    limits[at] = limit;
    edges[at] = now;
    const place = rule.side === "min" ? (k) => order[k] : (k) => order[order.length - 1 - k];
    for (let k = before; k < now; k += 1) {
      const i = place(k);
      if (is(i)) turn(i, -1);
      against[i] += 1;
    }
    for (let k = before - 1; k >= now; k -= 1) {
      const i = place(k);
      against[i] -= 1;
      if (is(i)) turn(i, 1);
    }
  };
  return {
    rules, limits, against, tally, orderOf, set, is, was,
    flips: (i) => is(i) !== was(i),
    // Whether a clip is outside one of the limits of a score.
    outside: (score, i) => rules.some((rule, at) => rule.score === score && breaks(rule, limits[at], scores[score][i])),
    reset() {
      rules.forEach((rule, at) => set(at, rule.limit));
    },
    changed: () => rules.some((rule, at) => limits[at] !== rule.limit),
    // Up to `wanted` clips on either side of a limit that nothing else decides on, nearest first:
    // those that it rejects, and those that it lets pass.
    border(at, wanted) {
      const rule = rules[at];
      const order = orderOf(rule.score);
      const place = rule.side === "min" ? (k) => order[k] : (k) => order[order.length - 1 - k];
      const walk = (from, step, others) => {
        const found = [];
        const furthest = 4000; // Clips that other limits reject are passed over, within reason.
        for (let k = from; k >= 0 && k < order.length && Math.abs(k - from) < furthest; k += step) {
          const i = place(k);
          if (against[i] === others) found.push(i);
          if (found.length === wanted) break;
        }
        return found;
      };
      return { rejected: walk(edges[at] - 1, -1, 1), kept: walk(edges[at], 1, 0) };
    },
  };
}

// The limits that differ from the run's, as [setting, value]; all of them where those of the run
// follow from the setting `decidedBy`, which would choose the others anew.
function changedLimits(trial, decidedBy) {
  const changes = trial.rules.flatMap((rule, at) =>
    (trial.limits[at] !== rule.limit || decidedBy ? [[rule.setting, trial.limits[at]]] : []));
  return decidedBy ? [[decidedBy, null], ...changes] : changes;
}

const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

const asWords = (changes) => changes.map(([setting, value]) => `${setting}=${value}`).join(" ");

// Settings as YAML: `blur.min` becomes `min` inside `blur`.
function asYaml(changes) {
  const sections = new Map();
  const lines = [];
  for (const [setting, value] of changes) {
    const [section, name] = setting.split(".");
    if (name === undefined) {
      lines.push(`${section}: ${value}`);
      continue;
    }
    sections.set(section, [...(sections.get(section) ?? []), `  ${name}: ${value}`]);
  }
  for (const [section, inside] of sections) lines.push(`${section}:`, ...inside);
  return `${lines.join("\n")}\n`;
}
