"""What fine-tuning has made of a network, apart from the network: S, alpha and the other tensors that have changed."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dctps.core.fingerprint import fingerprint
from dctps.core.support import Support
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import Before, before, saved_buffers
from dctps.nn.sparse_part import SparsePart
from dctps.nn.tunable import tunable
from dctps.nn.wrappers import unwrapped


@dataclasses.dataclass(frozen=True)
class AdapterState:
    """S of each weight by name, the alphas that there are, and every other tensor that training has changed.

    base: the fingerprint of the weights W0 that it was trained on.
    """

    supports: Mapping[str, Support]
    values: Mapping[str, Tensor]
    alphas: Mapping[str, Tensor]
    rest: Mapping[str, Tensor]
    base: str


def state_of(model: nn.Module) -> AdapterState:
    """Return a copy of what fine-tuning has made of a network, on the CPU; raise ValueError if it is not fine-tuned.

    The running statistics and other buffers are part of it where they have changed.
    """
    model = unwrapped(model)
    was, weights = before(model), tuned_weights(model)
    if was is None:
        where = "only a part of a network is" if weights else "nothing of it is"
        raise ValueError(f"this network is not fine-tuned ({where}); call sparsify(model, ..., offset='pretrained')")
    parts = {name: weight.part for name, weight in weights.items()}
    _check_trained(model, was, parts)
    rest = {name: _copy(model.get_parameter(name)) for name in was.trained}
    for name, buffer in saved_buffers(model):
        if name in was.originals and not torch.equal(buffer.cpu(), was.originals[name].cpu()):
            rest[name] = _copy(buffer)
    return AdapterState(
        {
            name: Support(part.geometry.weight_shape, part.positions.cpu().clone(), part.seed)
            for name, part in parts.items()
        },
        {name: _copy(part.values) for name, part in parts.items()},
        {name: _copy(part.alpha) for name, part in parts.items() if part.alpha is not None},
        rest,
        fingerprint({name: weight.base for name, weight in weights.items()}),
    )


def _check_trained(model: nn.Module, was: Before, parts: Mapping[str, SparsePart]) -> None:
    """Raise ValueError unless S and the parameters that `train` named are there, and all that requires a gradient."""
    places = dict(model.named_parameters(remove_duplicate=False))
    gone = [name for name in was.trained if name not in places]
    if gone:
        raise ValueError(f"{gone[0]!r} trained as a whole and is not in the network any more; put its module back")
    known = {id(places[name]) for name in was.trained} | {id(p) for part in parts.values() for p in part.parameters()}
    others = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]
    if others:
        raise ValueError(
            f"these parameters require a gradient, but train= did not name them, so an adapter would not hold them: "
            f"{', '.join(others)}; name them in sparsify(train=...), or freeze them by requires_grad_(False)"
        )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def base_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights W0 of a plain or a fine-tuned network, by name."""
    plain = {name: weight.base for name, weight in tunable(model, frozen_too=True).items()}
    return plain | {name: weight.base for name, weight in tuned_weights(model).items()}
