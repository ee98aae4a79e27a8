"""Accuracy against epochs: the metrics of as many runs as a page can hold, chosen seed by seed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dctps.analysis.page.panels import key
from dctps.experiments.cells import TRAIN
from dctps.experiments.naming import method_name
from dctps.experiments.numbers import LARGEST
from dctps.experiments.results import Row
from dctps.experiments.status import DONE

POINTS = 250  # the largest number of points of a curve; longer trainings are thinned out
KINDS = ("validation", "train", "loss")


def curves(rows: Sequence[Row], most: int) -> dict[int, dict[str, list[float | None]]]:
    """Return the metrics of at most `most` runs by the index of their row."""
    found = {}
    for index in chosen(rows)[: max(0, most)]:
        if curve := _curve(rows[index]):
            found[index] = curve
    return found


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
    epochs = [epoch for epoch in row.epochs() if _short(epoch.get("epoch")) is not None]
    step = -(-len(epochs) // POINTS)
    kept = epochs[-1::-step][::-1] if epochs else []  # counted from the end, so that the last epoch is always there
    return {kind: [_short(epoch.get(kind)) for epoch in kept] for kind in ("epoch", *KINDS)} if kept else {}


def _short(value: Any) -> float | None:
    """Return a number with four decimals, or None if it is none; `number` would be slow for so many."""
    return round(value, 4) if type(value) in (int, float) and -LARGEST < value < LARGEST else None


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
