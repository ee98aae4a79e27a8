"""What fine-tuning has made of a network, apart from the network: S, alpha and the other tensors that have changed."""

import dataclasses
import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dctps.core.support import Support
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import before, saved_buffers
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


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()


def base_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights W0 of a plain or a fine-tuned network, by name."""
    plain = {name: weight.base for name, weight in tunable(model, frozen_too=True).items()}
    return plain | {name: weight.base for name, weight in tuned_weights(model).items()}


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return the BLAKE2b hash (16 bytes, hexadecimal) of the names, types, shapes and bytes of weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
