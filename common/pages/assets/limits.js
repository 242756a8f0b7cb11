// Other limits, tried out on the stored scores: what would be kept, and which clips change sides.

// `bounds` {score: {min, max}}; a clip without a valid measure passes, as it did in the run.
function withinBounds(i, scores, bounds) {
  for (const name of Object.keys(bounds)) {
    const value = scores[name]?.[i] ?? null;
    const { min, max } = bounds[name];
    if (value !== null && (value < (min ?? -Infinity) || value > (max ?? Infinity))) return false;
  }
  return true;
}

// Clips whose fate the bounds decide: the kept ones, and those rejected by a score. All others went
// for a reason that no bound changes, and stay rejected.
function makeTrial(clips) {
  const kept = (i) => clips.label[i] === 0;
  const all = Array.from({ length: clips.count }, (_, i) => i);
  const decided = all.filter((i) => kept(i) || clips.by_score[clips.label[i]]);
  const bounds = structuredClone(clips.bounds);
  const flips = new Map(); // Clip to whether it would be kept.
  const judge = () => {
    flips.clear();
    for (const i of decided) {
      const now = withinBounds(i, clips.scores, bounds);
      if (now !== kept(i)) flips.set(i, now);
    }
  };
  return {
    bounds,
    flips,
    set(name, side, value) {
      bounds[name][side] = value;
      judge();
    },
    reset() {
      for (const name of Object.keys(bounds)) Object.assign(bounds[name], clips.bounds[name]);
      flips.clear();
    },
    // `blur.min=52 motion.max=0.3`: the limits that differ from the run's, as settings.
    changes: () => Object.keys(bounds).flatMap((name) => Object.keys(bounds[name])
      .filter((side) => bounds[name][side] !== clips.bounds[name][side])
      .map((side) => `${clips.settings[`${name}.${side}`] ?? `${name}.${side}`}=${bounds[name][side]}`))
      .join(" "),
  };
}
