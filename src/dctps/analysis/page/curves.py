"""Accuracy against epochs: the metrics of as many runs as a page can hold, chosen seed by seed."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dctps.analysis.page.panels import key
from dctps.experiments.cells import TRAIN
from dctps.experiments.naming import method_name
from dctps.experiments.results import Broken, Row
from dctps.experiments.status import DONE
from dctps.train.runs import RunError

POINTS = 250  # the largest number of points of a curve; longer trainings are thinned out
KINDS = ("validation", "train", "loss")


def curves(rows: Sequence[Row], most: int) -> dict[int, dict[str, list[float | None]]]:
    """Return the metrics of at most `most` runs by the index of their row."""
    found = {}
    for index in chosen(rows)[: max(0, most)]:
        with contextlib.suppress(RunError):  # `damaged_metrics` says so
            if curve := _curve(rows[index]):
                found[index] = curve
    return found


def damaged_metrics(rows: Sequence[Row], most: int) -> list[Broken]:
    """Return those of the runs of `curves` whose metrics cannot be read, so that they have no curve."""
    damaged = []
    for index in chosen(rows)[: max(0, most)]:
        try:
            rows[index].epochs()
        except RunError as error:
            damaged.append(Broken(rows[index].id, f"{error}; only its curve is left out"))
    return damaged


def chosen(rows: Sequence[Row]) -> list[int]:
    """Return the indices of finished trainings: first one of each panel, method and density, then a second one ..."""
    seen = Counter[Any]()
    ranked = []
    for index, row in enumerate(rows):
        if row.task == TRAIN and row.status == DONE:
            point = key(row.settings), method_name(row.settings), row.settings.density
            ranked.append((seen[point], index))
            seen[point] += 1
    return [index for _, index in sorted(ranked)]


def _curve(row: Row) -> dict[str, list[float | None]]:
    """Return the numbers of a run's epochs, a list for each of `epoch` and KINDS; empty if it has no metrics."""
    epochs = row.epochs()
    step = -(-len(epochs) // POINTS)
    kept = epochs[-1::-step][::-1] if epochs else []  # counted from the end, so that the last epoch is always there
    return {kind: [round(epoch[kind], 4) for epoch in kept] for kind in ("epoch", *KINDS)} if kept else {}


def examples(rows: Sequence[Row], embedded: Sequence[int], most: int = 6) -> list[int]:
    """Return the rows whose curves are shown first: those at the commonest density of the panel with the most runs."""
    panels = Counter(key(rows[index].settings) for index in embedded)
    if not panels:
        return []
    largest = panels.most_common(1)[0][0]
    of_panel = [index for index in embedded if key(rows[index].settings) == largest]
    common = Counter(rows[i].settings.density for i in of_panel).most_common(1)[0][0]
    alike = [index for index in of_panel if rows[index].settings.density == common]
    by_method = {method_name(rows[index].settings): index for index in reversed(alike)}
    return sorted(by_method.values())[:most]
