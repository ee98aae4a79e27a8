"""The weight W = alpha D + S as a dense tensor, differentiable in the values and alpha.

`dctps::weight` is an operator of `torch.library`, which torch.compile and torch.export treat as one operator. Operators
take tensors, numbers and strings, so an offset is passed by its name.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dctps.core.offsets import Offset, TransformOffset
from dctps.core.patch_offset import PatchOffset
from dctps.ops.offset_torch import stored_weight
from dctps.ops.sparse import check_positions

FEW_WEIGHTS = 1 << 15  # weights up to which the nodes of autograd's graph cost more than the operations in them


@functools.lru_cache(maxsize=4096)
def offset_by_name(name: str, shape: tuple[int, ...]) -> PatchOffset | None:
    """Return the offset with this name for a weight of this shape, or None for the empty name."""
    return TransformOffset.parse(name).bind(shape) if name else None


def name_of(offset: Offset | None, alpha: Tensor | None) -> tuple[str, Tensor | None]:
    """Return the name and the alpha that operators take: ("", None) where there is no offset, or one without a name."""
    return (offset.name, alpha) if isinstance(offset, PatchOffset) else ("", None)


def torch_func_is_active() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp ...) or forward-mode differentiation is active.

    These do not work with the operators of torch.library (jvp would silently give zeros), so W is then composed of
    torch's own operations.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_eager() -> bool:
    """Return whether operations run at once on numbers, and nobody traces, transforms or intercepts them."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


def refuse_onnx() -> None:
    """Raise ValueError while torch.onnx exports a network.

    It has two ways to look at a network: it runs a layer's own code, or, where torch.compile looks on and is told that
    nothing is exported, the operators on fake tensors. So both call this.
    """
    if torch.onnx.is_in_onnx_export():
        raise ValueError(
            "ONNX has no operator for W = alpha D + S; export a dense copy: dctps.densify(copy.deepcopy(net)) first"
        )


def dense_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:  # of shape `shape`
    """Return alpha D + S, differentiable in values and alpha."""
    if torch_func_is_active():
        return _composed_weight(values, positions, alpha, offset, shape)
    if is_eager() and isinstance(offset, PatchOffset) and alpha is not None and not values.is_meta:
        build = _small_weight if math.prod(shape) <= FEW_WEIGHTS else _large_weight
        return build(values, positions, alpha, offset)
    name, named_alpha = name_of(offset, alpha)
    dense: Tensor = weight(values, positions, named_alpha, name, list(shape))
    if offset is None or alpha is None or named_alpha is not None:
        return dense
    return dense + alpha * _offset_weight(offset, shape, values)


def _composed_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:
    """Return alpha D + S, composed of torch's own operations."""
    check_positions(positions, shape)
    flat = torch.zeros(math.prod(shape), dtype=values.dtype, device=values.device)
    dense = flat.index_put((positions.long(),), values).view(shape)
    return dense if offset is None or alpha is None else dense + alpha * _offset_weight(offset, shape, values)


def _small_weight(values: Tensor, positions: Tensor, alpha: Tensor, offset: PatchOffset) -> Tensor:
    """Return alpha D + S by two operations of torch, whose nodes in autograd's graph cost less than one of our own."""
    check_positions(positions, offset.weight_shape)
    D = stored_weight(offset, values.dtype, values.device)
    return (D.view(-1) * alpha).index_add_(0, positions, values).view(offset.weight_shape)


def _large_weight(values: Tensor, positions: Tensor, alpha: Tensor, offset: PatchOffset) -> Tensor:
    """Return alpha D + S by one node in autograd's graph, whose gradients read that of W once, without a copy."""
    if torch.is_grad_enabled():
        dense: Tensor = _Weight.apply(values, alpha, positions, offset)  # type: ignore[no-untyped-call]
        return dense
    return _build(values, positions, alpha, offset.name, offset.weight_shape)


def _offset_weight(offset: Offset, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return D in the shape of the weight, in the type and on the device of `like`."""
    if isinstance(offset, PatchOffset):
        return stored_weight(offset, like.dtype, like.device)
    return offset.matrix().to(like).reshape(shape)


# --- the operator ---------------------------------------------------------------------------------------------------


def _weight_by_name(name: str, shape: Sequence[int], like: Tensor) -> Tensor:
    """Return the offset D with this name in the shape of the weight, in the type and on the device of `like`."""
    offset = offset_by_name(name, tuple(shape))
    assert offset is not None
    return stored_weight(offset, like.dtype, like.device)


@torch.library.custom_op("dctps::weight", mutates_args=())
def weight(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    """Return alpha D + S in the given shape, or S alone where alpha is None."""
    return _build(values, positions, alpha, offset, shape)


def _build(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: Sequence[int]) -> Tensor:
    check_positions(positions, shape)
    dense = values.new_zeros(shape) if alpha is None else alpha * _weight_by_name(offset, shape, values)
    dense.view(-1).index_add_(0, positions, values)
    return dense


@weight.register_fake
def _(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    refuse_onnx()
    return values.new_empty(shape)


@torch.library.custom_op("dctps::weight_backward", mutates_args=())
def weight_backward(
    grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of values and alpha for the dense gradient of W."""
    values = grad.reshape(-1).index_select(0, positions)
    alpha = torch.sum(grad * _weight_by_name(offset, shape, grad)) if needs_alpha else grad.new_zeros(())
    return values, alpha


@weight_backward.register_fake
def _(grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool) -> tuple[Tensor, Tensor]:
    return grad.new_empty(positions.shape), grad.new_empty(())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, positions, alpha, ctx.offset, ctx.shape = inputs
    ctx.alpha_shape = None if alpha is None else alpha.shape
    ctx.save_for_backward(positions)


def _first_derivative(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs_alpha = ctx.needs_input_grad[2]
    values, alpha = weight_backward(grad, *ctx.saved_tensors, ctx.offset, ctx.shape, needs_alpha)
    return values, None, alpha.reshape(ctx.alpha_shape) if needs_alpha else None, None, None


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, positions, ctx.offset, ctx.shape, ctx.needs_alpha = inputs
    ctx.save_for_backward(positions)


def _second_derivative(ctx: Any, values: Tensor, alpha: Tensor) -> tuple[Tensor | None, ...]:
    """Return the second derivatives: `weight_backward` is the adjoint of `weight`, so its derivative is `weight`."""
    grad = weight(values, *ctx.saved_tensors, alpha if ctx.needs_alpha else None, ctx.offset, ctx.shape)
    return grad, None, None, None, None


weight.register_autograd(_first_derivative, setup_context=_setup)
weight_backward.register_autograd(_second_derivative, setup_context=_backward_setup)


class _Weight(torch.autograd.Function):
    """The same as the operator, for callers that nobody traces; its second derivatives are those of the operator."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, alpha: Tensor, positions: Tensor, offset: PatchOffset) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.offset, ctx.alpha_shape = offset, alpha.shape
        return _build(values, positions, alpha, offset.name, offset.weight_shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (positions,), offset, needs_alpha = ctx.saved_tensors, ctx.offset, ctx.needs_input_grad[1]
        if torch.is_grad_enabled() or not is_eager() or grad.dtype not in (torch.float32, torch.float64):
            values, alpha = weight_backward(grad, positions, offset.name, list(offset.weight_shape), needs_alpha)
        else:
            flat, D = grad.reshape(-1), stored_weight(offset, grad.dtype, grad.device).view(-1)
            values, alpha = flat.index_select(0, positions), torch.dot(flat, D) if needs_alpha else None
        return values, alpha.reshape(ctx.alpha_shape) if needs_alpha else None, None, None
