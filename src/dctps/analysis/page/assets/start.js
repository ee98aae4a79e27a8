// Draws everything, and draws the charts again when the colours or the width of the window change.

document.querySelectorAll("[data-hint]").forEach(hint); // before the charts, which hint at their own lists
const redraws = [];
if (data.panels.length) {
  options($("panel"), data.panels.map((panel) => `${panel.title} (${plural(panel.runs, "run")})`));
  $("panel").value = data.first;
  $("panel").addEventListener("change", choosePanel);
  $("kind").addEventListener("change", drawAccuracy);
  redraws.push(choosePanel);
  choosePanel();
}
if (hasCurves) {
  $("curve-kind").addEventListener("change", drawCurves);
  $("curves-clear").addEventListener("click", () => { shown.length = 0; drawCurves(); drawTable(); });
  redraws.push(drawCurves);
  drawCurves();
}
redraws.push(initialChart("layers", data.layers, layerTraces, "layer", "weights that train"));
redraws.push(initialChart("spectra", data.spectra, spectrumTraces, "index, largest first", "singular value"));
if (count) startTable();
const redraw = () => redraws.forEach((one) => one());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
window.matchMedia("(max-width: 799px)").addEventListener("change", redraw);
