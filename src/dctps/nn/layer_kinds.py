"""How each kind of layer is fine-tuned: which of its parameters are weights, and how it computes with W0 and S apart.

A fine-tuned layer presents W0 + S under the name of its weight, so every layer whose forward method reads `self.weight`
works without an entry here. An entry saves what this costs, a second dense weight in each forward pass, or names
weights of other names. A class of your own is entered the same way:

    dctps.LAYER_KINDS[MyLayer] = dctps.LayerKind(weights=("kernel",))

A subclass is treated as the class that it inherits from if it has the same forward method; else W0 + S is presented.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from dctps.core.geometry import Geometry
from dctps.core.support import Support
from dctps.nn.sparse_part import (
    PartOfConv1d,
    PartOfConv2d,
    PartOfConv3d,
    PartOfLinear,
    PartOfWeight,
    SparsePart,
)
from dctps.ops.weight import is_eager

TABLE = "a table that is looked up, not a matrix that is multiplied"
Options = dict[str, Any]  # backend, device and dtype
MakePart = Callable[[nn.Module, str, Support, Options], SparsePart]  # layer, name of the weight, support, options


def part_of_weight(layer: nn.Module, name: str, support: Support, options: Options) -> SparsePart:
    """Return S for any layer."""
    return PartOfWeight(Geometry.of_shape(support.shape), support=support, **options)


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """How the layers of a class are fine-tuned.

    weights: the names of the parameters that get a sparse part.
    forward: the forward method of a fine-tuned layer, which takes the layer and its inputs. It reads W0 from
        `layer._parameters`, S from `layer.sparse_part[name]` and the bias as the attribute, which may be computed. By
        default the layer keeps its own method, which reads W0 + S as `self.<name>`.
    part: makes S for one weight; the default serves layers that keep their own method.
    guarded: whether `self.<name>` refuses changes, which would be lost. torch's attention has a fast path for plain
        tensors alone.
    why_not: returns why a layer cannot be fine-tuned, or None where it can.
    blocks: returns the names of the matrices that are stacked in a weight, given the layer and the name of the weight.
        Each has a transform of its own where weights are built as alpha D + S.
    why_no_transform: why the weights cannot be built with a transform, or None where they can.
    """

    weights: tuple[str, ...] = ("weight",)
    forward: Callable[..., Any] | None = None
    part: MakePart = part_of_weight
    guarded: bool = True
    why_not: Callable[[nn.Module], str | None] = lambda layer: None
    blocks: Callable[[Any, str], tuple[str, ...]] = lambda layer, weight: (weight,)
    why_no_transform: str | None = None


def kind_of(layer: nn.Module) -> LayerKind | None:
    """Return the kind of a plain layer, or None where it has no weight to fine-tune."""
    classes: list[Any] = list(type(layer).__mro__)
    for cls in classes:
        kind = LAYER_KINDS.get(cls) or LAYER_KINDS.get(f"{cls.__module__}.{cls.__qualname__}")
        if kind is not None:
            same = type(layer).forward is cls.forward and _reads_nothing_else(type(layer), cls)
            return kind if same else dataclasses.replace(kind, forward=None, part=part_of_weight)
    weight = layer._parameters.get("weight")
    return LayerKind() if weight is not None and (nn.parameter.is_lazy(weight) or weight.dim() >= 2) else None


def _reads_nothing_else(cls: type[nn.Module], known: type[nn.Module]) -> bool:
    """Return whether a subclass has the methods of a class that its forward method calls."""
    methods = ("_conv_forward", "_output_padding")
    return all(getattr(cls, name, None) is getattr(known, name, None) for name in methods)


# --- W0 and S apart ---------------------------------------------------------------------------------------------------


def _add_part(layer: Any, base_product: Callable[[Tensor, Tensor | None], Tensor], sparse_product: Tensor) -> Tensor:
    """Return the output of W0, scaled by alpha if there is one, plus that of S.

    base_product: returns the product with a weight plus a bias, by torch's own operator.
    """
    base, bias, part = layer._parameters["weight"], getattr(layer, "bias", None), layer.sparse_part["weight"]
    y = base_product(base, bias)
    if part.alpha is not None:  # with alpha = 1 it leaves every bit of y as it is
        without_bias = y if bias is None else y - bias.view(-1, *(1 for _ in part.geometry.kernel))
        y = y + (part.alpha - 1) * without_bias
    return y.add_(sparse_product) if is_eager() else y + sparse_product


def _linear(layer: Any, x: Tensor) -> Tensor:
    part, bias = layer.sparse_part["weight"], getattr(layer, "bias", None)
    y: Tensor | None = part.with_base(x, layer._parameters["weight"], bias)
    return y if y is not None else _add_part(layer, lambda weight, bias: F.linear(x, weight, bias), part(x))


def _part_of_linear(layer: Any, name: str, support: Support, options: Options) -> SparsePart:
    return PartOfLinear(layer.in_features, layer.out_features, bias=False, offset=None, support=support, **options)


def _convolution(layer: Any, x: Tensor) -> Tensor:
    return _add_part(layer, lambda weight, bias: layer._conv_forward(x, weight, bias), layer.sparse_part["weight"](x))


def _part_of_convolution(layer: Any, name: str, support: Support, options: Options) -> SparsePart:
    make = {1: PartOfConv1d, 2: PartOfConv2d, 3: PartOfConv3d}[len(layer.kernel_size)]
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    same = {name: getattr(layer, name) for name in names}
    return make(**same, bias=False, offset=None, support=support, **options)


def _transposed(layer: Any, x: Tensor, output_size: list[int] | None = None) -> Tensor:
    axes, batch = len(layer.kernel_size), x if x.dim() == len(layer.kernel_size) + 2 else x[None]
    sliding = layer.stride, layer.padding, layer.kernel_size, axes, layer.dilation
    extra = layer._output_padding(x, output_size, *sliding)
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]

    def base_product(weight: Tensor, bias: Tensor | None) -> Tensor:
        return run(batch, weight, bias, layer.stride, layer.padding, extra, layer.groups, layer.dilation)

    per_axis = zip(batch.shape[2:], *sliding[:3], layer.dilation, extra, strict=True)
    spatial = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, s, p, k, d, e in per_axis)
    y = _add_part(layer, base_product, layer.sparse_part["weight"].adjoint(batch, spatial))
    return y if batch is x else y[0]


def _part_of_transposed(layer: Any, name: str, support: Support, options: Options) -> SparsePart:
    geometry = Geometry(support.shape, layer.stride, layer.padding, layer.dilation, layer.groups)
    return PartOfWeight(geometry, support=support, **options)


def _stored_transposed(layer: Any, x: Tensor) -> Tensor:
    """The forward pass of transformers' Conv1D: x W + bias with W of shape (in, out)."""
    rows = x.reshape(-1, x.shape[-1])

    def base_product(weight: Tensor, bias: Tensor | None) -> Tensor:
        return rows @ weight if bias is None else torch.addmm(bias, rows, weight)

    y = _add_part(layer, base_product, layer.sparse_part["weight"].adjoint(rows))
    return y.reshape(*x.shape[:-1], y.shape[-1])


def _table(layer: Any, numbers: Tensor) -> Tensor:
    base, part = layer._parameters["weight"], layer.sparse_part["weight"]
    y = F.embedding(numbers, base, layer.padding_idx)
    rows: Tensor = part.rows(numbers, layer.padding_idx)
    return (y if part.alpha is None else y * part.alpha) + rows


def _why_not_table(layer: Any) -> str | None:
    if layer.max_norm is not None:
        return "max_norm rescales rows of the table in place, and W0 must stay"
    if layer.scale_grad_by_freq and isinstance(layer, nn.Embedding):
        return "scale_grad_by_freq changes gradients by counts, which S does not know"
    kind = kind_of(layer)
    if layer.sparse and kind is not None and kind.forward is None:
        return "sparse=True makes its gradient one of rows, which cannot pass through W0 + S; sparse=False serves"
    return None


def _why_not_recurrent(layer: nn.Module) -> str:
    return "recurrent weights, read directly by torch's fused kernels; W0 + S would be copied for them in each pass"


def _projections(layer: nn.Module, weight: str) -> tuple[str, ...]:
    return ("q_proj_weight", "k_proj_weight", "v_proj_weight") if weight == "in_proj_weight" else (weight,)


def _gates(layer: nn.RNNCellBase, weight: str) -> tuple[str, ...]:
    count = len(layer.get_parameter(weight)) // layer.hidden_size
    return (weight,) if count == 1 else tuple(f"{weight}_{gate}" for gate in range(count))


LAYER_KINDS: dict[type[nn.Module] | str, LayerKind] = {  # a class, or the full name of one that need not be installed
    nn.Linear: LayerKind(forward=_linear, part=_part_of_linear),
    nn.Conv1d: LayerKind(forward=_convolution, part=_part_of_convolution),
    nn.Conv2d: LayerKind(forward=_convolution, part=_part_of_convolution),
    nn.Conv3d: LayerKind(forward=_convolution, part=_part_of_convolution),
    nn.ConvTranspose1d: LayerKind(forward=_transposed, part=_part_of_transposed),
    nn.ConvTranspose2d: LayerKind(forward=_transposed, part=_part_of_transposed),
    nn.ConvTranspose3d: LayerKind(forward=_transposed, part=_part_of_transposed),
    nn.Embedding: LayerKind(forward=_table, why_not=_why_not_table, why_no_transform=TABLE),
    nn.EmbeddingBag: LayerKind(why_not=_why_not_table, why_no_transform=TABLE),
    nn.Bilinear: LayerKind(),
    nn.LayerNorm: LayerKind(()),
    nn.RMSNorm: LayerKind(()),
    nn.MultiheadAttention: LayerKind(
        ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"), guarded=False, blocks=_projections
    ),
    NonDynamicallyQuantizableLinear: LayerKind(guarded=False),  # the projection behind torch's attention
    nn.RNNBase: LayerKind((), why_not=_why_not_recurrent),
    nn.RNNCellBase: LayerKind(("weight_ih", "weight_hh"), blocks=_gates),
    "transformers.pytorch_utils.Conv1D": LayerKind(forward=_stored_transposed),
}
"""How layers are fine-tuned, by their class or its full name; an entry makes layers of your own tunable."""
