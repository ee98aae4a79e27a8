"""Singular values of the Jacobian at initialisation: a figure for each network, a panel for each method.

A spectrum that is zero has no place on a logarithmic axis: its density is named in the panel instead. Where all
densities have the same spectrum (DCTpS: W = alpha D before training, whatever the support) one curve is drawn and the
panel says so; whether they are the same is looked up in the numbers.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import style
from dctps.base.words import percent
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.results import DONE
from dctps.experiments.sheet import SingularValue
from dctps.experiments.tasks import COLLAPSED

SAME = 1e-9  # of the largest singular value: what ways to compute one product in float64 may differ by in all layers
ROUNDING = 1e-14  # of the largest: float64 cannot tell these singular values from zero
Spectrum = list[float]  # means over images, largest first


def spectra_figure(lines: Sequence[SingularValue]) -> dict[str, Any]:
    panels = style.by_panel(lines)
    if len(panels) == 1:
        return {"": _page(lines)}
    return {f"-{style.slug(panel)}": _page(own) for panel, own in panels.items()}


def _page(lines: Sequence[SingularValue]) -> Any:
    from matplotlib.ticker import MaxNLocator

    methods = list(dict.fromkeys(one.line for one in lines))
    colours = style.shades([one.density for one in lines if one.density is not None])
    columns = 3 if len(methods) > 4 else 2
    with style.styled():
        figure, grid = style.page(len(methods), columns, 2.5, sharex=True, sharey=True)
        for axes, method in zip(grid, methods, strict=True):
            _panel(axes, [one for one in lines if one.line == method], colours)
            axes.set_title(method)
        for number, axes in enumerate(grid):
            axes.set(xlabel="index of the singular value", ylabel="singular value" if number % columns == 0 else "")
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
        title = f"{style.title(EXPERIMENTS[lines[0].experiment])}: {style.panel_title(lines)}"
        style.finish(figure, title, _words(lines), style.density_handles(colours))
    return figure


def _panel(axes: Any, lines: Sequence[SingularValue], colours: dict[float, Any]) -> None:
    from matplotlib.ticker import NullLocator

    spectra = spectra_of(lines)
    zero = [density for density, own in spectra.items() if not any(own)]
    shown = {density: own for density, own in spectra.items() if any(own)}
    remarks = [style.listed("collapsed", [one.density for one in lines if one.status == COLLAPSED])]
    remarks.insert(0, style.listed("zero", zero))
    if len(shown) > 1 and not zero and are_same(list(shown.values())):
        _curve(axes, next(iter(shown.values())), style.BLACK, "_all densities", 4.5)
        remarks.insert(0, f"the same at all {len(shown)} densities")
    else:
        for density, own in shown.items():
            _curve(axes, own, colours[density], percent(density), 3.5)
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    style.remark(axes, "\n".join(filter(None, remarks)))


def spectra_of(lines: Sequence[SingularValue]) -> dict[float, Spectrum]:
    """By density, from the highest down; a mean over seeds where there are several."""
    found: dict[float, dict[int, list[float]]] = {}
    for one in lines:
        if one.status == DONE and one.density is not None and one.index is not None and one.mean is not None:
            found.setdefault(one.density, {}).setdefault(one.index, []).append(one.mean)
    return {d: [statistics.fmean(own[i]) for i in sorted(own)] for d, own in sorted(found.items(), reverse=True)}


def are_same(spectra: Sequence[Spectrum]) -> bool:
    """Whether they are one spectrum, up to rounding."""
    first = spectra[0]
    return all(
        len(own) == len(first) and max(abs(a - b) for a, b in zip(own, first, strict=True)) <= SAME * max(first)
        for own in spectra
    )


def _curve(axes: Any, values: Spectrum, colour: Any, label: str, size: float) -> None:
    """As far as there is more than rounding."""
    kept = [value if value > ROUNDING * values[0] else float("nan") for value in values]
    options = {"linewidth": 1.2, "marker": "o", "markersize": size, "markeredgewidth": 0}
    axes.plot(range(1, len(kept) + 1), kept, color=colour, label=label, **options)


def _words(lines: Sequence[SingularValue]) -> str:
    examples = max((one.examples or 0 for one in lines), default=0)
    means = f"means over {examples} test images" if examples else ""
    cut = [
        own
        for method in dict.fromkeys(one.line for one in lines)
        for own in spectra_of([one for one in lines if one.line == method]).values()
        if any(0 < v <= ROUNDING * own[0] for v in own)
    ]
    rounding = f"values below {ROUNDING:g} of the largest, which are rounding, are left out" if cut else ""
    return "; ".join(filter(None, (style.untrained_words(lines), means, rounding, style.missing_words(lines))))
