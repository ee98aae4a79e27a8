"""How figures look: a colour, marker and dash for each method, the same in all of them; pages of panels, their words.

Colours are those of Okabe and Ito, which colour-blind people can tell apart; markers and dashes do it in grey. Solid
lines have an offset, dash-dotted ones are pruned, dotted ones random. Plain dashes are kept for the dense network and
for densities at which a method collapsed.
"""

import contextlib
import dataclasses
import importlib.util
import itertools
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dctps.base.files import write_atomically
from dctps.base.words import percent
from dctps.experiments.paper import DENSE, OFFSETS, TITLES, Experiment
from dctps.experiments.results import DONE
from dctps.experiments.scales import Scale
from dctps.experiments.sheet import Entry
from dctps.experiments.tasks import COLLAPSED, FAILED
from dctps.train.settings import Settings

WHY_NOT = "no figure: it needs matplotlib, pip install 'dctps[figures]'"


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


# --- lines ----------------------------------------------------------------------------------------------------------

BLACK, ORANGE, SKY, GREEN, YELLOW = "black", "#e69f00", "#56b4e9", "#009e73", "#f0e442"
BLUE, RED, PURPLE, GREY = "#0072b2", "#d55e00", "#cc79a7", "#767676"
Dash = Any  # of matplotlib: "-", or an offset and the lengths of strokes and gaps
SOLID: Dash = "-"
DASHED: Dash = (0, (4, 2))
DOTTED: Dash = (0, (1.2, 1.4))
PRUNED: Dash = (0, (6, 1.5, 1.2, 1.5))
MOVING: Dash = (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2))


_SIZES = {"*": 10, "P": 7.5, "X": 7.5, "D": 5.5, "d": 7, "p": 7.5, "h": 7}  # points: so that all look as large


@dataclasses.dataclass(frozen=True)
class Look:
    """Of a line."""

    colour: str
    marker: str
    dash: Dash = SOLID
    filled: bool = True

    def line(self) -> dict[str, Any]:
        """Options of matplotlib's `plot`."""
        face, edge = (self.colour, "white") if self.filled else ("white", self.colour)
        marker: dict[str, Any] = {"marker": self.marker, "markerfacecolor": face, "markeredgecolor": edge}
        marker |= {"markersize": _SIZES[self.marker]} if self.marker in _SIZES else {}
        return {"color": self.colour, "linestyle": self.dash, **marker}

    def collapsed(self) -> dict[str, Any]:
        """The same where there is no network to show: dashed, with hollow markers."""
        return {**dataclasses.replace(self, dash=DASHED, filled=False).line(), "linewidth": 1.2}


_DCTPS, _HYPERPLANE = Look(BLUE, "o"), Look(BLACK, "*")
LOOKS: dict[str, Look] = {
    DENSE: Look(BLACK, "", DASHED),
    "DCTpS": _DCTPS,
    "DCTpS + RigL": Look(SKY, "D"),
    "RigL": Look(PURPLE, "s", MOVING),
    "FORCE": Look(GREEN, "^", PRUNED),
    "SynFlow": Look(RED, "v", PRUNED),
    "IMP": Look(YELLOW, "h", PRUNED),
    "Hyperplane Projection": _HYPERPLANE,
    "Hyperplane Projection (sparse)": _HYPERPLANE,
    "Hyperplane Projection (fastfood)": _HYPERPLANE,
    "Random (uniform)": Look(GREY, "X", DOTTED),
    "Random (EPL)": Look(ORANGE, "P", DOTTED),
    "Random (EPF)": Look(RED, ">", DOTTED),
    "Random (ERK)": Look(BLACK, "d", DOTTED),
    "DCTpS (uniform)": Look(SKY, "<"),
    "DCTpS (EPL)": _DCTPS,
    "DCTpS (EPF)": Look(GREEN, "p"),
    "DCTpS (ERK)": Look(PURPLE, "s"),
    "EPL": _DCTPS,
    "EPF": Look(GREEN, "p"),
    "alpha trains": _DCTPS,
    "alpha = 1": Look(RED, "s"),
}
_COLOURS, _MARKERS = (BLUE, RED, GREEN, PURPLE, SKY, ORANGE, BLACK, GREY), "osD^vPX*"
_OTHERS = [Look(colour, marker) for colour, marker in zip(_COLOURS, _MARKERS, strict=True)]
_OFFSETS = dict(zip(OFFSETS, (*_OTHERS, Look(GREY, "h", DOTTED)), strict=True))


def looks(names: Sequence[str]) -> dict[str, Look]:
    """For each line of a figure; names without a look of their own take those that the others leave, in order."""
    own = {name: _look(name) for name in names}
    taken = {look.marker for look in own.values() if look is not None}
    free = itertools.cycle([look for look in _OTHERS if look.marker not in taken] or _OTHERS)
    return {name: look or next(free) for name, look in own.items()}


def _look(name: str) -> Look | None:
    if name.endswith(", preserve") and name.removesuffix(", preserve") in _OFFSETS:
        return dataclasses.replace(_OFFSETS[name.removesuffix(", preserve")], dash=PRUNED, filled=False)
    return LOOKS.get(name) or _OFFSETS.get(name)


def shades(densities: Sequence[float]) -> dict[float, Any]:
    """A colour for each density, the darker the lower: an order that is seen in grey too."""
    from matplotlib import colormaps

    colours = colormaps["viridis"]
    ordered = sorted(set(densities))
    return {density: colours(0.88 * i / max(1, len(ordered) - 1)) for i, density in enumerate(ordered)}


def density_handles(colours: dict[float, Any]) -> list[Any]:
    """For a legend, from the highest density down."""
    from matplotlib.lines import Line2D

    options: dict[str, Any] = {"marker": "o", "markersize": 4, "markeredgewidth": 0}
    ordered = sorted(colours.items(), reverse=True)
    return [Line2D([], [], color=colour, label=percent(density), **options) for density, colour in ordered]


# --- pages ----------------------------------------------------------------------------------------------------------

SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same on every machine
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "lines.markeredgewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # letters stay letters
}
WIDTHS = {1: 5.6, 2: 8.0, 3: 10.0}  # inches, by columns
DPI = 160


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Everything drawn meanwhile has our fonts and lines."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        yield


def page(count: int, columns: int, height: float = 2.8, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with so many panels of a height in inches, and its axes; places that are left over stay empty."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure: Any = Figure(figsize=(WIDTHS[columns], height * rows), layout="constrained", dpi=DPI)
    figure.get_layout_engine().set(h_pad=0.06, w_pad=0.06)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for empty in axes[count:]:
        empty.set_visible(False)
    return figure, axes[:count]


def finish(figure: Any, title: str, words: str, handles: Sequence[Any]) -> None:
    """The title, one legend for all panels below them, and under it the small print; the page grows by their height."""
    width, panels = figure.get_size_inches()
    small = textwrap.fill(words, int(width * 18))
    columns = _columns([len(handle.get_label()) for handle in handles], width)
    print_height, legend_height = 0.06 + 0.13 * (small.count("\n") + 1), 0.175 * -(-len(handles) // columns)
    below = print_height + legend_height + 0.2
    height = panels + below + 0.3
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))
    figure.suptitle(title, fontsize=12)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, (print_height + 0.09) / height)}
    figure.legend(handles=_by_rows(handles, columns), ncols=columns, **place)
    figure.text(0.5, 0.06 / height, small, fontsize=7.5, color="#444444", ha="center", va="bottom", label="small print")


def _columns(lengths: Sequence[int], width: float) -> int:
    """As many as labels of so many letters have room for, in inches."""
    for columns in range(len(lengths), 1, -1):
        if sum(0.075 * max(lengths[c::columns]) + 0.6 for c in range(columns)) <= width:
            rows = -(-len(lengths) // columns)
            return -(-len(lengths) // rows)  # no more than so many rows need, so that the last is not nearly empty
    return 1


def _by_rows(handles: Sequence[Any], columns: int) -> list[Any]:
    """A legend is filled column by column; this order makes it read row by row."""
    rows = -(-len(handles) // columns)
    full = len(handles) - columns * (rows - 1)  # columns with an entry in the last row
    order = [row * columns + c for c in range(columns) for row in range(rows if c < full else rows - 1)]
    return [handles[i] for i in order]


def chance_line(axes: Any, guessing: float | None) -> None:
    """Where guessing would be, in percent, if that is known."""
    if guessing is not None:
        axes.axhline(100 * guessing, color=GREY, linewidth=0.8, linestyle=DOTTED, label="_chance", zorder=1)


def handles(grid: Sequence[Any], own: dict[str, Look]) -> list[Any]:
    """For a legend: the lines that are in some panel."""
    from matplotlib.lines import Line2D

    drawn = {line.get_label() for axes in grid for line in axes.get_lines()}
    found = [Line2D([], [], label=name, **look.line()) for name, look in own.items() if name in drawn]
    if "_chance" in drawn:
        found.append(Line2D([], [], color=GREY, linewidth=0.8, linestyle=DOTTED, label="chance"))
    return found


def remark(axes: Any, text: str) -> None:
    """In the lower left corner of a panel."""
    if text:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
        place = {"transform": axes.transAxes, "ha": "left", "va": "bottom", "zorder": 5}
        axes.text(0.03, 0.04, text, fontsize=8, bbox=box, **place)


def save(figure: Any, stem: Path) -> list[Path]:
    """As PNG and PDF; without dates, so that the same figure is the same file."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what is laid out stays as it is, for both files
    paths = []
    for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        path = stem.with_name(f"{stem.name}.{ending}")  # the stem may have points in it
        write_atomically(path, lambda file, e=ending, m=metadata: figure.savefig(file, format=e, metadata=m))  # type: ignore[misc]
        paths.append(path)
    return paths


NO_BREAK = "\u00a0"  # a space at which no line ends

# --- words ----------------------------------------------------------------------------------------------------------


def listed(word: str, densities: Iterable[float | None]) -> str:
    """ "zero: 0.1 %, 0.01 %", from the highest down; empty if there are none."""
    ordered = sorted({density for density in densities if density is not None}, reverse=True)
    names = ", ".join(percent(density).replace(" ", NO_BREAK) for density in ordered)
    return textwrap.fill(f"{word}: {names}", 38) if ordered else ""


def slug(text: str) -> str:
    """As a part of a file name."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def by_panel(lines: Sequence[Entry]) -> dict[str, list[Any]]:
    groups: dict[str, list[Entry]] = {}
    for one in lines:
        groups.setdefault(one.panel, []).append(one)
    return groups


def panel_title(lines: Sequence[Entry]) -> str:
    """The panel's name, and what was run in its place where the scale has changed that."""
    first = lines[0]
    network, data = (TITLES.get(name, name) for name in (first.model, first.data))
    if {network, data} <= set(first.panel.split(", ")):  # whole names: CIFAR-10 is a part of CIFAR-100
        return first.panel
    return f"{first.panel}\n(run as {network}, {data})"


def title(experiment: Experiment) -> str:
    """With its place in the paper, if it has one."""
    where = experiment.where if experiment.where.startswith("not") else f"paper: {experiment.where}"
    return f"{experiment.title} ({where})"


def trained_words(lines: Sequence[Entry]) -> str:
    """The scale in words."""
    scale = Scale(lines[0].scale)
    prefix = f"{scale.name} scale: "

    def words(own: Entry) -> str:
        settings = Settings(epochs=own.epochs, images=own.images, width=own.width)
        return scale.words(settings).removeprefix(prefix)

    return prefix + _for_panels({panel: words(own[0]) for panel, own in by_panel(lines).items()})


def untrained_words(lines: Sequence[Entry]) -> str:
    """The same of what is looked at before any training."""
    widths = {panel: own[0].width for panel, own in by_panel(lines).items()}
    said = {panel: "networks in full" if width is None else f"width {width}" for panel, width in widths.items()}
    return f"{lines[0].scale} scale: at initialisation, before any training; {_for_panels(said)}"


def _for_panels(said: dict[str, str]) -> str:
    """What is said of each panel; once, if it is the same of all."""
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    panels = {words: [panel for panel, own in said.items() if own == words] for words in said.values()}
    return "; ".join(f"{words} ({' and '.join(own)})" for words, own in panels.items())


def missing_words(lines: Sequence[Entry]) -> str:
    """What is not in the figure; empty if nothing is missing."""
    runs = Counter({one.id: one.status for one in lines}.values())
    total, collapsed, failed = sum(runs.values()), runs.pop(COLLAPSED, 0), runs.pop(FAILED, 0)
    gone = total - runs.pop(DONE, 0) - collapsed - failed
    parts = [f"{n} of {total} runs {what}" for n, what in ((collapsed, "collapsed"), (failed, "failed")) if n]
    return "; ".join(parts + ([f"{gone} of {total} runs missing"] if gone else []))
