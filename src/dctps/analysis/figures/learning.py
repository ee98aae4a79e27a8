"""Accuracy against epochs, which shows whether a ranking has settled: a panel for each network and density.

A line shows a method: the mean of the validation accuracy over the seeds that have reached an epoch.
"""

from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import captions, layout, style
from dctps.analysis.figures.groups import Part, parts
from dctps.analysis.figures.looks import assign_looks, chance_line, legend_handles, line_options
from dctps.analysis.looks import Look
from dctps.base.words import percent
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.summary import chance, means_by_key
from dctps.experiments.tasks.training import EpochRow


def learning_figure(rows: Sequence[EpochRow]) -> dict[str, Any]:
    """Draw all panels on one page; one with many lines is split into parts."""
    groups = _groups(rows)
    panels = [_parts(group) for group in groups.values()]
    looks = assign_looks(list(dict.fromkeys(row.line for row in rows)))
    columns = min(3, max(1, len({density for _, density in groups})))
    with style.styled():
        figure, grid, shown = layout.split_grid(panels, columns)
        for axes, part in zip(grid, shown, strict=True):
            _draw_panel(axes, part, looks)
        for panel in panels:
            layout.share_y([axes for axes, part in zip(grid, shown, strict=True) if part in panel])
        title = f"{captions.page_title(EXPERIMENTS[rows[0].experiment])}: while training"
        layout.finish(figure, title, _words(rows), legend_handles(grid, looks))
    return {"-epochs": figure}


def _groups(rows: Sequence[EpochRow]) -> dict[tuple[str, float], list[EpochRow]]:
    """Group the rows by network, and by density from the highest down.

    Groups without any epoch are left to the small print, unless all are.
    """
    densities = sorted({row.density for row in rows if row.density is not None}, reverse=True)
    keys = [(panel, density) for panel in captions.by_panel(rows) for density in densities]
    groups = {key: [row for row in rows if (row.panel, row.density) == key] for key in keys}
    asked = {key: group for key, group in groups.items() if group}
    return {key: group for key, group in asked.items() if any(row.epoch for row in group)} or asked


def _parts(rows: Sequence[EpochRow]) -> list[Part]:
    """Return the parts of the panel with these rows; lines without any epoch need no room."""
    return parts(rows[0].experiment, rows, list(dict.fromkeys(row.line for row in rows if row.validation is not None)))


def _draw_panel(axes: Any, part: Part, looks: dict[str, Look]) -> None:
    from matplotlib.ticker import MaxNLocator

    rows = part.rows
    for name in part.lines:
        curve = means([row for row in rows if row.line == name])
        accuracies, last = [100 * y for y in curve.values()], [len(curve) - 1]
        axes.plot(list(curve), accuracies, label=name, markevery=last, **line_options(looks[name]))
    chance_line(axes, chance(rows[0].data))
    axes.set_title(part.titled(f"{captions.panel_title(rows)}, density {percent(rows[0].density or 1)}"))
    axes.set(xlabel="epoch", ylabel="validation accuracy, %", ylim=(0, 1.06 * axes.get_ylim()[1]))
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=(1, 2, 5, 10)))


def means(rows: Sequence[EpochRow]) -> dict[int, float]:
    """Return the mean of the validation accuracy over seeds for each epoch."""
    known = [(row.epoch, row.validation) for row in rows if row.epoch is not None and row.validation is not None]
    return means_by_key(known)


def _words(rows: Sequence[EpochRow]) -> str:
    seeds = len({row.seed for row in rows if row.epoch is not None})
    means = "one seed" if seeds <= 1 else f"means of {seeds} seeds"
    return captions.joined(captions.training_words(rows), means, captions.missing_words(rows))
