"""Singular values of the Jacobian at initialisation: a figure for each network, a panel for each method.

A spectrum that is zero has no place on a logarithmic axis: its density is named over the panel instead. Where all
densities have the same spectrum, one curve is drawn and the words over the panel say so. This happens with DCTpS, for
which W = alpha D before training, whatever the support; the numbers decide, not the name of the method.
"""

from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import captions, layout, style
from dctps.analysis.figures.looks import density_colours, density_handles
from dctps.base.words import percent
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.status import COLLAPSED, DONE
from dctps.experiments.summary import mean_curves
from dctps.experiments.tasks.jacobian import SingularValueRow

# Equal spectra may differ by this share of the largest singular value: layers can be multiplied in several ways, whose
# results in float64 differ by rounding.
SAME = 1e-9
ROUNDING = 1e-14  # float64 cannot tell singular values below this share of the largest from zero
Spectrum = list[float]  # means over images, largest first


def spectra_figure(rows: Sequence[SingularValueRow]) -> dict[str, Any]:
    """Draw a page for each network."""
    panels = captions.by_panel(rows)
    if len(panels) == 1:
        return {"": _draw_page(rows)}
    return {f"-{captions.slug(panel)}": _draw_page(group) for panel, group in panels.items()}


def _draw_page(rows: Sequence[SingularValueRow]) -> Any:
    from matplotlib.ticker import MaxNLocator

    methods = list(dict.fromkeys(row.line for row in rows))
    colours = density_colours([row.density for row in rows if row.density is not None])
    columns = 3 if len(methods) > 4 else 2
    with style.styled():
        figure, grid = layout.panel_grid(len(methods), columns, 2.5, sharex=True, sharey=True)
        for axes, method in zip(grid, methods, strict=True):
            remarks = _draw_panel(axes, [row for row in rows if row.line == method], colours)
            axes.set_title("\n".join([method, *remarks]))
        for number, axes in enumerate(grid):
            axes.set(xlabel="index of the singular value", ylabel="singular value" if number % columns == 0 else "")
            axes.xaxis.set_tick_params(labelbottom=True)
            axes.xaxis.set_major_locator(MaxNLocator(10, integer=True, min_n_ticks=1))
            layout.set_decades(axes.yaxis)
        title = f"{captions.page_title(EXPERIMENTS[rows[0].experiment])}: {captions.panel_title(rows)}"
        layout.finish(figure, title, _words(rows), density_handles(colours))
    return figure


def _draw_panel(axes: Any, rows: Sequence[SingularValueRow], colours: dict[float, Any]) -> list[str]:
    """Draw the spectra of a method; return what the curves do not show."""
    spectra = spectra_of(rows)
    zero = [density for density, spectrum in spectra.items() if not any(spectrum)]
    shown = {density: spectrum for density, spectrum in spectra.items() if any(spectrum)}
    collapsed = [row.density for row in rows if row.status == COLLAPSED]
    remarks = [captions.density_list("zero", zero), captions.density_list(COLLAPSED, collapsed)]
    if len(shown) > 1 and not zero and are_same(list(shown.values())):
        _draw_curve(axes, next(iter(shown.values())), style.INK, "_all densities")
        remarks.insert(0, f"the same at all {len(shown)} densities")
    else:
        for density, spectrum in shown.items():
            _draw_curve(axes, spectrum, colours[density], percent(density))
    axes.set_yscale("log")
    return [text for text in remarks if text]


def _draw_curve(axes: Any, spectrum: Spectrum, colour: Any, label: str) -> None:
    """Draw the singular values that are more than rounding."""
    kept = [value if value > ROUNDING * spectrum[0] else float("nan") for value in spectrum]
    options = {"linewidth": style.THIN, "marker": "o", "markersize": style.DOT, "markeredgewidth": 0}
    axes.plot(range(1, len(kept) + 1), kept, color=colour, label=label, **options)


def spectra_of(rows: Sequence[SingularValueRow]) -> dict[float, Spectrum]:
    """Return the mean spectrum over seeds for each density, from the highest down."""
    return mean_curves(
        (row.density, row.index, row.mean)
        for row in rows
        if row.status == DONE and row.density is not None and row.index is not None and row.mean is not None
    )


def are_same(spectra: Sequence[Spectrum]) -> bool:
    """Return whether the spectra are equal up to rounding."""
    first = spectra[0]
    return all(
        len(other) == len(first) and max(abs(a - b) for a, b in zip(other, first, strict=True)) <= SAME * max(first)
        for other in spectra
    )


def _words(rows: Sequence[SingularValueRow]) -> str:
    examples = max((row.examples or 0 for row in rows), default=0)
    means = f"means over {examples} test images" if examples else ""
    rounding = ""
    if _has_rounding(rows):
        rounding = f"values below {ROUNDING:g} of the largest, which are rounding, are left out"
    return captions.joined(captions.initial_words(rows), means, rounding, captions.missing_words(rows))


def _has_rounding(rows: Sequence[SingularValueRow]) -> bool:
    """Return whether some spectrum has singular values that are rounding."""
    methods = dict.fromkeys(row.line for row in rows)
    spectra = [s for m in methods for s in spectra_of([row for row in rows if row.line == m]).values()]
    return any(0 < value <= ROUNDING * spectrum[0] for spectrum in spectra for value in spectrum)
