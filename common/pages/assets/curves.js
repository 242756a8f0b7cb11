// Training curves, from the data block `curves`; `common.pages.curves` writes their markup.

const curves = readData("curves");

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
