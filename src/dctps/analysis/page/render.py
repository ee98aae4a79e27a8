"""A folder of runs as one HTML page that needs nothing but itself: no network, no server, no other file.

The page is static text, a script and the results as JSON. Whatever stands in the files of runs is data to it: escaped
where it becomes HTML, and by its content security policy unable to run, or to load anything from anywhere.
"""

import base64
import dataclasses
import datetime
import hashlib
import html
import importlib
import importlib.metadata
import json
import os
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.page.curves import curves, examples
from dctps.analysis.page.layers import count_panels, spectrum_panels
from dctps.analysis.page.looks import assign_looks, spare_looks
from dctps.analysis.page.panels import accuracy_panels
from dctps.analysis.page.table import in_order, table
from dctps.analysis.page.values import usable
from dctps.base.files import write_atomically
from dctps.experiments.cells import TRAIN
from dctps.experiments.results import Broken, Results, Row
from dctps.experiments.status import COLLAPSED, DONE, FAILED

CURVES = 300  # runs whose metrics a page holds, unless told otherwise


@dataclasses.dataclass(frozen=True)
class Page:
    """What is on the page: the rows that can be shown, what cannot, and how many runs are not over."""

    runs: Path
    out: Path
    rows: list[Row]
    broken: list[Broken]
    unfinished: int
    curves: int = CURVES
    ops: bool = False

    def count(self, status: str) -> int:
        return sum(row.status == status for row in self.rows)


def write_page(results: Results, runs: Path, out: Path, *, curves: int = CURVES, ops: bool = False) -> Page:
    """Write the page of a folder's results; returns what is on it.

    curves: runs whose accuracy over the epochs is on the page.
    ops: whether to count multiply-adds, for which a network of each kind is built.
    """
    rows, damaged = usable(results.rows)
    broken = sorted([*results.broken, *damaged], key=lambda one: one.name)
    page = Page(runs, out, in_order(rows), broken, results.unfinished, curves, ops)
    text = render(page)
    # names of folders need not be valid text; a page has to be
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8", errors="replace"))
    return page


def render(page: Page) -> str:
    """The page as text."""
    content, scripts = payload(page), [_plotly(), _asset("page.js")]
    data = f'<script type="application/json" id="data">{_json(content)}</script>'
    parts = {
        "policy": _policy(scripts),
        "name": html.escape(page.runs.resolve().name or str(page.runs)),
        "style": _asset("page.css"),
        "tiles": _tiles(page),
        "sections": "\n".join(_sections(page, content)),
        "footer": html.escape(_footer()),
        "scripts": "\n".join([data, *(f"<script>{script}</script>" for script in scripts)]),
    }
    return _FRAME.format_map(parts)


# --- the data -------------------------------------------------------------------------------------------------------


def payload(page: Page) -> dict[str, Any]:
    """What the script draws."""
    of_task = {task: [row for row in page.rows if row.task == task] for task in (TRAIN, "counts", "jacobian")}
    panels, embedded = accuracy_panels(of_task[TRAIN]), curves(page.rows, page.curves)
    layers, spectra = count_panels(of_task["counts"]), spectrum_panels(of_task["jacobian"])
    lines = [line["name"] for panel in panels for line in panel["lines"]]
    lines += [line["name"] for p in (*layers, *spectra) for own in p["densities"] for line in own["lines"]]
    quoted = {index: urllib.parse.quote(os.fsencode(row.id), safe="") for index, row in enumerate(page.rows)}
    return {
        "looks": assign_looks(lines),
        "spare": spare_looks(),
        "panels": panels,
        "first": max(range(len(panels)), key=lambda i: panels[i]["runs"], default=0),
        "layers": layers,
        "spectra": spectra,
        "curves": embedded,
        "examples": examples(page.rows, list(embedded)),
        "table": table(page.rows, page.ops),
        "ids": [row.id for row in page.rows],
        "links": {index: link for index, link in quoted.items() if link != page.rows[index].id},
        "base": _relative(page.runs, page.out),
        "reasons": {index: row.reason for index, row in enumerate(page.rows) if row.status != DONE},
    }


def _relative(runs: Path, out: Path) -> str:
    """Where the folder of runs is, as seen from the page."""
    try:
        path = os.path.relpath(runs.resolve(), out.resolve().parent)
    except ValueError:  # another drive
        return runs.resolve().as_uri() + "/"
    return f"./{urllib.parse.quote(os.fsencode(path.replace(os.sep, '/')))}/"


def _json(content: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- scripts --------------------------------------------------------------------------------------------------------


def _plotly() -> str:
    """plotly.js as the Python package ships it: the whole of it, for it ships no smaller bundle."""
    try:
        script: str = importlib.import_module("plotly.offline").get_plotlyjs()
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the page needs plotly; install it with: pip install 'dctps[report]'") from error
    return script.replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """These scripts and no others may run; nothing may be loaded."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


# --- HTML -----------------------------------------------------------------------------------------------------------


def _tiles(page: Page) -> str:
    broken = '<a href="#broken">broken</a>' if page.broken else "broken"
    counts = [
        ("good", page.count(DONE), "done"),
        ("warn", page.count(COLLAPSED), "collapsed"),
        ("bad", page.count(FAILED), "failed"),
        ("bad", len(page.broken), broken),
        ("", page.unfinished, "unfinished"),
    ]
    return "".join(
        f'<li class="{kind if number else ""}"><b>{number:,}</b><span>{name}</span></li>'
        for kind, number, name in counts
    )


def _sections(page: Page, content: dict[str, Any]) -> Iterable[str]:
    if not page.rows:
        yield '<section><h2>No run is over</h2><p class="soft">There is nothing to show yet.</p></section>'
    if content["panels"]:
        yield _ACCURACY
    if content["curves"]:
        yield _CURVES.format(curves=_which_curves(page, len(content["curves"])))
    if content["layers"]:
        yield _before("layers", "Weights per layer", _LAYERS_WORDS)
    if content["spectra"]:
        yield _before("spectra", "Spectrum of the Jacobian", _SPECTRA_WORDS)
    if page.rows:
        yield _TABLE.format(columns=_columns(content["table"]))
    if page.broken:
        yield _broken(page.broken)


def _broken(broken: Sequence[Broken]) -> str:
    items = "".join(f"<li><code>{html.escape(b.name)}</code>: {html.escape(b.reason)}</li>" for b in broken)
    heading = f"{len(broken):,} broken run{'s' if len(broken) > 1 else ''}"
    words = "Their files cannot be used; they are in no table, chart or mean."
    return (
        f'<section id="broken"><h2>{heading}</h2><p class="soft">{words}</p>'
        f'<ul class="list" tabindex="0">{items}</ul></section>'
    )


def _which_curves(page: Page, embedded: int) -> str:
    done = sum(row.task == TRAIN and row.status == DONE for row in page.rows)
    if embedded == done:
        return "Choose runs by the checkboxes of the table below."
    return (
        f"Choose runs by the checkboxes of the table below. This page holds the curves of {embedded:,} of {done:,} "
        "runs: of each method and density one seed first (--curves makes it more)."
    )


def _columns(columns: Iterable[dict[str, Any]]) -> str:
    """What the columns of the table mean."""
    told = [column for column in columns if column["tip"]]
    return "".join(f"<dt>{column['name']}</dt><dd>{html.escape(column['tip'])}</dd>" for column in told)


def _footer() -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    version = importlib.metadata.version("dctps")
    return f"Made by dctps {version} at {now} UTC. Everything is in this file; nothing is loaded from a network."


def _before(name: str, title: str, words: str) -> str:
    return _BEFORE.format(name=name, title=title, words=words)


_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{name}: runs of dctps</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>Runs in <code>{name}</code></h1>
<p class="soft">Dense for the price of sparse: W = &alpha; D + S with a fast transform D that is never stored.</p>
<ul class="tiles">{tiles}</ul>
</header>
<main>
<noscript><section>This page draws its charts and its table with JavaScript, which is switched off.</section></noscript>
{sections}
</main>
<footer>{footer}</footer>
{scripts}
</body>
</html>
"""

_ACCURACY = """<section id="accuracy">
<h2>Accuracy against density</h2>
<p class="soft">Means over seeds, with bands of one standard deviation; the dense network is the broken line.</p>
<div class="controls">
<label class="long">Panel <select id="panel"></select></label>
<label>Accuracy <select id="kind"><option value="test">test</option>
<option value="validation">validation</option></select></label>
</div>
<div class="chart">
<div id="accuracy-plot" class="plot" role="img" aria-label="Accuracy against density; the numbers are below"></div>
<fieldset id="accuracy-choices"></fieldset>
</div>
<p id="accuracy-note" class="soft note"></p>
<details><summary>Numbers of this chart: mean &plusmn; deviation in % (seeds)</summary>
<div class="box" tabindex="0"><table id="accuracy-numbers"></table></div></details>
</section>"""

_CURVES = """<section id="curves">
<h2>Accuracy against epochs</h2>
<p class="soft">{curves}</p>
<div class="controls">
<label>Curve <select id="curve-kind"><option value="validation">validation accuracy</option>
<option value="train">training accuracy</option><option value="loss">training loss</option></select></label>
<button type="button" id="curves-clear">Clear</button>
</div>
<div id="curves-plot" class="plot" role="img" aria-label="Accuracy against epochs"></div>
<p id="curves-none" class="soft">No run is chosen.</p>
<div id="curves-chips" class="chips"></div>
</section>"""

_LAYERS_WORDS = (
    "Before the first step; the dotted line is the size of each layer. Layers without a weight are drawn at 0.5."
)
_SPECTRA_WORDS = (
    "Singular values of d outputs / d inputs before the first step: the geometric mean over images, with bands from "
    "the least to the largest."
)
_BEFORE = """<section id="{name}">
<h2>{title}</h2>
<p class="soft">{words}</p>
<div class="controls">
<label class="long">Panel <select id="{name}-panel"></select></label>
<label>Density <select id="{name}-density"></select></label>
</div>
<div class="chart">
<div id="{name}-plot" class="plot" role="img" aria-label="{title}"></div>
<fieldset id="{name}-choices"></fieldset>
</div>
<p id="{name}-note" class="soft note"></p>
</section>"""

_TABLE = """<section id="table">
<h2>All runs</h2>
<div class="controls" id="filters">
<label class="long">Search <input type="search" id="search" placeholder="method, setting, reason, run ..."></label>
</div>
<div class="box" id="box" tabindex="0"><table>
<thead><tr id="heads"></tr></thead><tbody id="rows"></tbody></table></div>
<div class="pager">
<button type="button" id="first" aria-label="first page">&laquo;</button>
<button type="button" id="previous">Previous</button>
<span id="position" aria-live="polite"></span>
<button type="button" id="next">Next</button>
<button type="button" id="last" aria-label="last page">&raquo;</button>
<label>Rows <select id="size"><option>25</option><option selected>50</option><option>100</option>
<option>250</option></select></label>
<button type="button" id="reset">Reset filters</button>
</div>
<details><summary>What the columns mean</summary><dl>{columns}</dl></details>
</section>"""
