"""Networks as if they had been trained, and files of networks that are changed behind the library's back."""

import json

import torch
from torch import nn

from dctps.checkpoint.contents import digest_of
from dctps.nn import identity


def trained(model: nn.Module) -> nn.Module:
    """Fill a network as if it had been trained: every entry of its floating tensors is a random number."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, dtype=torch.float64))
    return model


def positions_in(state, layer):
    """Return the positions of a layer in a state, or None if it is not sparse there."""
    key = f"{layer}._extra_state"
    return identity.decode(state[key])[0].positions if key in state else None


def with_positions(state, change, layer="0"):
    """Return a state as earlier versions wrote it, with positions as tensors, and with those of one layer changed."""
    old = {key: tensor for key, tensor in state.items() if not key.endswith("_extra_state")}
    for key in state.keys() - old.keys():
        support, _ = identity.decode(state[key])
        old[key.replace("_extra_state", "positions")] = support.positions
    old[f"{layer}.positions"] = change(old[f"{layer}.positions"])
    return old


def assert_equal_states(model, other):
    """Check that two networks hold the same tensors, equal to the last bit."""
    mine, theirs = model.state_dict(), other.state_dict()
    assert list(mine) == list(theirs)
    for key, tensor in mine.items():
        assert tensor.dtype == theirs[key].dtype
        assert torch.equal(tensor, theirs[key]), key


def rewrite(path, manifest=None, metadata=None, tensors=None):
    """The file with its manifest, metadata or tensors changed by functions, and a digest that fits."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(path, "pt") as file:
        meta, stored = dict(file.metadata()), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if manifest:
        content = json.loads(meta["dctps"])
        manifest(content)
        meta["dctps"] = json.dumps(content)
    if tensors:
        tensors(stored)
    meta["digest"] = digest_of(meta["dctps"], stored)
    if metadata:
        metadata(meta)
    save_file(stored, path, meta)
