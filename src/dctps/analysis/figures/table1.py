"""The paper's Table 1: what each method loses against the dense network, and what it costs, in numbers."""

import statistics
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import style
from dctps.analysis.figures.network_costs import Amounts, LayerShape, device_bytes, layers_of, multiply_adds
from dctps.analysis.figures.tables import Table, markdown
from dctps.base.words import percent
from dctps.experiments.paper import DENSE, EXPERIMENTS
from dctps.experiments.sheet import Training
from dctps.experiments.summary import Point, points

STAGES = ("initial", "training", "training_end", "final")
COLUMNS = (
    *("panel", "method", "density", "drop_points", "std_points", "n", "asked", "collapsed"),
    *(f"multiply_adds_{stage}" for stage in STAGES),
    *(f"bytes_{stage}" for stage in STAGES),
)
NOTES = """\
Accuracy: percentage points against the mean of the dense network, and the standard deviation (of the sample) of the
method's own accuracies over its seeds. A dagger: the method collapsed at all seeds and is counted as guessing. In
brackets: how many of the seeds have a result, where not all have.

Cost: multiply-adds of the matrix products of one image, by the formulas of the paper's Table 1 (k: forward passes of
the pruning, of one batch each; RigL: the whole gradient once in so many steps). Size: the weights on the device, 4
bytes for a value and 4 for its position, 4 for each alpha. FORCE, SynFlow and IMP: as if all layers had the same
density.
"""


def table1(lines: Sequence[Training]) -> dict[str, Table]:
    """For each panel the drops in accuracy, methods x densities, then costs and sizes."""
    parts, rows = [f"# {style.title(EXPERIMENTS[lines[0].experiment])}\n\n{_words(lines)}\n"], []
    for own in style.by_panel(lines).values():
        made, layers = points(own), layers_of(own[0].model, own[0].data, own[0].width)
        heading = style.panel_title(own).replace("\n", " ")
        parts += [f"## {heading}\n", "Change of the accuracy, in percentage points\n", _drops(made)]
        if layers is not None:
            parts += ["Cost and size, at initialisation, in training and in the end\n", _costs(made, own, layers)]
        rows += [_row(point, _baseline(made), own, layers) for point in made]
    return {"-table": Table("\n".join([*parts, NOTES]), COLUMNS, rows)}


def _words(lines: Sequence[Training]) -> str:
    return "; ".join(filter(None, (style.trained_words(lines), style.missing_words(lines)))) + "."


# --- accuracy -------------------------------------------------------------------------------------------------------


def _baseline(made: Sequence[Point]) -> float | None:
    return next((point.mean for point in made if point.line == DENSE), None)


def _drops(made: Sequence[Point]) -> str:
    dense = _baseline(made)
    densities = sorted({point.density for point in made if point.density is not None}, reverse=True)
    found = {(point.line, point.density): point for point in made}
    methods = [name for name in dict.fromkeys(point.line for point in made) if name != DENSE]
    rows = [[name, *(_drop(found.get((name, density)), dense) for density in densities)] for name in methods]
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
    point: Point, own: Sequence[Training], layers: Sequence[LayerShape] | None
) -> tuple[Amounts, Amounts] | None:
    """Multiply-adds and bytes; None where the images' shape is not known, or the rule has no weights to give."""
    if layers is None:
        return None
    same = [one for one in own if (one.line, one.density) == (point.line, point.density)]
    passes = [one.pruning_passes for one in same if one.pruning_passes is not None]
    every = next((one.rewire_every for one in same if one.rewire_every is not None), None)
    mean = round(statistics.fmean(passes)) if passes else None
    try:
        cost = multiply_adds(layers, point.line, point.density, mean, every)
        return cost, device_bytes(layers, point.line, point.density)
    except ValueError:
        return None


def _costs(made: Sequence[Point], own: Sequence[Training], layers: Sequence[LayerShape]) -> str:
    columns = [
        "method",
        "density",
        *("multiply-adds: init", "training", "final"),
        *("bytes: init", "training", "final"),
    ]
    rows = []
    for point in sorted(made, key=lambda p: -(p.density or 2)):
        amounts = _amounts(point, own, layers)
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
    """Three significant digits and a unit.

    >>> count(1_297_000_000), count(23_467), count(7)
    ('1.3 G', '23.5 k', '7')
    """
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{float(f'{number / size:.3g}'):g} {unit}"
    return str(number)


def _row(point: Point, dense: float | None, own: Sequence[Training], layers: Sequence[LayerShape] | None) -> list[Any]:
    drop = None if point.mean is None or dense is None else round(100 * (point.mean - dense), 4)
    std = None if point.std is None else round(100 * point.std, 4)
    start = [point.panel, point.line, point.density, drop, std, point.n, point.asked, point.collapsed]
    amounts = _amounts(point, own, layers)
    if amounts is None:
        return [*start, *([None] * 2 * len(STAGES))]
    return [*start, *(getattr(one, stage) for one in amounts for stage in STAGES)]
