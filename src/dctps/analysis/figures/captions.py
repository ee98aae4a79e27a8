"""The words on a figure: titles of pages and panels, what the scale reduced, which runs are missing."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dctps.base.words import percent
from dctps.experiments.catalogue import Experiment
from dctps.experiments.status import COLLAPSED, DONE, FAILED
from dctps.experiments.tasks.task import SheetRow
from dctps.experiments.titles import data_title, network_title

NO_BREAK = "\u00a0"  # a space at which no line ends


def by_panel(rows: Sequence[SheetRow]) -> dict[str, list[Any]]:
    """Group the rows of a sheet by the panel that shows them, in order of appearance."""
    groups: dict[str, list[SheetRow]] = {}
    for row in rows:
        groups.setdefault(row.panel, []).append(row)
    return groups


def slug(text: str) -> str:
    """Return a text as a part of a file name.

    >>> slug("ResNet50, CIFAR-10")
    'resnet50-cifar-10'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


# --- titles ---------------------------------------------------------------------------------------------------------


def page_title(experiment: Experiment) -> str:
    """Return the title of an experiment with its place in the paper, if it has one."""
    where = experiment.where if experiment.where.startswith("not") else f"paper: {experiment.where}"
    return f"{experiment.title} ({where})"


def panel_title(rows: Sequence[SheetRow]) -> str:
    """Return the name of a panel and, where the scale replaced them, the network and data set that were run."""
    first = rows[0]
    network, data = network_title(first.model), data_title(first.data)
    if {network, data} <= set(first.panel.split(", ")):  # compares whole names, as CIFAR-10 is a part of CIFAR-100
        return first.panel
    return f"{first.panel}\n(run as {network}, {data})"


def density_list(word: str, densities: Iterable[float | None]) -> str:
    """Return a word and the densities it holds for, from the highest down, or an empty text if there are none.

    >>> density_list("zero", [0.001, 0.01]).replace(NO_BREAK, " ")
    'zero: 1 %, 0.1 %'
    """
    ordered = sorted({density for density in densities if density is not None}, reverse=True)
    names = ", ".join(percent(density).replace(" ", NO_BREAK) for density in ordered)
    return textwrap.fill(f"{word}: {names}", 38) if ordered else ""


# --- small print ----------------------------------------------------------------------------------------------------


def joined(*parts: str) -> str:
    """Join the parts of the small print that are not empty."""
    return "; ".join(filter(None, parts))


def training_words(rows: Sequence[SheetRow]) -> str:
    """Say at which scale networks were trained: epochs and, where they are reduced, images and width."""

    def words(row: SheetRow) -> str:
        images = "" if row.images is None else f", {row.images:,} images"
        width = "" if row.width is None else f", width {row.width}"
        return f"{row.epochs} epochs{images}{width}"

    said = {panel: words(group[0]) for panel, group in by_panel(rows).items()}
    return f"{rows[0].scale} scale: {_for_panels(said)}"


def initial_words(rows: Sequence[SheetRow]) -> str:
    """Say at which scale networks were looked at before any training."""
    widths = {panel: group[0].width for panel, group in by_panel(rows).items()}
    words = {panel: "networks in full" if width is None else f"width {width}" for panel, width in widths.items()}
    return f"{rows[0].scale} scale: at initialisation, before any training; {_for_panels(words)}"


def _for_panels(words: dict[str, str]) -> str:
    """Join the words about each panel; words that hold for all panels are written once, without their names."""
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    panels = {text: [panel for panel, other in words.items() if other == text] for text in words.values()}
    return "; ".join(f"{text} ({' and '.join(names)})" for text, names in panels.items())


def missing_words(rows: Sequence[SheetRow]) -> str:
    """Say how many runs are not in the figure; empty if none is missing."""
    statuses = Counter({row.id: row.status for row in rows}.values())
    total, collapsed, failed = sum(statuses.values()), statuses.pop(COLLAPSED, 0), statuses.pop(FAILED, 0)
    absent = total - statuses.pop(DONE, 0) - collapsed - failed
    counts = ((collapsed, COLLAPSED), (failed, FAILED), (absent, "missing"))
    return "; ".join(f"{count} of {total} runs {word}" for count, word in counts if count)
