"""SparseProp (Nikdan et al., 2023), CPU kernels for unstructured sparsity, where the package is installed.

It prunes without an offset, replaces the layers whose weights are more than 80 % zeros, and keeps a layer dense where
it finds that faster, by measurements of its own.
"""

import contextlib
import io
from typing import Any

from torch import nn

from dctps.bench.foreign import import_with_threads

INSTALL = "pip install pybind11 setuptools wheel scipy && pip install --no-build-isolation sparseprop"


def why_not() -> str:
    """Why SparseProp cannot be measured, with the way to get it; empty where it can."""
    try:
        _utils()
    except ImportError as error:
        return f"sparseprop is left out ({error}); to have it (x86 with AVX2, a C++ compiler): {INSTALL}"
    return ""


def _utils() -> Any:  # a package without types
    return import_with_threads("sparseprop.utils")


def replaced(model: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """A dense network with zeros in its weights, in place with SparseProp's layers; input_shape with the batch."""
    skip = ",".join(name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d) and not _fits(layer))
    with contextlib.redirect_stdout(io.StringIO()):  # it reports each layer, asked or not
        new: nn.Module = _utils().swap_modules_with_sparse(model, input_shape, inplace=True, skip_modules=skip or None)
    return new


def _fits(layer: nn.Conv2d) -> bool:
    """Whether its kernels compute this convolution: it reads one stride, padding and kernel size, and nothing else."""
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    square = len(set(layer.stride)) == len(set(layer.kernel_size)) == len(set(layer.padding)) == 1
    return plain and square and not isinstance(layer.padding, str) and layer.stride[0] in (1, 2)
