// The table of all runs: filters, order, pages.

const count = data.ids.length, hasCurves = Object.keys(data.curves).length > 0;
const state = { column: null, down: false, page: 0, size: 50, filters: {} };
const collator = new Intl.Collator("en", { numeric: true });
const FORMATS = {
  percent, integer: whole, accuracy: (x) => decimals(x, 2), seconds: (x) => decimals(x, x < 100 ? 1 : 0),
};
let haystacks = null, rows = [];
const haystack = (row) => {
  const texts = data.table.filter((c) => c.words).map((c) => c.words[c.values[row]]);
  const text = [data.ids[row], data.reasons[row] ?? "", ...texts].join("\n").toLowerCase();
  return `${text}\n${text.replace(/[-_ ]/g, "")}`; // finds CIFAR-10 as cifar10, too
};
const select = () => {
  const wanted = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  if (wanted.length) haystacks ??= data.ids.map((_, row) => haystack(row));
  const set = Object.entries(state.filters).filter(([, value]) => value >= 0);
  const filters = set.map(([name, value]) => [byName[name].values, value]);
  const fits = (row) => filters.every(([values, value]) => values[row] === value)
    && wanted.every((one) => haystacks[row].includes(one));
  rows = data.ids.map((_, row) => row).filter(fits);
  sort();
};
const sort = () => {
  const sign = state.down ? -1 : 1, column = state.column;
  if (column === "run") rows.sort((a, b) => sign * collator.compare(data.ids[a], data.ids[b]));
  else if (column !== null) {
    const { values, words } = byName[column];
    const rank = words && ranks(words);
    const at = words ? (row) => rank[values[row]] : (row) => values[row];
    // rows without a value come last in either direction
    const compare = (x, y) => (x === null || y === null ? (x === null) - (y === null) : sign * (x - y));
    rows.sort((a, b) => compare(at(a), at(b)) || a - b);
  }
  state.page = 0;
  drawTable();
};
const ranks = (words) => {
  const place = [];
  words.map((_, i) => i).sort((a, b) => collator.compare(words[a], words[b])).forEach((i, at) => { place[i] = at; });
  return place;
};
const sortBy = (column) => () => {
  state.down = state.column === column && !state.down;
  state.column = column;
  sort();
};

const cell = (column, row) => {
  if (!column.words) {
    const value = column.values[row];
    return make("td", { class: "number" }, value === null ? "–" : FORMATS[column.kind](value));
  }
  const text = column.words[column.values[row]];
  if (column.name !== "status") return make("td", {}, text);
  const reason = data.reasons[row];
  return make("td", { class: `status-${text}` }, text, ...(reason ? [make("small", {}, reason)] : []));
};
const curveCell = (row) => {
  if (!(row in data.curves)) return make("td", {});
  const change = (event) => showCurve(row, event.target.checked);
  const label = `show the curve of ${data.ids[row]}`;
  const box = make("input", { type: "checkbox", "aria-label": label, onchange: change });
  box.checked = shown.includes(row);
  return make("td", {}, box);
};
const link = (row) => {
  const href = `${data.base}${data.links[row] ?? data.ids[row]}/`;
  return make("td", {}, make("a", { href }, make("code", {}, data.ids[row])));
};
const cells = (row) => data.table.map((column) => cell(column, row)).toSpliced(-1, 0, link(row));

const drawTable = () => {
  const pages = Math.max(1, Math.ceil(rows.length / state.size)), last = pages - 1;
  state.page = Math.min(Math.max(state.page, 0), last);
  const first = state.page * state.size, here = rows.slice(first, first + state.size);
  const focused = document.activeElement?.getAttribute?.("aria-label");
  $("rows").replaceChildren(...here.map((row) =>
    make("tr", {}, ...(hasCurves ? [curveCell(row)] : []), ...cells(row))));
  if (focused) [...$("rows").querySelectorAll("input")].find((box) => box.ariaLabel === focused)?.focus();
  $("heads").querySelectorAll("th[data-column]").forEach((th) => {
    const mine = th.dataset.column === state.column;
    th.setAttribute("aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
  });
  const range = `${whole(first + 1)}–${whole(first + here.length)} of ${plural(rows.length, "run")}`;
  $("position").textContent = rows.length ? range : "no run fits";
  $("first").disabled = $("previous").disabled = state.page === 0;
  $("next").disabled = $("last").disabled = state.page === last;
};

const startTable = () => {
  const head = (name, title, tip, number) => make(
    "th", { scope: "col", "data-column": name, class: number ? "number" : "", title: tip || null },
    make("button", { type: "button", onclick: sortBy(name) }, title));
  const heads = data.table.map((c) => head(c.name, c.name + (c.kind === "accuracy" ? " %" : ""), c.tip, !c.words));
  const tip = "Show the run in the chart of accuracy against epochs.";
  $("heads").replaceChildren(...(hasCurves ? [make("th", { scope: "col", title: tip }, "curve")] : []),
                             ...heads.toSpliced(-1, 0, head("run", "run", "The run folder.", false)));
  for (const column of data.table.filter((c) => c.filtered && c.words.length > 1)) {
    const inOrder = column.words.map((_, i) => i).sort((a, b) => collator.compare(column.words[a], column.words[b]));
    const change = (event) => { state.filters[column.name] = +event.target.value; select(); };
    const values = inOrder.map((i) => make("option", { value: i }, column.words[i]));
    $("filters").append(make("label", {}, column.name, make(
      "select", { "data-filter": column.name, onchange: change }, make("option", { value: -1 }, "all"), ...values)));
  }
  const turn = (page) => () => { state.page = page(); drawTable(); $("box").scrollTop = 0; };
  $("search").addEventListener("input", select);
  $("size").addEventListener("change", () => { state.size = +$("size").value; state.page = 0; drawTable(); });
  $("first").addEventListener("click", turn(() => 0));
  $("previous").addEventListener("click", turn(() => state.page - 1));
  $("next").addEventListener("click", turn(() => state.page + 1));
  $("last").addEventListener("click", turn(() => Infinity));
  $("reset").addEventListener("click", () => {
    $("search").value = "";
    $("filters").querySelectorAll("select").forEach((one) => { one.value = -1; });
    state.filters = {};
    select();
  });
  select();
};
