"""Numbers and names in the form in which people read them."""

import math
from collections.abc import Sequence

import numpy as np


def percent(fraction: float) -> str:
    """Format a fraction in percent, with three significant digits and never in scientific notation.

    >>> percent(0.001), percent(1 / 3)
    ('0.1 %', '33.3 %')
    """
    if math.isnan(fraction):
        return "-"
    return f"{np.format_float_positional(100 * fraction, 3, fractional=False, trim='-')} %"


def duration(seconds: float) -> str:
    """Format a time as minutes and seconds, with hours where there are any.

    >>> duration(7), duration(750), duration(10_921)
    ('0:07', '12:30', '3:02:01')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def listed(names: Sequence[str], limit: int = 6) -> str:
    """List the first `limit` names of layers, and say how many more there are.

    >>> listed(["conv1", "conv2", "fc"], limit=2)
    'conv1, conv2 and 1 more layers'
    """
    more = f" and {len(names) - limit} more layers" if len(names) > limit else ""
    return ", ".join(name or "(itself)" for name in names[:limit]) + more
