"""SparseLab, CPU kernels for sparse linear layers, where the package is installed. It prunes without an offset."""

import numpy as np
import torch
from torch import nn

from dctps.base.extras import is_installed
from dctps.bench.foreign import import_with_threads
from dctps.nn.replace import replace_layers

INSTALL = "pip install --no-deps sparselab"  # without --no-deps pip may bring another torch


def why_not(dense: nn.Module) -> str:
    """Why SparseLab cannot be measured on a network; empty where it can."""
    if not is_installed("sparselab"):
        return f"sparselab is left out: it is not installed; to have it: {INSTALL}"
    plain = [m for m in dense.modules() if not isinstance(m, nn.Linear)]
    others = sorted({type(m).__name__ for m in plain if any(p.dim() > 1 for p in m.parameters(recurse=False))})
    if others:
        return f"sparselab is left out: it has linear layers only, and the network has {', '.join(others)}"
    return ""


def replaced(model: nn.Module) -> nn.Module:
    """A dense network with zeros in its weights, in place with SparseLab's linear layers."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    return replace_layers(model, {id(layer): _twin(layer) for layer in layers})


def _twin(layer: nn.Linear) -> nn.Module:
    """SparseLab's layer with the weights of this one that are not zero.

    Its constructor draws weights; their storage is replaced as its own constructor makes it: a matrix, and a parameter
    in the same memory.
    """
    package = import_with_threads("sparselab")
    new: nn.Module = package.SparseLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    matrix = package.PaddedCSR.from_dense(layer.weight.detach())
    new._csr = matrix
    new._values = nn.Parameter(torch.from_numpy(np.asarray(matrix.values)))
    new.bias = layer.bias
    return new
