// Videos: every group (`.sync`) plays as one, from the same moment, while it can be seen.

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

findAll(".sync").forEach(syncGroup);
