"""The initial alpha of each layer of a network: what `sparsify(alpha=)` may be.

    a number    that many times what the rule "paper" gives: 1, except where the network states its own norms
    a rule      a name in `ALPHAS` (core/alphas.py)
    a mapping   numbers by layer name or pattern, of which the first that matches counts; other layers as by "paper"
    a function  of a layer's name and its offset

Networks that depend on the scale of their weights, as Fixup does, may state it: a method `initial_norms()` gives, by
layer name, the norm which a filter is expected to have at initialisation. They need not know of offsets for that.
"""

import fnmatch
import math
from collections.abc import Callable, Mapping

from torch import nn

from dctps.base.registry import lookup
from dctps.core.alphas import ALPHAS, PAPER, Rule
from dctps.core.offsets import Offset

AlphaLike = float | str | Mapping[str, float] | Callable[[str, Offset], float]


def choose_alphas(alpha: AlphaLike, model: nn.Module, offsets: Mapping[str, Offset]) -> dict[str, float]:
    """The initial alpha of each layer of `offsets`; ValueError where `alpha` cannot be understood.

    >>> from dctps.core.offsets import TransformOffset
    >>> offset = TransformOffset("dct").bind((64, 16))
    >>> choose_alphas("preserve", nn.Linear(16, 64), {"": offset})  # filters of squared norm 1/4: 16 of 64 entries
    {'': 2.8284271247461903}
    """
    if isinstance(alpha, Mapping):
        return _by_pattern(alpha, model, offsets)
    if callable(alpha):
        return {name: _number(alpha(name, offset), name) for name, offset in offsets.items()}
    rule = lookup(ALPHAS, alpha if isinstance(alpha, str) else PAPER, "alpha")
    factor = 1.0 if isinstance(alpha, str) else _number(alpha)
    norms = stated_norms(model)
    return {name: factor * _apply(rule, name, offset, norms.get(name)) for name, offset in offsets.items()}


def stated_norms(model: nn.Module) -> dict[str, float]:
    """The norms that a network and its parts state (`initial_norms`), by full name; the whole overrules its parts."""
    norms: dict[str, float] = {}
    for prefix, module in model.named_modules():
        ask = getattr(module, "initial_norms", None)
        for name, norm in ask().items() if callable(ask) else ():
            norms.setdefault(".".join(filter(None, (prefix, name))), norm)
    return norms


def _by_pattern(numbers: Mapping[str, float], model: nn.Module, offsets: Mapping[str, Offset]) -> dict[str, float]:
    alphas, used = choose_alphas(1.0, model, offsets), set[str]()
    for name in offsets:
        hits = [pattern for pattern in numbers if fnmatch.fnmatchcase(name, pattern)]
        used.update(hits)
        if hits:
            alphas[name] = _number(numbers[hits[0]], name)
    for pattern in numbers:
        if offsets and pattern not in used:
            raise ValueError(f"alpha for {pattern!r} matches no layer; there are: {', '.join(offsets)}")
    return alphas


def _number(alpha: object, name: str | None = None) -> float:
    try:
        return float(alpha)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        where = "alpha" if name is None else f"the alpha of layer {name!r}"
        rules = ", ".join(map(repr, ALPHAS))
        raise ValueError(
            f"{where} cannot be {alpha!r}; it is a number, or for all layers: one of {rules}, a mapping from names or "
            "patterns to numbers, or a function of name and offset"
        ) from None


def _apply(rule: Rule, name: str, offset: Offset, norm: float | None) -> float:
    if norm is not None and not 0 <= norm < math.inf:
        raise ValueError(f"layer {name!r}: the network states an initial norm of {norm}; it must be finite, at least 0")
    try:
        return rule(offset, norm)
    except ZeroDivisionError:
        raise ValueError(f"layer {name!r}: its offset is zero, no alpha can give it a norm; use a number") from None
