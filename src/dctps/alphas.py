"""The scale of D at initialisation, layer by layer: what `sparsify(alpha=)` may be (paper: sections 3 and 6).

    a number    that many times what the rule "paper" gives: 1, except where the network states its own norms
    a rule      a name in `ALPHAS`
    a mapping   numbers by layer name or pattern, the first that matches; other layers as by "paper"
    a function  of a layer's name and its offset

Networks that depend on the scale of their weights, as Fixup does, may state it: a method `initial_norms()` that gives,
by layer name, the norm which a filter is expected to have at initialisation. They need not know of offsets for that.

    paper     1; where a norm v is stated, the published sqrt(v / mean norm of D's filters)
    exact     1; where a norm v is stated, v / mean norm of D's filters: alpha D then has that norm
    preserve  sqrt(2 / mean squared norm of D's filters): what He et al. (2015) do for Gaussian weights, whose filters
              have a mean squared norm of fan_in * 2 / fan_in = 2; where a norm is stated, as `exact`

The squared norms of D's m filters of n entries sum to m n / q for a transform of length q, whatever its order, signs
and rows: an orthonormal matrix of which either all rows are kept (q = m > n), or all columns (q = n), or whose entries
are all of one size (Hadamard).
"""

import fnmatch
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dctps.offsets import BLOCK, Offset, PatchOffset
from dctps.registry import lookup

AlphaLike = float | str | Mapping[str, float] | Callable[[str, Offset], float]
Rule = Callable[[Offset, float | None], float]  # the offset of a layer, the norm that the network states for it


def choose_alphas(alpha: AlphaLike, model: nn.Module, offsets: Mapping[str, Offset]) -> dict[str, float]:
    """The initial alpha of each layer of `offsets`; ValueError where `alpha` cannot be understood.

    >>> from dctps.offsets import TransformOffset
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


# --- norms of the filters of D ---------------------------------------------------------------------------------------


def filter_norms(offset: Offset) -> Tensor:  # (m,), float64
    """The norms of D's rows; those of a transform some at a time, so that D itself is never made."""
    if not isinstance(offset, PatchOffset):
        return offset.matrix().detach().cpu().double().square().sum(1).sqrt()
    m, n = offset.shape
    if offset.length == n:
        return torch.ones(m, dtype=torch.float64, device="cpu")
    blocks = offset.rows.split(max(1, BLOCK // n))
    return torch.cat([offset.transform.entries(rows, offset.slots, offset.length).norm(dim=1) for rows in blocks])


def mean_norm(offset: Offset) -> float:
    """The mean norm of D's filters."""
    return float(filter_norms(offset).mean())


def mean_square(offset: Offset) -> float:
    """The mean squared norm of D's filters: n / q for the transforms (top of this file)."""
    if isinstance(offset, PatchOffset):
        return offset.shape[1] / offset.length
    return float(filter_norms(offset).square().mean())


# --- the rules --------------------------------------------------------------------------------------------------------


def _paper(offset: Offset, norm: float | None) -> float:
    return 1.0 if norm is None else math.sqrt(_exact(offset, norm))


def _exact(offset: Offset, norm: float | None) -> float:
    return 1.0 if norm is None else norm / mean_norm(offset)


def _preserve(offset: Offset, norm: float | None) -> float:
    return math.sqrt(2 / mean_square(offset)) if norm is None else _exact(offset, norm)


PAPER = "paper"
ALPHAS: dict[str, Rule] = {PAPER: _paper, "exact": _exact, "preserve": _preserve}
