"""The looks of lines in plotly's words, and looks for lines that have none of their own."""

import itertools
from collections.abc import Iterable, Iterator

from dctps.analysis.looks import (
    BLUE,
    DASH_DOT,
    DASH_DOT_DOT,
    DASHED,
    DOTTED,
    GREEN,
    LONG_DASHED,
    LOOKS,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    SOLID,
    Look,
)
from dctps.experiments.paper import DENSE, PAPER_METHODS

PlotlyLook = tuple[str, str | None, str]  # the colour, the symbol of the marker, and the lengths of strokes and gaps
DASHES = {
    SOLID: "solid",
    DASHED: "6px,5px",
    DOTTED: "2px,3px",
    LONG_DASHED: "14px,3px",
    DASH_DOT: "9px,3px,2px,3px",
    DASH_DOT_DOT: "12px,3px,2px,3px,2px,3px",
}
FREE_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
FREE_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon")
FREE_DASHES = (SOLID, DOTTED, DASH_DOT, LONG_DASHED, DASH_DOT_DOT)
SPARE = 60


def plotly_look(look: Look) -> PlotlyLook:
    """Translate a look; its marker is a symbol of plotly already."""
    return look.colour, look.marker, DASHES[look.dash]


def order(name: str) -> tuple[int, str]:
    """Return a key that sorts the paper's methods in its order, then the others by name."""
    known = list(PAPER_METHODS)
    return known.index(name) if name in known else len(known), name


def assign_looks(names: Iterable[str]) -> dict[str, PlotlyLook]:
    """Return a look for each line and for the dense network.

    A line without an entry in LOOKS, or whose look another line has already, gets a free look.
    """
    ordered = sorted({DENSE, *names}, key=order)
    first: dict[Look, str] = {}
    for name in ordered:
        if name in LOOKS:
            first.setdefault(LOOKS[name], name)
    looks = {name: look for look, name in first.items()}
    for name in ordered:
        if name not in looks:
            looks[name] = _most_different(set(looks.values()))
    return {name: plotly_look(looks[name]) for name in ordered}


def spare_looks() -> list[PlotlyLook]:
    """Return looks that no method has, for lines that show runs."""
    return [plotly_look(look) for look in itertools.islice(_free_looks(), SPARE)]


def _most_different(taken: set[Look]) -> Look:
    """Return a free look and, while there is one, a free look whose colour and dash no other line has together."""
    pairs = {(look.colour, look.dash) for look in taken}
    count = len(FREE_COLOURS) * len(FREE_MARKERS) * len(FREE_DASHES)
    free = [look for look in itertools.islice(_free_looks(), count) if look not in taken]
    return next((look for look in free if (look.colour, look.dash) not in pairs), (free or list(taken))[0])


def _free_looks() -> Iterator[Look]:
    """Yield looks that are not in LOOKS, filled or not. They repeat after 210; nobody can tell more of them apart."""
    taken = set(map(plotly_look, LOOKS.values()))
    cycles = (itertools.cycle(choices) for choices in (FREE_COLOURS, FREE_MARKERS, FREE_DASHES))
    looks = (Look(colour, marker, dash) for colour, marker, dash in zip(*cycles, strict=False))
    return (look for look in looks if plotly_look(look) not in taken)
