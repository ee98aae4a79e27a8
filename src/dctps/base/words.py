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


def shown(value: object, limit: int = 60) -> str:
    """Describe a wrong value in one short line: numbers and text as they are, everything else by its kind.

    >>> shown(1.5), shown("abc"), shown([1, 2]), shown(10**400), shown(None)
    ('1.5', "'abc'", 'a list', 'an integer of 1329 bits', 'null')
    """
    if isinstance(value, dict | list | tuple):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        text = ascii(value[:limit]) if not value[:limit].isprintable() else repr(value[:limit])
        return text if len(value) <= limit else f"{text[:-1]}...{text[-1]}"
    return repr(value)[:limit] if isinstance(value, int | float) else f"a {type(value).__name__}"


def printable(text: str) -> str:
    """Replace what no encoding can write, as in names of files that are no valid text, by escapes.

    >>> printable("caf\\udce9")
    'caf\\\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
