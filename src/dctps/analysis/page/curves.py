"""Accuracy against epochs: the metrics of some runs, which a page can hold, chosen seed by seed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dctps.analysis.page.panels import key
from dctps.experiments.cells import TRAIN
from dctps.experiments.naming import method_name
from dctps.experiments.numbers import LARGEST
from dctps.experiments.results import Row
from dctps.experiments.status import DONE

POINTS = 250  # of a curve; longer trainings are thinned out
KINDS = ("validation", "train", "loss")


def curves(rows: Sequence[Row], most: int) -> dict[int, dict[str, list[float | None]]]:
    """The metrics of at most so many runs, by the index of their row."""
    found = {}
    for index in chosen(rows)[: max(0, most)]:
        if curve := _curve(rows[index]):
            found[index] = curve
    return found


def chosen(rows: Sequence[Row]) -> list[int]:
    """The trainings that are done: of each panel, method and density one first, then a second one ..."""
    seen = Counter[Any]()
    ranked = []
    for index, row in enumerate(rows):
        if row.task == TRAIN and row.status == DONE:
            cell = key(row.settings), method_name(row.settings), row.settings.density
            ranked.append((seen[cell], index))
            seen[cell] += 1
    return [index for _, index in sorted(ranked)]


def _curve(row: Row) -> dict[str, list[float | None]]:
    """A list for each of `epoch` and KINDS."""
    epochs = [own for own in row.epochs() if _short(own.get("epoch")) is not None]
    step = -(-len(epochs) // POINTS)
    kept = epochs[-1::-step][::-1] if epochs else []  # the last one always
    return {kind: [_short(own.get(kind)) for own in kept] for kind in ("epoch", *KINDS)} if kept else {}


def _short(value: Any) -> float | None:
    """A number to four decimals, else None; as `number`, which would be slow for so many."""
    return round(value, 4) if type(value) in (int, float) and -LARGEST < value < LARGEST else None


def examples(rows: Sequence[Row], embedded: Sequence[int], most: int = 6) -> list[int]:
    """The curves shown at first: of the panel with the most runs, those at the density that most of them share."""
    panels = Counter(key(rows[index].settings) for index in embedded)
    if not panels:
        return []
    largest = panels.most_common(1)[0][0]
    of_panel = [index for index in embedded if key(rows[index].settings) == largest]
    common = Counter(rows[i].settings.density for i in of_panel).most_common(1)[0][0]
    alike = [index for index in of_panel if rows[index].settings.density == common]
    by_method = {method_name(rows[index].settings): index for index in reversed(alike)}
    return sorted(by_method.values())[:most]
