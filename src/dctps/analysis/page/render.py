"""A folder of runs as one HTML page that needs nothing but itself: no network, no server, no other file.

The page is static text, a script and the results as JSON. What stands in the files of runs is data to it: it is
escaped where it becomes HTML, and by the content security policy of the page it can neither run nor load anything.
"""

import base64
import datetime
import functools
import hashlib
import html
import importlib.metadata
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.page.content import CURVES, Page, payload
from dctps.analysis.page.curves import damaged_metrics
from dctps.analysis.page.table import in_order
from dctps.base.extras import needed
from dctps.base.files import write_atomically
from dctps.experiments.cells import TRAIN
from dctps.experiments.results import Broken, Results
from dctps.experiments.status import COLLAPSED, DONE, FAILED

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = ("elements.js", "charts.js", "table.js", "start.js")  # one after another they are the script of the page
LAYERS_WORDS = (
    "Before the first step; the dotted line is the size of each layer. Layers without a weight are drawn at 0.5."
)
SPECTRA_WORDS = (
    "Singular values of d outputs / d inputs before the first step: the geometric mean over images, with bands from "
    "the least to the largest."
)


def write_page(results: Results, runs: Path, out: Path, *, curves: int = CURVES, ops: bool = False) -> Page:
    """Write the page of a folder's results; return what is on it.

    curves: the largest number of runs whose accuracy over the epochs is on the page.
    ops: whether to count multiply-adds, for which a network of each kind is built.
    """
    rows = in_order(results.rows)
    broken = sorted([*results.broken, *damaged_metrics(rows, curves)], key=lambda run: run.name)
    page = Page(runs, out, rows, broken, results.unfinished, curves, ops)
    text = render(page)
    # Names of folders may hold bytes that are no valid text; the page replaces them.
    write_atomically(out, lambda file: file.write_text(text, encoding="utf-8", errors="replace"))
    return page


def render(page: Page) -> str:
    """Return the page as text."""
    content, scripts = payload(page), [_plotly(), _script()]
    return _filled(
        "page",
        policy=_policy(scripts),
        name=html.escape(page.runs.resolve().name or str(page.runs)),
        style=_asset("page.css"),
        tiles=_tiles(page),
        sections="\n".join(_sections(page, content)),
        footer=html.escape(_footer()),
        data=_json(content),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


# --- assets ---------------------------------------------------------------------------------------------------------


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the script of the page: all its parts in one function, so that their names are nobody else's."""
    return "\n".join(['"use strict";', "(() => {", *map(_asset, SCRIPTS), "})();", ""])


def _plotly() -> str:
    """Return plotly.js as the Python package has it, in full, as it has no smaller bundle."""
    script: str = needed("plotly.offline", "the page").get_plotlyjs()
    return script.replace("</script", "<\\/script")


@functools.cache
def _templates() -> dict[str, str]:
    """Return the templates of page.html by name."""
    parts = re.split(r"<!-- template: (\w+) -->\n", _asset("page.html"))
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _filled(template: str, **values: Any) -> str:
    """Return a template with values in place of the names in braces."""
    return _templates()[template].format_map(values)


def _policy(scripts: Iterable[str]) -> str:
    """Return a content security policy: these scripts and no others may run; nothing may be loaded."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _json(content: Any) -> str:
    """Return JSON that can stand inside a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- parts of the page ----------------------------------------------------------------------------------------------


def _tiles(page: Page) -> str:
    broken = '<a href="#broken">broken</a>' if page.broken else "broken"
    tiles = [
        ("good", page.count(DONE), DONE),
        ("warn", page.count(COLLAPSED), COLLAPSED),
        ("bad", page.count(FAILED), FAILED),
        ("bad", len(page.broken), broken),
        ("", page.unfinished, "unfinished"),
    ]
    return "".join(
        _filled("tile", kind=kind if number else "", number=number, name=name) for kind, number, name in tiles
    )


def _sections(page: Page, content: dict[str, Any]) -> Iterator[str]:
    if not page.rows:
        yield _filled("empty")
    if content["panels"]:
        yield _filled("accuracy")
    if content["curves"]:
        yield _filled("curves", words=_curves_words(page, len(content["curves"])))
    if content["layers"]:
        yield _filled("initial", name="layers", title="Weights per layer", words=LAYERS_WORDS)
    if content["spectra"]:
        yield _filled("initial", name="spectra", title="Spectrum of the Jacobian", words=SPECTRA_WORDS)
    if content["names"]:
        yield _filled("names", names=_meanings(content["names"]))
    if page.rows:
        explained = {column["name"]: column["tip"] for column in content["table"] if column["tip"]}
        yield _filled("table", columns=_meanings(explained))
    if page.broken:
        yield _broken(page.broken)


def _curves_words(page: Page, embedded: int) -> str:
    """Say how to choose curves and, if some are left out, how many the page holds."""
    done = sum(row.task == TRAIN and row.status == DONE for row in page.rows)
    if embedded == done:
        return "Choose runs by the checkboxes of the table below."
    return (
        f"Choose runs by the checkboxes of the table below. This page holds the curves of {embedded:,} of {done:,} "
        "runs: of each method and density one seed first (--curves makes it more)."
    )


def _meanings(explained: Mapping[str, str]) -> str:
    """Return the entries of a list of names with their meanings."""
    pairs = explained.items()
    return "".join(_filled("meaning", name=html.escape(name), meaning=html.escape(text)) for name, text in pairs)


def _broken(broken: Sequence[Broken]) -> str:
    heading = f"{len(broken):,} broken run{'s' if len(broken) > 1 else ''}"
    items = [_filled("broken_run", name=html.escape(run.name), reason=html.escape(run.reason)) for run in broken]
    return _filled("broken", heading=heading, items="".join(items))


def _footer() -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    version = importlib.metadata.version("dctps")
    return f"Made by dctps {version} at {now} UTC. Everything is in this file; nothing is loaded from a network."
