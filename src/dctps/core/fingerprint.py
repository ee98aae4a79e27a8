"""The fingerprint of weights, which tells whether they are the same to the last bit."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return the BLAKE2b hash (16 bytes, hexadecimal) of the names, types, shapes and bytes of weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
