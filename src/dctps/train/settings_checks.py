"""Checks of settings: types, ranges, and what settings ask of one another.

A wrong setting is found when it is made and not in the middle of a training. The functions take the dataclass
`Settings`, whose module imports this one.
"""

import dataclasses
import functools
import math
import os
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from dctps.base.records import LARGEST, LARGEST_INT
from dctps.base.registry import is_none, lookup

POSITIVE = (
    "lr",
    "alpha_lr",
    "values_lr",
    "epochs",
    "batch_size",
    "gamma",
    "width",
    "hidden",
    "images",
    "method_steps",
    "method_batches",
    "rewire_every",
)
NOT_NEGATIVE = ("weight_decay", "seed")
FRACTIONS = ("norm_density", "rewire_until", "drop_fraction")


def normalise_settings(settings: Any) -> None:
    """Give all values their declared type, so that 1 and 1.0, 0.0 and -0.0, [1] and (1,), "none" and None are one.

    The names of one rule for alpha are one, too.
    """
    for field in dataclasses.fields(settings):
        hint, value = _hints(settings)[field.name], getattr(settings, field.name)
        if type(None) in typing.get_args(hint) and is_none(value):
            value = None
        if float in (hint, *typing.get_args(hint)) and type(value) in (int, float) and abs(value) < LARGEST:
            value = float(value) + 0.0
        if field.name == "alpha" and isinstance(value, str) and value.startswith("leverage/"):
            value = _rule_name(value)
        object.__setattr__(settings, field.name, tuple(value) if isinstance(value, list) else value)


def _rule_name(alpha: str) -> str:
    from dctps.core.alphas import Leverage  # here, because it loads torch, which a page of help does without

    return Leverage.parse(alpha).name


def normalise_paths(runtime: Any) -> None:
    """Make paths of all strings that stand for paths; raise ValueError for what cannot be one."""
    for field in dataclasses.fields(runtime):
        hint, value = _hints(runtime)[field.name], getattr(runtime, field.name)
        options = typing.get_args(hint) or (hint,)
        if Path not in options or (value is None and type(None) in options):
            continue
        if not isinstance(value, str | os.PathLike) or not os.fspath(value):
            raise ValueError(f"{field.name} cannot be {value!r}; it is the path of a folder")
        object.__setattr__(runtime, field.name, Path(value).expanduser())


def check_settings(settings: Any) -> None:
    """Raise ValueError, which names the setting, its value and what is possible, if something is wrong."""
    check_types(settings)
    _check_ranges(settings)
    _check_methods(settings)
    _check_lottery(settings)


def check_types(settings: Any) -> None:
    """Raise ValueError, which names the setting, unless every value has the declared type."""
    for field in dataclasses.fields(settings):
        _check_type(_hints(settings)[field.name], field.name, getattr(settings, field.name))


def _hints(settings: Any) -> dict[str, Any]:
    """The declared types of all settings."""
    return _class_hints(settings.__class__)


@functools.cache
def _class_hints(settings_class: type) -> dict[str, Any]:
    return typing.get_type_hints(settings_class)


def _check_type(hint: Any, name: str, value: Any) -> None:
    """Check that a value has the type of its setting; numbers must be finite."""
    options = typing.get_args(hint)
    words = [word for part in (hint, *options) if typing.get_origin(part) is Literal for word in typing.get_args(part)]
    if words:
        if value not in words and not (value is None and type(None) in options):
            raise ValueError(f"unknown {name} {value!r}; choose one of: {', '.join(words)}")
        return
    if typing.get_origin(hint) is tuple:
        good = isinstance(value, tuple) and all(type(part) is options[0] for part in value)
        good = good and all(0 <= part <= LARGEST_INT for part in value if options[0] is int)
    else:
        good = type(value) in (options or (hint,))  # a bool is an int to Python, but not here
    too_large = type(value) is int and abs(value) > LARGEST_INT
    if not good or too_large or (isinstance(value, float) and not math.isfinite(value)):
        kind = getattr(hint, "__name__", str(hint)) if not options else str(hint)
        raise ValueError(f"setting {name} cannot be {value!r}; it is of type {kind}")


def check_ranges(
    settings: Any, positive: Iterable[str] = (), not_negative: Iterable[str] = (), fractions: Iterable[str] = ()
) -> None:
    """Raise ValueError unless the settings of these names are so; fractions are in (0, 1]."""
    given = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    for name in positive:
        if given[name] is not None and not given[name] > 0:
            raise ValueError(f"{name} must be positive, not {given[name]}")
    for name in not_negative:
        if given[name] < 0:
            raise ValueError(f"{name} must not be negative, but is {given[name]}")
    for name in fractions:
        if given[name] is not None and not 0 < given[name] <= 1:
            raise ValueError(f"{name} must be in (0, 1], not {given[name]}")


def _check_ranges(settings: Any) -> None:
    check_ranges(settings, POSITIVE, NOT_NEGATIVE, FRACTIONS)
    if settings.density is not None and not 0 < settings.density <= 1:
        raise ValueError(f"density must be in (0, 1], not {settings.density}; leave it out for the dense network")
    if not 0 <= settings.momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), not {settings.momentum}")


def _check_methods(settings: Any) -> None:
    if settings.rewire is not None:
        from dctps.methods.rewiring import REWIRINGS  # it imports torch, which the flags of a command do not need

        lookup(REWIRINGS, settings.rewire, "rewire")
    for name in ("method", "rewire", "projection"):
        if getattr(settings, name) is not None and settings.density is None:
            raise ValueError(f"{name} {getattr(settings, name)} needs a density")
    if settings.frozen == "values" and (settings.density is None or settings.rewire is not None):
        raise ValueError(
            "frozen values are those of sparse layers that stay in place: give a density, leave rewire out"
        )
    if settings.projection is not None and (settings.method is not None or settings.rewire is not None):
        raise ValueError("a projection has no sparse weights: leave method and rewire out")
    if settings.projection is not None and settings.frozen is not None:
        raise ValueError("a projection moves all parameters at a time: leave frozen out")


def _check_lottery(settings: Any) -> None:
    is_imp = settings.method == "imp"
    if settings.imp_round is not None and (not is_imp or settings.imp_round < 0):
        raise ValueError(f"imp_round {settings.imp_round}: rounds are numbered from 0 and belong to the method imp")
    if is_imp and (settings.offset is not None or settings.density == 1):
        raise ValueError("imp prunes a network without an offset: say --offset none and a density below 1")
    if settings.imp_rewind < 0 or (settings.imp_rewind and not is_imp):
        raise ValueError(f"imp_rewind {settings.imp_rewind}: it is a number of steps, for the method imp alone")
