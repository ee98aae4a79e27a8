"""The paper's Table 1: what each method loses against the dense network, and what it costs, in numbers."""

from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import captions
from dctps.analysis.figures.network_costs import Amounts, LayerShape, device_bytes, layers_of, multiply_adds
from dctps.analysis.figures.tables import Table, markdown
from dctps.base.words import percent
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.paper import DENSE
from dctps.experiments.summary import Point, over_seeds, points
from dctps.experiments.tasks.training import TrainingRow

STAGES = ("initial", "training", "training_end", "final")
COLUMNS = (
    *("panel", "method", "density", "drop_points", "std_points", "n", "asked", "collapsed"),
    *(f"multiply_adds_{stage}" for stage in STAGES),
    *(f"bytes_{stage}" for stage in STAGES),
)
NOTES = """\
Accuracy: the difference from the mean of the dense network in percentage points, and the standard deviation (of the
sample) of the method's accuracies over its seeds. A dagger means that the method collapsed at all seeds and counts as
guessing. Where some seeds have no result, brackets say how many have one.

Cost: the multiply-adds of the matrix products of one image, by the formulas of the paper's Table 1. A pruning method
takes k forward passes of one batch each; RigL takes the whole gradient once in so many steps. Size: the bytes of the
weights on the device, 4 for a value and 4 for its position, and 4 for each alpha. For FORCE, SynFlow and IMP both are
computed as if all layers had the same density.
"""


def table1(sheet_rows: Sequence[TrainingRow]) -> dict[str, Table]:
    """Return for each panel the drops in accuracy, methods x densities, then costs and sizes."""
    title, words = captions.page_title(EXPERIMENTS[sheet_rows[0].experiment]), captions.training_words(sheet_rows)
    parts, rows = [f"# {title}\n\n{captions.joined(words, captions.missing_words(sheet_rows))}.\n"], []
    for group in captions.by_panel(sheet_rows).values():
        found, layers = points(group), layers_of(group[0].model, group[0].data, group[0].width)
        heading = captions.panel_title(group).replace("\n", " ")
        parts += [f"## {heading}\n", "Change of the accuracy, in percentage points\n", _drops(found)]
        if layers is not None:
            parts += ["Cost and size, at initialisation, in training and in the end\n", _costs(found, group, layers)]
        rows += [_row(point, _baseline(found), group, layers) for point in found]
    return {"-table": Table("\n".join([*parts, NOTES]), COLUMNS, rows)}


# --- accuracy -------------------------------------------------------------------------------------------------------


def _baseline(found: Sequence[Point]) -> float | None:
    """Return the mean accuracy of the dense network."""
    return next((point.mean for point in found if point.line == DENSE), None)


def _drops(found: Sequence[Point]) -> str:
    dense = _baseline(found)
    densities = sorted({point.density for point in found if point.density is not None}, reverse=True)
    by_place = {(point.line, point.density): point for point in found}
    methods = [name for name in dict.fromkeys(point.line for point in found) if name != DENSE]
    rows = [[name, *(_drop(by_place.get((name, density)), dense) for density in densities)] for name in methods]
    accuracy = "missing" if dense is None else f"{100 * dense:.1f} %"
    return markdown([f"dense: {accuracy}", *map(percent, densities)], rows)


def _drop(point: Point | None, dense: float | None) -> str:
    if point is None or point.mean is None:
        return "missing"
    if dense is None:
        return "no baseline"
    text = f"{100 * (point.mean - dense):+.1f}".replace("-", "−")  # noqa: RUF001
    text += "" if point.std is None else f" ± {100 * point.std:.1f}"
    text += " †" if point.is_chance else ""
    return text if point.n == point.asked or point.is_chance else f"{text} ({point.n} of {point.asked})"


# --- cost and size --------------------------------------------------------------------------------------------------


def _amounts(
    point: Point, sheet_rows: Sequence[TrainingRow], layers: Sequence[LayerShape] | None
) -> tuple[Amounts, Amounts] | None:
    """Return multiply-adds and bytes, or None if the shape of the images is unknown or no layer can have weights."""
    if layers is None:
        return None
    group = [row for row in sheet_rows if (row.line, row.density) == (point.line, point.density)]
    mean = over_seeds(row.pruning_passes for row in group).mean
    passes = None if mean is None else round(mean)
    every = next((row.rewire_every for row in group if row.rewire_every is not None), None)
    try:
        cost = multiply_adds(layers, point.line, point.density, passes, every)
        return cost, device_bytes(layers, point.line, point.density)
    except ValueError:
        return None


def _costs(found: Sequence[Point], sheet_rows: Sequence[TrainingRow], layers: Sequence[LayerShape]) -> str:
    stages = ("init", "training", "final")
    columns = ["method", "density", f"multiply-adds: {stages[0]}", *stages[1:], f"bytes: {stages[0]}", *stages[1:]]
    rows = []
    for point in sorted(found, key=lambda p: -(p.density or 2)):
        amounts = _amounts(point, sheet_rows, layers)
        texts = ["-"] * 6 if amounts is None else [text for one in amounts for text in _stages(one)]
        rows.append([point.line, "" if point.density is None else percent(point.density), *texts])
    return markdown(columns, rows)


def _stages(amounts: Amounts) -> list[str]:
    initial = "not known" if amounts.initial is None else count(amounts.initial)
    training = count(amounts.training)
    if amounts.training_end != amounts.training:
        training += f" → {count(amounts.training_end)}"
    return [initial, training, count(amounts.final)]


def count(number: int) -> str:
    """Return a number with three significant digits and a unit.

    >>> count(1_297_000_000), count(23_467), count(7)
    ('1.3 G', '23.5 k', '7')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{float(f'{number / size:.3g}'):g} {unit}"
    return str(number)


def _row(
    point: Point, dense: float | None, sheet_rows: Sequence[TrainingRow], layers: Sequence[LayerShape] | None
) -> list[Any]:
    """Return the numbers of a point in the order of COLUMNS."""
    drop = None if point.mean is None or dense is None else round(100 * (point.mean - dense), 4)
    std = None if point.std is None else round(100 * point.std, 4)
    start = [point.panel, point.line, point.density, drop, std, point.n, point.asked, point.collapsed]
    amounts = _amounts(point, sheet_rows, layers)
    if amounts is None:
        return [*start, *([None] * 2 * len(STAGES))]
    return [*start, *(getattr(one, stage) for one in amounts for stage in STAGES)]
