"""Accuracy against epochs: whether a ranking has settled. A panel for each network and density, a line per method.

Lines are means over the seeds that have reached an epoch; validation accuracy, as it is what a training looks at.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import style
from dctps.base.words import percent
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.sheet import Epoch
from dctps.experiments.summary import chance


def learning_figure(lines: Sequence[Epoch]) -> dict[str, Any]:
    groups = _groups(lines)
    looks = style.looks(list(dict.fromkeys(one.line for one in lines)))
    columns = min(3, max(1, len({density for _, density in groups})))
    with style.styled():
        figure, grid = style.page(len(groups), columns)
        for axes, own in zip(grid, groups.values(), strict=True):
            _panel(axes, own, looks)
        title = f"{style.title(EXPERIMENTS[lines[0].experiment])}: while training"
        style.finish(figure, title, _words(lines), style.handles(grid, looks))
    return {"-epochs": figure}


def _groups(lines: Sequence[Epoch]) -> dict[tuple[str, float], list[Epoch]]:
    """By network, and by density from the highest down; those without any epoch are left to the small print."""
    densities = sorted({one.density for one in lines if one.density is not None}, reverse=True)
    keys = [(panel, density) for panel in style.by_panel(lines) for density in densities]
    found = {key: [one for one in lines if (one.panel, one.density) == key] for key in keys}
    asked = {key: own for key, own in found.items() if own}
    return {key: own for key, own in asked.items() if any(one.epoch for one in own)} or asked


def _panel(axes: Any, lines: Sequence[Epoch], looks: dict[str, style.Look]) -> None:
    from matplotlib.ticker import MaxNLocator

    for name, look in looks.items():
        curve = means([one for one in lines if one.line == name])
        if curve:
            last = [len(curve) - 1]
            axes.plot(list(curve), [100 * y for y in curve.values()], label=name, markevery=last, **look.line())
    style.chance_line(axes, chance(lines[0].data))
    axes.set_title(f"{style.panel_title(lines)}, {percent(lines[0].density or 1)}")
    axes.set(xlabel="epoch", ylabel="validation accuracy, %", ylim=(0, 1.06 * axes.get_ylim()[1]))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def means(lines: Sequence[Epoch]) -> dict[int, float]:
    """Of the seeds' validation accuracies, by epoch."""
    found: dict[int, list[float]] = {}
    for one in lines:
        if one.epoch is not None and one.validation is not None:
            found.setdefault(one.epoch, []).append(one.validation)
    return {epoch: statistics.fmean(found[epoch]) for epoch in sorted(found)}


def _words(lines: Sequence[Epoch]) -> str:
    seeds = len({one.seed for one in lines})
    means = "one seed" if seeds == 1 else f"means of {seeds} seeds"
    return "; ".join(filter(None, (style.trained_words(lines), means, style.missing_words(lines))))
