"""Which lines share a panel: at most `style.MOST_LINES`, so that each can be followed.

A panel with more lines is split into parts that stand side by side with the same axes. GROUPS says which lines belong
together; a line may be in several parts, where it is what the others are compared with. Lines that no group names are
put into further parts, so that none is left out.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures.style import MOST_LINES
from dctps.analysis.looks import PRESERVE
from dctps.experiments.beyond import (
    CONTROLS,
    DEFAULT,
    FROZEN,
    HADAMARD_LEVERAGE,
    OFFSET_LINES,
    PLACES,
    PRESERVED,
    PUBLISHED,
    REWIRED,
    SCALES,
    SIGNED,
    SIGNED_LEVERAGE,
    UNNORMALISED_LINES,
)
from dctps.experiments.paper import DENSE, OURS, PRUNING, RANDOM, RULES

WHOLE_GROUPS: dict[str, Sequence[str]] = {
    "fixed supports": ("Random (EPL)", *PRUNING, "DCTpS", DEFAULT, FROZEN),
    "rewired supports": (*OURS, DEFAULT, f"{DEFAULT} + RigL"),
}
GROUPS: dict[str, dict[str, Sequence[str]]] = {  # experiment -> title of the part -> its lines
    "resnet50-vgg19": {"fixed supports": (*RANDOM, *PRUNING, "DCTpS"), "rewired supports": OURS},
    "allocations": {
        "with the DCT as offset": [f"DCTpS ({rule})" for rule in RULES],
        "without an offset": [f"Random ({rule})" for rule in RULES],
    },
    "offsets": {
        "the DCT": [name for name in OFFSET_LINES if name.startswith("DCT")],
        "Hadamard, and no offset": [PUBLISHED, *(name for name in OFFSET_LINES if not name.startswith("DCT"))],
        "alphas that preserve the variance": [name + end for name in PRESERVED for end in ("", PRESERVE)],
    },
    "scale": {
        "offsets and rules": [*(n for n in SCALES if "alpha 0" not in n), HADAMARD_LEVERAGE],
        "numbers for alpha": [n for n in SCALES if n.startswith(SIGNED) and not n.endswith("fixed")],
        "controls": [SIGNED_LEVERAGE, *(n for n in CONTROLS if n != HADAMARD_LEVERAGE)],
        "without BatchNorm": list(UNNORMALISED_LINES),
    },
    "places": {
        "fixed places": list(PLACES),
        **{f"moved by {end[3:]}": ["random", *(f"{name}{end}" for name in PLACES)] for end in REWIRED if end},
    },
    "vgg19": WHOLE_GROUPS,
    "resnet18": WHOLE_GROUPS,
}


@dataclasses.dataclass(frozen=True)
class Part:
    """A panel, or one of the parts that it is split into: its rows, its lines, and its title if it is a part."""

    rows: Sequence[Any]
    lines: Sequence[str]
    title: str = ""

    def titled(self, panel: str) -> str:
        """Return the title of the panel with that of the part below it."""
        return f"{panel}\n{self.title}" if self.title else panel


def parts(experiment: str, rows: Sequence[Any], names: Sequence[str]) -> list[Part]:
    """Return the parts of a panel that shows the lines of these names, in their order; one if they are few enough."""
    lines = [name for name in names if name != DENSE]
    if len(lines) <= MOST_LINES:
        return [Part(rows, lines)]
    found = [Part(rows, [n for n in own if n in lines], title) for title, own in GROUPS.get(experiment, {}).items()]
    rest = [name for name in lines if not any(name in part.lines for part in found)]
    pieces = [rest[start : start + MOST_LINES] for start in range(0, len(rest), MOST_LINES)]
    found += [Part(rows, piece, f"other lines, part {number}") for number, piece in enumerate(pieces, 1)]
    return _with_news(found)


def _with_news(found: Sequence[Part]) -> list[Part]:
    """Return the parts that show a line which no part before them shows."""
    kept, shown = list[Part](), set[str]()
    for part in found:
        if set(part.lines) - shown:
            kept.append(part)
            shown.update(part.lines)
    return kept
