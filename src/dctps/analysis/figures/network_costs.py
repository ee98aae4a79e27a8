"""Cost and size of a network under each method, by the formulas of the paper's Table 1.

A layer's matrix has m x n entries; q = max(m, n) and p is the density. Its product with a vector costs mn multiply-adds
when the matrix is dense, pmn when it is sparse, and about q log q more with an offset. A convolution takes one product
for each output pixel. A pruning method takes k passes of the dense network, a rewiring method the whole gradient once
in every so many steps. On a device a dense weight is a float32; a sparse one has its position (int32) beside it; each
offset has its alpha. Only weights are counted, as biases and BatchNorm are the same for all methods.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch

from dctps import models
from dctps.core.allocation import allocate, budget
from dctps.core.complexity import transform_operations
from dctps.data import DATASETS
from dctps.experiments.paper import PAPER_METHODS
from dctps.nn.costs import count_ops
from dctps.nn.prunable import prunable

VALUE, POSITION = 4, 4  # bytes


@dataclasses.dataclass(frozen=True)
class LayerShape:
    """The shape of a weight, and the number of products with it that one image takes."""

    shape: tuple[int, ...]
    products: int

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def transform(self) -> int:
        """Multiply-adds of the offset in one product, q log2 q."""
        q = max(self.shape[0], self.size // self.shape[0])
        return transform_operations(q)


@dataclasses.dataclass(frozen=True)
class Amounts:
    """A cost or a size at initialisation (None: not known), while training (first and last step), and in the end."""

    initial: int | None
    training: int
    training_end: int
    final: int


def layers_of(model: str, data: str, width: int | None) -> list[LayerShape] | None:
    """Return the prunable layers of a network, or None if the data set is not in `dctps.data.DATASETS`.

    No memory is taken for the weights.
    """
    if data not in DATASETS:
        return None
    info, options = DATASETS[data], {} if width is None else {"width": width}
    with torch.device("meta"):
        network = models.build(model, info.classes, in_channels=info.channels, **options)
    dense = {row.name: row.dense for row in count_ops(network, info.image_shape).layers}
    shapes = {name: tuple(layer.get_parameter("weight").shape) for name, layer in prunable(network).items()}
    return [LayerShape(shape, dense[name] // math.prod(shape)) for name, shape in shapes.items()]


def multiply_adds(
    layers: Sequence[LayerShape], method: str, density: float | None, passes: int | None, every: int | None
) -> Amounts:
    """Return the multiply-adds of one image.

    passes: passes of the pruning method, k in the paper.
    every: steps between rewirings, Delta T in the paper.
    """
    dense = sum(layer.products * layer.size for layer in layers)
    if density is None:
        return Amounts(0, dense, dense, dense)
    settings, nnz = PAPER_METHODS[method], counts(layers, method, density)
    final = round(sum(layer.products * count for layer, count in zip(layers, nnz, strict=True)))
    if settings.get("offset", "dct") is not None:
        final += sum(layer.products * layer.transform for layer in layers)
    if settings.get("method") == "imp":
        return Amounts(0, dense, final, final)
    training = final + (round(dense / every) if "rewire" in settings and every else 0)
    initial = (None if passes is None else passes * dense) if "method" in settings else 0
    return Amounts(initial, training, training, final)


def device_bytes(layers: Sequence[LayerShape], method: str, density: float | None) -> Amounts:
    """Return the bytes of the network's weights on the device that trains it."""
    dense = VALUE * sum(layer.size for layer in layers)
    if density is None:
        return Amounts(dense, dense, dense, dense)
    settings = PAPER_METHODS[method]
    final = (VALUE + POSITION) * round(sum(counts(layers, method, density)))
    final += VALUE * len(layers) if settings.get("offset", "dct") is not None else 0
    initial = dense if "method" in settings else final
    return Amounts(initial, dense if settings.get("method") == "imp" else final, final, final)


def counts(layers: Sequence[LayerShape], method: str, density: float) -> list[float]:
    """Return the weights of each layer by the method's rule; where scores decide, all layers get the same density."""
    settings = PAPER_METHODS[method]
    if "method" not in settings:
        return [float(count) for count in allocate([layer.shape for layer in layers], density, settings["allocation"])]
    size = sum(layer.size for layer in layers)
    return [budget(size, density) * layer.size / size for layer in layers]
