"""How the page draws a method: a colour, a marker and a dash, the same in all its charts.

Colours are those of Okabe and Ito, which colour-blind people can tell apart; markers and dashes do it in grey. The
paper's methods look as in the figures; broken lines are kept for the dense network and for collapsed methods.
"""

import itertools
from collections.abc import Iterable, Iterator

from dctps.experiments.paper import DENSE, METHODS

BLUE, RED, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
GREY, TEXT = "#808080", "text"  # TEXT: that of the page, dark or light
SOLID, DOTTED, PRUNED, MOVING, LONG = "solid", "2px,3px", "9px,3px,2px,3px", "12px,3px,2px,3px,2px,3px", "14px,3px"
BROKEN = "6px,5px"
Look = tuple[str, str | None, str]  # colour, marker of plotly, dash

LOOKS: dict[str, Look] = {
    DENSE: (TEXT, None, BROKEN),
    "DCTpS": (BLUE, "circle", SOLID),
    "DCTpS + RigL": (SKY, "diamond", SOLID),
    "RigL": (PURPLE, "square", MOVING),
    "FORCE": (GREEN, "triangle-up", PRUNED),
    "SynFlow": (RED, "triangle-down", PRUNED),
    "IMP": (GREY, "hexagon", PRUNED),
    "Hyperplane Projection": (TEXT, "star", SOLID),
    "Hyperplane Projection (sparse)": (TEXT, "star", SOLID),
    "Random (uniform)": (GREY, "x", DOTTED),
    "Random (EPL)": (ORANGE, "cross", DOTTED),
}
_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon")
_DASHES = (SOLID, DOTTED, PRUNED, LONG, MOVING)
SPARE = 60


def order(name: str) -> tuple[int, str]:
    """The paper's methods in its order, then the others by name."""
    known = list(METHODS)
    return known.index(name) if name in known else len(known), name


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Of each line, and of the dense network; what has no look of its own, or one that is taken, gets a free one."""
    ordered = sorted({DENSE, *names}, key=order)
    own: dict[Look, str] = {}
    for name in ordered:
        if name in LOOKS:
            own.setdefault(LOOKS[name], name)
    found = {name: look for look, name in own.items()}
    for name in ordered:
        if name not in found:
            found[name] = _most_different(set(found.values()))
    return {name: found[name] for name in ordered}


def _most_different(taken: set[Look]) -> Look:
    """A free look, and while there are any, one whose colour and dash no other line has together."""
    pairs = {(colour, dash) for colour, _, dash in taken}
    free = [
        look for look in itertools.islice(_free(), len(_COLOURS) * len(_MARKERS) * len(_DASHES)) if look not in taken
    ]
    return next((look for look in free if (look[0], look[2]) not in pairs), (free or list(taken))[0])


def spare() -> list[Look]:
    """For lines that are runs, not methods."""
    return list(itertools.islice(_free(), SPARE))


def _free() -> Iterator[Look]:
    """Looks that no method of the paper has: after 210 they repeat, for nobody can tell more apart."""
    cycles = zip(itertools.cycle(_COLOURS), itertools.cycle(_MARKERS), itertools.cycle(_DASHES), strict=False)
    return (look for look in cycles if look not in LOOKS.values())
