"""The initial alpha of each layer of a network: what `sparsify(alpha=)` accepts.

    a number    a factor on the alpha of the rule "paper", which is 1 unless the network states its norms (see below)
    a rule      a name in `ALPHAS` (core/alphas.py), or a `Leverage` with a learning rate and a number of steps,
                which can be written leverage/LR/STEPS
    a mapping   from layer names or patterns to alphas; the first match counts, and layers without one follow "paper"
    a function  that takes the name of a layer and its offset, and returns its alpha

A network that depends on the scale of its weights, as Fixup does, may state its norms by a method `initial_norms()`.
The method returns, by layer name, the norm that a filter is expected to have at initialisation. The network needs no
knowledge of offsets for that.
"""

import fnmatch
import math
from collections.abc import Callable, Mapping

from torch import nn

from dctps.core.alphas import ALPHAS, PAPER, Leverage, Rule, ScaledLayer, named_rule
from dctps.core.offsets import Offset
from dctps.nn.tracing import rescaled_layers

AlphaLike = float | str | Leverage | Mapping[str, float] | Callable[[str, Offset], float]


def choose_alphas(
    alpha: AlphaLike, model: nn.Module, offsets: Mapping[str, Offset], counts: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Return the initial alpha of each layer of `offsets`; raise ValueError if `alpha` is none of the kinds above.

    counts: the number of values of each layer.

    >>> from dctps.core.offsets import TransformOffset
    >>> offset = TransformOffset("dct").bind((64, 16))
    >>> choose_alphas("preserve", nn.Linear(16, 64), {"": offset})  # filters of D have squared norm 16/64
    {'': 2.8284271247461903}
    """
    if isinstance(alpha, Mapping):
        return _by_pattern(alpha, model, offsets)
    if callable(alpha) and not isinstance(alpha, Leverage):
        return {name: _number(alpha(name, offset), name) for name, offset in offsets.items()}
    rule = alpha if isinstance(alpha, Leverage) else named_rule(alpha if isinstance(alpha, str) else PAPER)
    factor = 1.0 if isinstance(alpha, str | Leverage) else _number(alpha)
    facts = _facts(model, offsets, counts or {})
    return {name: factor * _apply(rule, name, layer) for name, layer in facts.items()}


def _facts(model: nn.Module, offsets: Mapping[str, Offset], counts: Mapping[str, int]) -> dict[str, ScaledLayer]:
    """Return what a rule may look at, for each layer of `offsets`."""
    if not offsets:
        return {}
    norms, rescaled = stated_norms(model), rescaled_layers(model)
    layers = dict(model.named_modules())
    return {
        name: ScaledLayer(offset, norms.get(name), counts.get(name, 0), layers.get(name) in rescaled)
        for name, offset in offsets.items()
    }


def stated_norms(model: nn.Module) -> dict[str, float]:
    """Return the norms that a network and its parts state by `initial_norms`, by full layer name.

    Where both state the norm of a layer, the network overrules its part.
    """
    norms: dict[str, float] = {}
    for prefix, module in model.named_modules():
        method = getattr(module, "initial_norms", None)
        for name, norm in method().items() if callable(method) else ():
            norms.setdefault(".".join(filter(None, (prefix, name))), norm)
    return norms


def _by_pattern(numbers: Mapping[str, float], model: nn.Module, offsets: Mapping[str, Offset]) -> dict[str, float]:
    """Return the alpha of each layer by the first pattern that matches its name, else by the rule "paper"."""
    alphas, used = choose_alphas(1.0, model, offsets), set[str]()
    for name in offsets:
        matches = [pattern for pattern in numbers if fnmatch.fnmatchcase(name, pattern)]
        used.update(matches)
        if matches:
            alphas[name] = _number(numbers[matches[0]], name)
    for pattern in numbers:
        if offsets and pattern not in used:
            raise ValueError(f"alpha for {pattern!r} matches no layer; there are: {', '.join(offsets)}")
    return alphas


def _number(alpha: object, name: str | None = None) -> float:
    """Return an alpha as a float; raise ValueError, with the name of its layer if one is given, if it is no number."""
    try:
        return float(alpha)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        where = "alpha" if name is None else f"the alpha of layer {name!r}"
        rules = ", ".join(map(repr, ALPHAS))
        raise ValueError(
            f"{where} cannot be {alpha!r}; it is a number, or for all layers: one of {rules}, leverage/LR/STEPS, a "
            "Leverage, a mapping from layer names or patterns to numbers, or a function of the name of a layer and its "
            "offset"
        ) from None


def _apply(rule: Rule, name: str, layer: ScaledLayer) -> float:
    """Return the alpha that a rule gives to one layer."""
    if layer.norm is not None and not 0 <= layer.norm < math.inf:
        raise ValueError(
            f"layer {name!r}: the network states an initial norm of {layer.norm}; a norm is finite and at least 0"
        )
    try:
        return rule(layer)
    except ZeroDivisionError:
        raise ValueError(
            f"layer {name!r}: its offset is zero, no alpha can give it a norm; give alpha as a number"
        ) from None
