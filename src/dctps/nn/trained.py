"""Which parameters of a fine-tuned network train beside the sparse parts: the patterns of `sparsify(train=...)`.

"classifier"     everything inside a module of that name
"*.bias"         parameters, or modules with all that is inside, whose names match the pattern
"norms"          the scales and shifts of all normalisation layers
"""

import fnmatch
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

NORMS = "norms"
_NORM_LAYERS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def matched_parameters(model: nn.Module, train: str | Iterable[str]) -> list[str]:
    """Return the names of the parameters that the patterns match; raise ValueError if a pattern matches none.

    A tied parameter is matched by each of its names, and returned by the first.

    >>> matched_parameters(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), ("norms", "0.b*"))
    ['0.bias', '1.weight', '1.bias']
    """
    patterns = [train] if isinstance(train, str) else list(train)
    first = {id(p): name for name, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}
    every = model.named_parameters(remove_duplicate=False)  # a tied parameter has several names, one is in the report
    names = [(name, first[id(p)]) for name, p in every if id(p) in first]
    inside = {id(p) for module in model.modules() if _is_norm(module) for p in module.parameters(recurse=False)}
    norms = {name for key, name in first.items() if key in inside}
    found = set[str]()
    for pattern in patterns:
        matches = {own for name, own in names if _matches(name, pattern)} | (norms if pattern == NORMS else set())
        if not matches:
            raise ValueError(_no_match(pattern, [name for name, _ in names]))
        found |= matches
    return [name for name in first.values() if name in found]


def _no_match(pattern: str, names: list[str]) -> str:
    shown = names if len(names) <= 8 else [*names[:4], "...", *names[-4:]]  # a classifier comes last
    return (
        f"train={pattern!r} matches no parameter of floating point numbers; it is a name or pattern of a module or a "
        f"parameter, or {NORMS!r} for normalisation layers; there are: {', '.join(shown)}"
    )


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches the name of a parameter or of a module that it is in."""
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def _is_norm(module: nn.Module) -> bool:
    """Return whether this is a normalisation layer: one of torch's, or one that its name says to be one."""
    kind = type(module).__name__.lower()
    return isinstance(module, _NORM_LAYERS) or kind.endswith(("norm", "norm1d", "norm2d", "norm3d"))
