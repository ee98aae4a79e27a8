// The charts: accuracy against density, weights per layer, spectra of the Jacobian, accuracy against epochs.

// --- what all charts share

const CLEAR = "rgba(0,0,0,0)";
const narrow = () => window.innerWidth < 800;
const axis = (title, more) => ({
  title: { text: title, standoff: 10 }, gridcolor: colourOf("--grid"), linecolor: colourOf("--rule"), zeroline: false,
  automargin: true, ...more,
});
const draw = (element, traces, xaxis, yaxis) => {
  const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: colourOf("--text") };
  const layout = {
    xaxis, yaxis, showlegend: false, hovermode: "closest", dragmode: narrow() ? false : "zoom",
    margin: { l: 52, r: 14, t: narrow() ? 14 : 36, b: 48 }, paper_bgcolor: CLEAR, plot_bgcolor: CLEAR,
    font, modebar: { bgcolor: CLEAR, color: colourOf("--soft"), activecolor: colourOf("--accent") },
    hoverlabel: { bgcolor: colourOf("--card"), bordercolor: colourOf("--rule"), align: "left", font },
  };
  // Plotly's default buttons include one that sends the chart to a server, so the buttons are listed here.
  const settings = { responsive: true, displaylogo: false, plotlyServerURL: "",
                     displayModeBar: narrow() ? false : "hover",
                     modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  return Plotly.react(element, traces, layout, settings);
};
const lined = (name, visible, x, y, text, more = {}) => {
  const { colour, marker, dash } = look(name);
  return {
    type: "scatter", mode: marker ? "lines+markers" : "lines", meta: name, visible, x, y, text,
    hovertemplate: "%{text}<extra></extra>", line: { color: colour, width: 2, dash },
    marker: { color: colour, size: 8, symbol: marker ?? "circle" }, ...more,
  };
};
// A band around a line is a polygon for each stretch of points that have a lower and an upper end.
const band = (name, visible, x, low, high) => {
  const xs = [], ys = [];
  for (let i = 0; i < x.length; i++) {
    if (low[i] === null) continue;
    let end = i;
    while (end + 1 < x.length && low[end + 1] !== null) end++;
    xs.push(...x.slice(i, end + 1), ...x.slice(i, end + 1).reverse(), null);
    ys.push(...high.slice(i, end + 1), ...low.slice(i, end + 1).reverse(), null);
    i = end;
  }
  return { type: "scatter", mode: "lines", meta: name, visible, x: xs, y: ys, fill: "toself", hoverinfo: "skip",
           fillcolor: faded(look(name).colour), line: { width: 0 } };
};

// Checkboxes show and hide the lines of a chart. A method that is hidden stays hidden in other panels.
const choices = (fieldset, lines, hidden, redraw) => {
  const names = lines.map((line) => line.name);
  const boxes = lines.map(({ name, points }) => {
    const toggle = (event) => { hidden[event.target.checked ? "delete" : "add"](name); redraw(); };
    const box = make("input", { type: "checkbox", onchange: toggle });
    box.checked = !hidden.has(name);
    const empty = points?.every((p) => !p.n && !p.collapsed) ? [make("small", { class: "soft" }, " no result")] : [];
    return make("label", {}, box, swatch(look(name)), make("span", {}, name, ...empty));
  });
  const all = (show) => () => {
    names.forEach((name) => hidden[show ? "delete" : "add"](name));
    fieldset.querySelectorAll("input").forEach((box) => { box.checked = show; });
    redraw();
  };
  const list = make("div", { class: "choices", "data-hint": "Scroll for more methods ↓" }, ...boxes);
  fieldset.replaceChildren(
    make("legend", {}, "Methods"), list,
    make("button", { type: "button", class: "small", onclick: all(true) }, "all"),
    make("button", { type: "button", class: "small", onclick: all(false) }, "none"),
  );
  hint(list);
};

// --- accuracy against density

const hidden = new Set();
const measured = (mean, spread) =>
  decimals(100 * mean, 2) + (spread === null ? "" : ` ± ${decimals(100 * spread, 2)}`);
const described = (name, point, kind) => {
  const spread = point[`${kind}_deviation`];
  const lines = [`<b>${escaped(name)}</b>`, point.density === null ? "dense" : `density ${percent(point.density)}`];
  if (point.n) lines.push(`${kind} ${measured(point[kind], spread)} %`, `n = ${plural(point.n, "seed")}`);
  if (point.weights !== null) lines.push(plural(point.weights, "weight"));
  const drawn = point.n ? ", not in the mean" : ": drawn at chance";
  if (point.collapsed) lines.push(`${plural(point.collapsed, "seed")} collapsed${drawn}`);
  if (point.failed) lines.push(`${plural(point.failed, "seed")} failed`);
  return lines.join("<br>");
};

const accuracyTraces = (panel, kind, densities) => panel.lines.flatMap(({ name, points }) => {
  const visible = !hidden.has(name);
  const level = (p) => (p.n ? 100 * p[kind] : p.collapsed && panel.chance !== null ? 100 * panel.chance : null);
  if (points[0].density === null) return baseline(name, points[0], kind, visible, densities);
  const x = points.map((p) => p.density), text = points.map((p) => described(name, p, kind));
  const edge = (sign) => points.map((p) => (p.n > 1 ? 100 * (p[kind] + sign * p[`${kind}_deviation`]) : null));
  const lost = { x: [], y: [] }; // the line to and between densities at which the method collapsed
  points.forEach((p, i) => {
    const q = points[i + 1];
    if (!q || (p.n && q.n) || level(p) === null || level(q) === null) return;
    lost.x.push(p.density, q.density, null);
    lost.y.push(level(p), level(q), null);
  });
  const collapsed = points.map((p) => !p.n && level(p) !== null);
  const only = (keep) => points.map((p, i) => (keep[i] ? level(p) : null));
  const { colour, marker } = look(name), dashed = { line: { color: colour, width: 1.5, dash: BROKEN_LINE } };
  return [
    band(name, visible, x, edge(-1), edge(1)),
    { ...lined(name, visible, lost.x, lost.y, null, dashed), mode: "lines", hoverinfo: "skip", hovertemplate: null },
    { ...lined(name, visible, x, only(collapsed), text), mode: "markers",
      marker: { color: colour, size: 9, symbol: `${marker}-open`, line: { color: colour, width: 2 } } },
    lined(name, visible, x, only(points.map((p) => p.n > 0)), text, { error_y: bars(points, kind) }),
  ];
});

// A point that stands alone has its deviation as a bar, as a band would have no width.
const bars = (points, kind) => {
  const alone = (i) => points[i].n > 1 && !(points[i - 1]?.n > 1) && !(points[i + 1]?.n > 1);
  const array = points.map((p, i) => (alone(i) ? 100 * p[`${kind}_deviation`] : null));
  return { type: "data", array, thickness: 1.5, width: 5, visible: array.some((spread) => spread !== null) };
};

const baseline = (name, point, kind, visible, densities) => {
  if (!point.n) return [];
  const x = [densities[0] / 1.3, ...densities, densities.at(-1) * 1.3], level = 100 * point[kind];
  const spread = point[`${kind}_deviation`], line = { color: look(name).colour, width: 2, dash: BROKEN_LINE };
  const all = (value) => x.map(() => value);
  const edge = (sign) => all(spread === null ? null : level + sign * 100 * spread);
  return [band(name, visible, x, edge(-1), edge(1)),
          { ...lined(name, visible, x, all(level), all(described(name, point, kind)), { line }), mode: "lines" }];
};

const ticks = (densities, element) => {
  const room = Math.max(2, Math.floor(element.clientWidth / 70));
  const decades = densities.filter((d) => Math.abs(Math.log10(d) - Math.round(Math.log10(d))) < 1e-9);
  const few = decades.length > 1 ? decades : [densities[0], densities.at(-1)];
  const shown = densities.length <= room ? densities : few;
  return { tickmode: "array", tickvals: shown, ticktext: shown.map(percent), tickangle: 0 };
};

const drawAccuracy = () => {
  const panel = data.panels[+$("panel").value], kind = $("kind").value, element = $("accuracy-plot");
  const found = new Set(panel.lines.flatMap((line) => line.points.map((p) => p.density)).filter((d) => d !== null));
  const densities = found.size ? [...found].sort((a, b) => a - b) : [0.01, 1];
  const range = [Math.log10(densities[0] / 1.3), Math.log10(densities.at(-1) * 1.3)];
  const traces = accuracyTraces(panel, kind, densities), bands = traces.filter((trace) => trace.fill);
  draw(element, [...bands, ...traces.filter((trace) => !trace.fill)], // bands first, so that none covers a line
       axis("density", { type: "log", range, ...ticks(densities, element) }),
       axis(`${kind} accuracy (%)`, { rangemode: "normal" }));
  $("accuracy-note").textContent = panelNote(panel);
  accuracyNumbers(panel, kind, densities);
};

const panelNote = (panel) => {
  const notes = [`${panel.title}: ${plural(panel.runs, "run")}.`];
  if (panel.details) notes.push(`All with ${panel.details}.`);
  const collapsed = panel.lines.some((line) => line.points.some((p) => p.collapsed));
  if (collapsed) {
    notes.push(panel.chance !== null ? "Hollow markers on broken lines: the method collapsed; drawn at chance."
      : "Collapsed runs are not drawn: how many classes these data have is not known.");
  }
  if (panel.failed) notes.push(`${plural(panel.failed, "failed run")} missing from the means.`);
  return notes.join(" ");
};

const accuracyNumbers = (panel, kind, densities) => {
  const rows = [null, ...densities].filter((d) => panel.lines.some((l) => l.points.some((p) => p.density === d)));
  const cell = (line, density) => {
    const p = line.points.find((one) => one.density === density);
    if (!p) return "";
    return p.n ? `${measured(p[kind], p[`${kind}_deviation`])} (${p.n})` : p.collapsed ? "collapsed" : "failed";
  };
  const names = ["density", ...panel.lines.map((line) => line.name)];
  const head = names.map((name, i) => make("th", { class: i ? "number" : "" }, name));
  $("accuracy-numbers").replaceChildren(
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...rows.map((density) => make("tr", {}, make("td", {}, densityName(density)),
      ...panel.lines.map((line) => make("td", { class: "number" }, cell(line, density)))))),
  );
};

const choosePanel = () => {
  choices($("accuracy-choices"), data.panels[+$("panel").value].lines, hidden, drawAccuracy);
  drawAccuracy();
};

// --- networks before their first step: weights per layer, spectra

const layerTraces = (lines, out) => {
  const all = [...new Set(lines.flatMap((line) => line.layers))];
  const drawn = lines.map((line) => {
    const at = new Map(line.layers.map((name, i) => [name, i]));
    const text = all.map((name) => at.has(name) ? [
      `<b>${escaped(line.name)}</b>`, escaped(name),
      `${whole(line.weights[at.get(name)])} of ${plural(line.sizes[at.get(name)], "weight")}`,
      `n = ${plural(line.n, "seed")}`,
    ].join("<br>") : "");
    const y = all.map((name) => (at.has(name) ? Math.max(line.weights[at.get(name)], 0.5) : null));
    return lined(line.name, !out.has(line.name), all.map((_, i) => i + 1), y, text);
  });
  const sizes = new Map(lines.flatMap((line) => line.layers.map((name, i) => [name, line.sizes[i]])));
  const size = { type: "scatter", mode: "lines", x: all.map((_, i) => i + 1), y: all.map((name) => sizes.get(name)),
                 line: { color: colourOf("--soft"), width: 1, dash: "dot", shape: "hvh" },
                 text: all.map((name) => `${escaped(name)}<br>size ${whole(sizes.get(name))}`),
                 hovertemplate: "%{text}<extra></extra>" };
  return [size, ...drawn];
};

const spectrumTraces = (lines, out) => lines.flatMap((line) => {
  const { low, middle, high } = line, x = middle.map((_, i) => i + 1), visible = !out.has(line.name);
  const text = middle.map((value, i) => [
    `<b>${escaped(line.name)}</b>`, `singular value ${i + 1}`,
    `${short(value)} (${short(low[i])} to ${short(high[i])})`,
    `${plural(line.images, "image")}, n = ${plural(line.n, "seed")}`,
  ].join("<br>"));
  const positive = (values) => values.map((v, i) => (low[i] > 0 ? v : null)); // a logarithmic axis has no place for 0
  return [band(line.name, visible, x, positive(low), positive(high)),
          lined(line.name, visible, x, positive(middle), text)];
});

const powers = { type: "log", exponentformat: "power", dtick: 1 };
const initialChart = (name, panels, traces, xTitle, yTitle) => {
  if (!panels.length) return () => {};
  const out = new Set(), panel = $(`${name}-panel`), density = $(`${name}-density`);
  const current = () => panels[+panel.value].densities[+density.value];
  const redraw = () => {
    const { lines, missing } = current();
    draw($(`${name}-plot`), traces(lines, out), axis(xTitle, {}), axis(yTitle, powers));
    const zeros = lines.filter((line) => line.middle?.includes(0)).map((line) => line.name);
    $(`${name}-note`).textContent = [
      missing.length ? `Missing: ${missing.join("; ")}.` : "",
      zeros.length ? `With singular values that are 0 and cannot be drawn: ${zeros.join("; ")}.` : "",
    ].join(" ");
  };
  const choose = () => {
    choices($(`${name}-choices`), current().lines, out, redraw);
    redraw();
  };
  const fill = () => {
    options(density, panels[+panel.value].densities.map((d) => densityName(d.density)));
    choose();
  };
  options(panel, panels.map((p) => p.title));
  panel.addEventListener("change", fill);
  density.addEventListener("change", choose);
  fill();
  return choose;
};

// --- accuracy against epochs

const shown = [...data.examples];
const byName = Object.fromEntries(data.table.map((column) => [column.name, column]));
const word = (name, row) => byName[name].words[byName[name].values[row]];
const runName = (row) => {
  const density = byName.density.values[row];
  return `${word("method", row)}${density === null ? "" : `, ${percent(density)}`}, seed ${byName.seed.values[row]}`;
};
const CURVE_TITLES = { validation: "validation accuracy (%)", train: "training accuracy (%)", loss: "training loss" };
// A curve has the look of its method, unless another run has it already.
const curveLooks = () => {
  const ofMethod = shown.map((row, i) => {
    const method = word("method", row), first = shown.findIndex((other) => word("method", other) === method) === i;
    return first && Object.hasOwn(data.looks, method) ? data.looks[method] : undefined;
  });
  const taken = new Set(ofMethod.filter(Boolean).map(String)), free = data.spare.filter((one) => !taken.has(String(one)));
  let next = 0;
  return ofMethod.map((one) => asLook(one ?? free[next++ % free.length]));
};
const curveTrace = (row, { colour, marker, dash }, kind) => {
  const curve = data.curves[row], scale = kind === "loss" ? 1 : 100;
  const y = curve[kind].map((v) => (v === null ? null : scale * v));
  const text = curve.epoch.map((epoch, i) => [
    `<b>${escaped(runName(row))}</b>`, `${escaped(word("network", row))}, ${escaped(word("data", row))}`,
    `epoch ${epoch + 1}: ${y[i] === null ? "–" : short(y[i])}`,
  ].join("<br>"));
  const mode = marker && y.length <= 40 ? "lines+markers" : "lines";
  return { type: "scatter", mode, x: curve.epoch.map((e) => e + 1), y, text,
           hovertemplate: "%{text}<extra></extra>", line: { color: colour, width: 2, dash },
           marker: { color: colour, symbol: marker ?? "circle", size: 7 } };
};
const drawCurves = () => {
  const kind = $("curve-kind").value, looks = curveLooks();
  const longest = Math.max(1, ...shown.map((row) => data.curves[row].epoch.at(-1) + 1));
  draw($("curves-plot"), shown.map((row, i) => curveTrace(row, looks[i], kind)),
       axis("epoch", { tickformat: "d", ...(longest <= 10 ? { dtick: 1 } : {}) }), axis(CURVE_TITLES[kind], {}));
  $("curves-chips").replaceChildren(...shown.map((row, i) => {
    const remove = { type: "button", title: `remove ${runName(row)}`, onclick: () => showCurve(row, false) };
    return make("button", remove, swatch(looks[i]), runName(row), " ×");
  }));
  $("curves-none").hidden = shown.length > 0;
};
const showCurve = (row, show) => {
  const place = shown.indexOf(row);
  if (show && place < 0) shown.push(row);
  if (!show && place >= 0) shown.splice(place, 1);
  drawCurves();
  drawTable();
};
