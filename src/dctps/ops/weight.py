"""W = alpha D + S as a dense tensor, differentiable in the values and alpha.

`dctps::weight` is an operator of `torch.library`, so torch.compile and torch.export see it as it is. Operators take
tensors, numbers and strings: an offset comes in as its name.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dctps.core.offsets import Offset, PatchOffset, TransformOffset
from dctps.ops.offset_torch import stored_weight


@functools.lru_cache(maxsize=4096)
def offset_by_name(name: str, shape: tuple[int, ...]) -> PatchOffset | None:
    """The offset of a weight of this shape by its name; None for the empty name."""
    return TransformOffset.parse(name).bind(shape) if name else None


def name_of(offset: Offset | None, alpha: Tensor | None) -> tuple[str, Tensor | None]:
    """The name of an offset and its alpha as operators take them; an offset of a user's own class has no name."""
    return (offset.name, alpha) if isinstance(offset, PatchOffset) else ("", None)


def transformed() -> bool:
    """Whether torch.func (grad, vmap, jvp ...) or forward-mode differentiation is at work.

    They look into computations in a way that operators of torch.library do not allow (jvp would silently give zeros),
    so W is then composed from torch's own operations.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def dense_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:  # of shape `shape`
    """alpha D + S, differentiable in values and alpha."""
    if transformed():
        return _composed_weight(values, positions, alpha, offset, shape)
    name, named = name_of(offset, alpha)
    dense: Tensor = weight(values, positions, named, name, list(shape))
    if offset is None or alpha is None or named is not None:
        return dense
    return dense + alpha * offset.matrix().to(values).reshape(shape)


def _composed_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:
    flat = torch.zeros(math.prod(shape), dtype=values.dtype, device=values.device)
    dense = flat.index_put((positions.long(),), values).view(shape)
    if offset is None or alpha is None:
        return dense
    if isinstance(offset, PatchOffset):
        return dense + alpha * stored_weight(offset, values.dtype, values.device)
    return dense + alpha * offset.matrix().to(values).reshape(shape)


# --- the operator ---------------------------------------------------------------------------------------------------


def _stored(name: str, shape: list[int], like: Tensor) -> Tensor:
    offset = offset_by_name(name, tuple(shape))
    assert offset is not None
    return stored_weight(offset, like.dtype, like.device)


@torch.library.custom_op("dctps::weight", mutates_args=())
def weight(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    """alpha D + S of the given shape; S alone where alpha is None."""
    dense = values.new_zeros(shape) if alpha is None else alpha * _stored(offset, shape, values)
    dense.view(-1).index_add_(0, positions, values)
    return dense


@weight.register_fake
def _(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    return values.new_empty(shape)


@torch.library.custom_op("dctps::weight_backward", mutates_args=())
def weight_backward(
    grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of values and alpha from the dense gradient of W."""
    values = grad.reshape(-1).index_select(0, positions)
    alpha = torch.sum(grad * _stored(offset, shape, grad)) if needs_alpha else grad.new_zeros(())
    return values, alpha


@weight_backward.register_fake
def _(grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool) -> tuple[Tensor, Tensor]:
    return grad.new_empty(positions.shape), grad.new_empty(())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, positions, _, ctx.offset, ctx.shape = inputs
    ctx.save_for_backward(positions)


def _first_derivative(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs_alpha = ctx.needs_input_grad[2]
    values, alpha = weight_backward(grad, *ctx.saved_tensors, ctx.offset, ctx.shape, needs_alpha)
    return values, None, alpha if needs_alpha else None, None, None


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, positions, ctx.offset, ctx.shape, ctx.needs_alpha = inputs
    ctx.save_for_backward(positions)


def _second_derivative(ctx: Any, values: Tensor, alpha: Tensor) -> tuple[Tensor | None, ...]:
    """`weight_backward` is the adjoint of `weight`, so its derivative is `weight` again."""
    grad = weight(values, *ctx.saved_tensors, alpha if ctx.needs_alpha else None, ctx.offset, ctx.shape)
    return grad, None, None, None, None


weight.register_autograd(_first_derivative, setup_context=_setup)
weight_backward.register_autograd(_second_derivative, setup_context=_backward_setup)
