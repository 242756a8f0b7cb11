// The page of a first run. The markup is complete without this script; it adds what moves.

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

// The tokenizer's pair shows the first example's videos once more, without a second copy of them.
for (const video of findAll("video[data-same-as]")) video.src = document.getElementById(video.dataset.sameAs).src;

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
