// The page of a first run. The markup is complete without this script; it adds what moves: filters,
// charts from the data block `curves`, and videos that play together.

const curves = readData("curves");

// ---- Clips: one filter chip pressed at a time.

const chips = findAll("#clip-filters button");
chips.forEach((chip) => chip.addEventListener("click", () => {
  chips.forEach((other) => other.setAttribute("aria-pressed", String(other === chip)));
  for (const card of findAll("#clips .card")) {
    const { label } = card.dataset;
    const wanted = chip.dataset.label;
    card.hidden = !(wanted === "all" || wanted === label || (wanted === "rejected" && label !== "kept"));
  }
}));

// ---- Curves.

// Mean over a window that follows the point, so that no value depends on a later step.
function smoothed(points) {
  const window = Math.max(1, Math.round(points.length / 20));
  return points.map(([step], i) => {
    const part = points.slice(Math.max(0, i - window + 1), i + 1);
    return [step, part.reduce((sum, [, value]) => sum + value, 0) / part.length];
  });
}

const finite = (points) => points.filter(([, value]) => value !== null);
const lossPlace = find("#loss-chart");
if (lossPlace) {
  const raw = finite(curves.loss);
  lossPlace.replaceChildren(lineChart({
    label: "Training and validation loss by step; the table below holds the values",
    xName: "step",
    series: [
      { name: "training, each step", kind: "raw", points: raw },
      { name: "training, smoothed", kind: "smooth", points: smoothed(raw) },
      { name: "validation", kind: "val", points: finite(curves.val), dots: true },
    ],
  }));
}
const sigmaPlace = find("#sigma-chart");
if (sigmaPlace) {
  sigmaPlace.replaceChildren(lineChart({
    label: "Validation loss by step, a line per noise level; the table below holds the values",
    xName: "step",
    series: curves.per_sigma.map(({ sigma, points }, i) => (
      { name: `σ ${shortNumber(sigma)}`, kind: `sigma-${i % 6}`, points: finite(points), dots: true })),
  }));
}

// ---- Videos: every group plays as one, from the same moment, while it can be seen.

const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

function syncGroup(group) {
  const videos = findAll("video", group);
  const button = find("button.play", group);
  let wanted = !still; // What the viewer asked for; being out of sight only suspends it.
  let seen = false;
  let frame = 0;
  // The longest leads; the others are put to its time when they are off by more than a frame.
  const leader = () => videos.reduce((best, video) => (video.duration > best.duration ? video : best));
  const follow = () => {
    const lead = leader();
    for (const video of videos) {
      const time = video.duration ? Math.min(lead.currentTime, video.duration - 0.01) : 0;
      if (video !== lead && !video.seeking && Math.abs(video.currentTime - time) > 0.06) video.currentTime = time;
      if (video !== lead && video.paused && !video.ended) video.play().catch(() => {});
    }
    frame = requestAnimationFrame(follow);
  };
  const update = () => {
    const playing = wanted && seen;
    button.textContent = wanted ? "Pause" : "Play";
    cancelAnimationFrame(frame);
    if (playing) {
      Promise.all(videos.map((video) => video.play())).then(() => {
        if (!(wanted && seen)) return;
        cancelAnimationFrame(frame);
        frame = requestAnimationFrame(follow);
      }).catch(() => {}); // A pause that overtakes the start rejects it; the next update settles it.
    } else {
      videos.forEach((video) => video.pause());
    }
  };
  button.hidden = false;
  button.addEventListener("click", () => { wanted = !wanted; update(); });
  new IntersectionObserver((entries) => {
    seen = entries.at(-1).isIntersecting;
    update();
  }, { threshold: 0.15 }).observe(group);
}

// The tokenizer's pair shows the first example's videos once more, without a second copy of them.
for (const video of findAll("video[data-same-as]")) video.src = document.getElementById(video.dataset.sameAs).src;
findAll(".sync").forEach(syncGroup);

// ---- The pair under one divider.

const wipe = find("#wipe");
if (wipe) {
  const top = find(".over", wipe.closest(".sync"));
  const line = find(".divider", wipe.closest(".sync"));
  const place = () => {
    top.style.clipPath = `inset(0 0 0 ${wipe.value}%)`;
    line.style.left = `${wipe.value}%`;
  };
  wipe.addEventListener("input", place);
  place();
}
