"""The names of the tables that `dctps bench` writes: a name says what was measured.

`bench-step-vgg19-dct-1e-3-b128` holds one network, one offset, one density and batches of 128; several values are
joined by "+", and options that are not at their defaults follow, at last the instruction set where one was asked for.
Two runs that measure the same have the same name.
Processor, torch version, commit and date are columns of the table.
"""

import dataclasses
import decimal
import hashlib
from collections.abc import Iterable
from typing import Any

from dctps.bench.subjects import Layers, Scaling, Steps

LONGEST = 120  # characters of a name; longer ones are cut
NAMED = (
    "models",
    "model",
    "densities",
    "density",
    "offsets",
    "offset",
    "batch",
)  # options that stand without their names
PRECISION = "steps", "warmup", "repeats"  # options that change how exact a time is, not what is measured


def step_name(asked: Steps, instruction_set: str | None = None) -> str:
    """The name of a table of whole steps, without its ending."""
    options = _other_options(asked, NAMED, instruction_set)
    return _name("step", asked.models, asked.offsets, asked.densities, asked.batch, options)


def layers_name(asked: Layers, instruction_set: str | None = None) -> str:
    """The name of a table of one network's layers, without its ending."""
    of_one = [asked.model], [asked.offset], [asked.density]
    return _name("layers", *of_one, asked.batch, _other_options(asked, NAMED, instruction_set))


def scaling_name(asked: Scaling, instruction_set: str | None = None) -> str:
    """The name of a table of times against size and density, without its ending."""
    return _file_name(["bench", "scaling", asked.offset, *_other_options(asked, ["offset"], instruction_set)])


def _name(
    subject: str,
    models: Iterable[str],
    offsets: Iterable[str],
    densities: Iterable[float],
    batch: int,
    options: list[str],
) -> str:
    falling = sorted(set(densities), reverse=True)
    parts = [_text(sorted(set(models))), _text(sorted(set(offsets))), _text(falling), f"b{batch}"]
    return _file_name(["bench", subject, *parts, *options])


def _other_options(asked: Any, named: Iterable[str], instruction_set: str | None) -> list[str]:
    """The options that differ from their defaults: a flag by its name, any other by its name and its value."""
    found = []
    for option in dataclasses.fields(asked):
        value = getattr(asked, option.name)
        if option.name in (*named, *PRECISION) or value == option.default:
            continue
        found.append(option.name if value is True else f"{option.name}-{_option_text(option.name, value)}")
    return found if instruction_set is None else [*found, instruction_set]


def _option_text(name: str, value: Any) -> str:
    return "x".join(map(str, value)) if name == "input_shape" else _text(value)


def _text(value: Any) -> str:
    """A value as a part of a name; the values of a sequence are joined by "+"."""
    if isinstance(value, list | tuple):
        return "+".join(map(_text, value)) or "none"
    if isinstance(value, float):
        exact = decimal.Decimal(str(value)).normalize()
        return f"{exact:e}" if abs(exact) < 1 else f"{exact:f}"  # 1e-3, 2
    return str(value)


def _file_name(parts: list[str]) -> str:
    """The parts as one name that every file system takes: letters, digits and . _ + -."""
    full = "-".join(parts)
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._+-") else "-" for c in full)
    if len(safe) <= LONGEST:
        return safe
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]  # names with one beginning stay different
    return f"{safe[: LONGEST - len(digest) - 1]}-{digest}"
