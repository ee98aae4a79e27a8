"""The look of each method: its colour, marker and dash, which are the same in every figure and on every page.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart; markers and dashes tell lines apart
in grey. Solid lines have an offset, dash-dotted lines are pruned, dotted lines have a random support. Plain dashes are
kept for the dense network and for densities at which a method collapsed.

Looks are written in neutral words. `dctps.analysis.figures.looks` translates them for matplotlib and
`dctps.analysis.page.looks` for plotly. A new method needs one entry in LOOKS.
"""

import dataclasses

from dctps.experiments.paper import DENSE

TEXT = "text"  # the colour of the text: black in a figure, dark or light on a page
BLUE, RED, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, ORANGE, GREY = "#56b4e9", "#e69f00", "#767676"
SOLID, DASHED, DOTTED, LONG_DASHED = "solid", "dashed", "dotted", "long dashed"
DASH_DOT, DASH_DOT_DOT = "dash dot", "dash dot dot"


@dataclasses.dataclass(frozen=True)
class Look:
    """The look of a line. Markers have the names of plotly's symbols; None means no marker."""

    colour: str
    marker: str | None
    dash: str = SOLID
    filled: bool = True


_DCTPS, _HYPERPLANE = Look(BLUE, "circle"), Look(TEXT, "star")
LOOKS: dict[str, Look] = {
    DENSE: Look(TEXT, None, DASHED),
    "DCTpS": _DCTPS,
    "DCTpS + RigL": Look(SKY, "diamond"),
    "RigL": Look(PURPLE, "square", DASH_DOT_DOT),
    "FORCE": Look(GREEN, "triangle-up", DASH_DOT),
    "SynFlow": Look(RED, "triangle-down", DASH_DOT),
    "IMP": Look(GREY, "hexagon", DASH_DOT),
    "Hyperplane Projection": _HYPERPLANE,
    "Hyperplane Projection (sparse)": _HYPERPLANE,
    "Hyperplane Projection (fastfood)": _HYPERPLANE,
    "Random (uniform)": Look(GREY, "x", DOTTED),
    "Random (EPL)": Look(ORANGE, "cross", DOTTED),
    "Random (EPF)": Look(RED, "triangle-right", DOTTED),
    "Random (ERK)": Look(TEXT, "diamond-tall", DOTTED),
    "DCTpS (uniform)": Look(SKY, "triangle-left"),
    "DCTpS (EPL)": _DCTPS,
    "DCTpS (EPF)": Look(GREEN, "pentagon"),
    "DCTpS (ERK)": Look(PURPLE, "square"),
    # the variants of DCTpS in the appendix
    "EPL": _DCTPS,
    "EPF": Look(GREEN, "pentagon"),
    "alpha trains": _DCTPS,
    "alpha = 1": Look(RED, "square"),
    # the experiments on offsets
    "DCT as published": _DCTPS,
    "DCT, channel order": Look(RED, "square"),
    "DCT, signs": Look(GREEN, "diamond"),
    "DCT, channel order, signs": Look(PURPLE, "triangle-up"),
    "DCT, signs, random rows": Look(SKY, "triangle-down"),
    "DCT, channel order, signs, random rows": Look(ORANGE, "cross"),
    "Hadamard, signs, random rows": Look(TEXT, "x"),
    "Hadamard, position signs, random rows": Look(GREY, "star"),
    "no offset": Look(GREY, "hexagon", DOTTED),
    # the experiment on the scale of D: dotted and long dashed lines are controls and single alphas
    "DCT as published, leverage": Look(SKY, "diamond"),
    "DCT, channel order, signs, leverage": Look(RED, "square"),
    "DCT, channel order, signs, leverage, alpha fixed": Look(RED, "square", DASH_DOT, filled=False),
    "DCT, channel order, signs, leverage of 7,100 steps": Look(ORANGE, "diamond", DASH_DOT),
    "DCT, channel order, signs, alpha 0.3": Look(GREEN, "triangle-left", LONG_DASHED),
    "DCT, channel order, signs, alpha 0.1": Look(ORANGE, "triangle-right", LONG_DASHED),
    "DCT, channel order, signs, alpha 0.03": Look(GREY, "pentagon", LONG_DASHED),
    "DCT as published, S frozen": Look(BLUE, "circle", DOTTED, filled=False),
    "DCT, channel order, signs, leverage, S frozen": Look(RED, "x", DOTTED),
    "DCT, channel order, signs, leverage, BatchNorm frozen": Look(RED, "star", LONG_DASHED),
    "random rotation, leverage": Look(GREEN, "diamond-tall", DASH_DOT),
    "random rotation": Look(ORANGE, "diamond", DASH_DOT, filled=False),
    "Hadamard, channel order, signs, leverage": Look(TEXT, "cross"),
    "DCT, channel order, signs, values 3 times as fast": Look(PURPLE, "triangle-up", DASH_DOT, filled=False),
    "DCT, channel order, signs, values 10 times as fast": Look(PURPLE, "triangle-down", LONG_DASHED),
    # the experiment on places: a colour for each choice; rewired lines are broken and have other markers
    "random": Look(RED, "square"),
    "gradient": Look(BLUE, "triangle-up"),
    "SNIP": Look(GREEN, "diamond"),
    "whole kernels": Look(ORANGE, "pentagon"),
    "random + RigL": Look(RED, "square", DASH_DOT, filled=False),
    "gradient + RigL": Look(BLUE, "triangle-up", DASH_DOT, filled=False),
    "SNIP + RigL": Look(GREEN, "diamond", DASH_DOT, filled=False),
    "whole kernels + RigL": Look(ORANGE, "pentagon", DASH_DOT, filled=False),
    "random + SET": Look(RED, "x", DOTTED),
    "gradient + SET": Look(BLUE, "cross", DOTTED),
    "SNIP + SET": Look(GREEN, "star", DOTTED),
    "whole kernels + SET": Look(ORANGE, "hexagon", DOTTED),
    # the experiment on the bytes of files
    "DCT, channel order, signs, leverage, BatchNorm 10 %": Look(PURPLE, "triangle-up", LONG_DASHED),
    "DCT, channel order, signs, leverage, BatchNorm 1 %": Look(ORANGE, "diamond", DASH_DOT),
    "no offset, BatchNorm 1 %": Look(TEXT, "x", DOTTED),
    # whole trainings
    "DCTpS, signs and leverage": Look(RED, "pentagon"),
    "DCTpS, signs and leverage + RigL": Look(ORANGE, "diamond-tall"),
    "DCTpS, signs and leverage, S frozen": Look(GREY, "x", DOTTED),
}
PRESERVE = ", preserve"  # ends the names of lines whose alphas preserve the variance


def look_of(name: str) -> Look | None:
    """Return the look of a line, or None if it has none in LOOKS.

    A line that preserves the variance looks like the line without that, dash-dotted and with hollow markers.
    """
    plain = LOOKS.get(name.removesuffix(PRESERVE))
    if plain is None or not name.endswith(PRESERVE):
        return plain
    return dataclasses.replace(plain, dash=DASH_DOT, filled=False)
