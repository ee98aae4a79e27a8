"""What training a network holds besides activations."""

from torch import Tensor, nn

from dctps.bench.published import Published
from dctps.nn.dps_layer import DpsLayer


def memory(model: nn.Module) -> int:
    """Bytes of weights, gradients and Adam's two moments.

    A parameter that trains counts four times, one that does not (a stored D) once, and so does what else a weight
    consists of: the positions of its values, or a mask. Running statistics of BatchNorm are no weights. What the
    library keeps to be fast (factors of D, plans of S) is shared between layers of one shape and not counted.

    >>> memory(nn.Linear(1000, 1000, bias=False))
    16000000
    """
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    fixed = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    weights = [m for m in model.modules() if isinstance(m, DpsLayer | Published)]
    return (1 + 1 + 2) * trained + fixed + sum(t.nbytes for m in weights for t in _parts(m))


def _parts(layer: DpsLayer | Published) -> list[Tensor]:
    """The tensors of a weight that do not train."""
    if isinstance(layer, Published):
        return list(layer.buffers(recurse=False))
    return [layer.positions, *([] if layer.alpha is None or layer.alpha.requires_grad else [layer.alpha])]
