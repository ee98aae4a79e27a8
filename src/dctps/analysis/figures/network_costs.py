"""Cost and size of a network under each method, by the formulas of the paper's Table 1 with the network's own numbers.

A product of a layer's matrix (m x n, q = max(m, n), density p) with a vector costs mn multiply-adds when dense, pmn
when sparse, q log q more with an offset; a convolution has one for each output pixel. k passes prune, a rewiring
method takes the whole gradient once in every so many steps. On a device a dense weight is a float32; a sparse one has
its position (int32) beside it; each offset has its alpha. Only weights are counted: biases and BatchNorm are the same
for all methods.
"""

import dataclasses
import math
from collections.abc import Sequence

import torch

from dctps import models
from dctps.core.allocation import allocate, budget
from dctps.experiments.paper import METHODS
from dctps.experiments.tasks import SHAPES
from dctps.nn.costs import count_ops
from dctps.nn.prunable import prunable

IMAGES = {**SHAPES, "digits32": (3, 32, 10)}  # data set -> channels, side, classes
VALUE, POSITION = 4, 4  # bytes


@dataclasses.dataclass(frozen=True)
class LayerShape:
    """Of a weight, and how many products with it one image takes."""

    shape: tuple[int, ...]
    products: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def transform(self) -> int:
        """Multiply-adds of the offset in one product, q log2 q."""
        q = max(self.shape[0], self.size // self.shape[0])
        return round(q * math.log2(q))


@dataclasses.dataclass(frozen=True)
class Amounts:
    """At initialisation, while training (at its beginning and its end) and in the final network; None: not known."""

    initial: int | None
    training: int
    training_end: int
    final: int


def layers_of(model: str, data: str, width: int | None) -> list[LayerShape] | None:
    """The prunable layers of a network, without making its weights; None where the images' shape is not known."""
    if data not in IMAGES:
        return None
    channels, side, classes = IMAGES[data]
    with torch.device("meta"):
        network = models.build(model, classes, in_channels=channels, **({} if width is None else {"width": width}))
    dense = {row.name: row.dense for row in count_ops(network, (channels, side, side)).layers}
    shapes = {name: tuple(layer.get_parameter("weight").shape) for name, layer in prunable(network).items()}
    return [LayerShape(shape, dense[name] // math.prod(shape)) for name, shape in shapes.items()]


def multiply_adds(
    layers: Sequence[LayerShape], method: str, density: float | None, passes: int | None, every: int | None
) -> Amounts:
    """For one image.

    passes: of the pruning, k in the paper; every: steps between rewirings, Delta T in the paper.
    """
    dense = sum(layer.products * layer.size for layer in layers)
    if density is None:
        return Amounts(0, dense, dense, dense)
    own = METHODS[method]
    final = round(sum(layer.products * nnz for layer, nnz in zip(layers, counts(layers, method, density), strict=True)))
    if own.get("offset", "dct") is not None:
        final += sum(layer.products * layer.transform for layer in layers)
    if own.get("method") == "imp":
        return Amounts(0, dense, final, final)
    training = final + (round(dense / every) if "rewire" in own and every else 0)
    initial = (None if passes is None else passes * dense) if "method" in own else 0
    return Amounts(initial, training, training, final)


def device_bytes(layers: Sequence[LayerShape], method: str, density: float | None) -> Amounts:
    """Of the network's weights on the device that trains it."""
    dense = VALUE * sum(layer.size for layer in layers)
    if density is None:
        return Amounts(dense, dense, dense, dense)
    own = METHODS[method]
    final = (VALUE + POSITION) * round(sum(counts(layers, method, density)))
    final += VALUE * len(layers) if own.get("offset", "dct") is not None else 0
    initial = dense if "method" in own else final
    return Amounts(initial, dense if own.get("method") == "imp" else final, final, final)


def counts(layers: Sequence[LayerShape], method: str, density: float) -> list[float]:
    """Weights of each layer: by the method's rule or, where scores decide, as if all layers had the same density."""
    own = METHODS[method]
    if "method" not in own:
        return [float(count) for count in allocate([layer.shape for layer in layers], density, own["allocation"])]
    size = sum(layer.size for layer in layers)
    return [budget(size, density) * layer.size / size for layer in layers]
