// The stages of a run over its time. Data block `engine`: null, or {workers, queues, gpus}, each a
// list of {name, points: [[seconds, value]]}; one chart where there is something to draw.

const engine = readData("engine");
const drawSeries = (place, label, series, format) => {
  if (!series.some(({ points }) => points.length > 1)) {
    find(place).remove();
    return;
  }
  find(place).append(lineChart({
    label, xName: "seconds", format,
    series: series.map((line, i) => ({ ...line, kind: `sigma-${i % 6}` })),
  }));
};
if (engine) {
  drawSeries("#workers-chart", "Workers that are busy, by stage, over the seconds of the run", engine.workers);
  drawSeries("#queues-chart", "Items that wait, by stage, over the seconds of the run", engine.queues);
  drawSeries("#gpus-chart", "Share of the GPUs that is busy over the seconds of the run", engine.gpus,
    (share) => `${Math.round(100 * share)}%`);
}
