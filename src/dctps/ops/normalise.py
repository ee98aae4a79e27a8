"""BatchNorm, the addition of a residual and an activation as one operation, y = activation(batchnorm(x) + residual).

The native kernels read x twice and write y once; torch's three operations read and write two tensors more. What the
activation has cut is not stored: the backward pass finds it from x, by the arithmetic of the forward pass, or from y
where a residual was added. The kernels serve CPUs, float32 and float64. Everywhere else `composed` computes the same by
torch's own operations: on other devices, in the half types, under autocast and torch.func, and where torch.compile,
torch.export or torch.jit look on, which thus see operations that they know and fuse themselves.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dctps.base.registry import lookup
from dctps.ops import native
from dctps.ops.finish import Finish
from dctps.ops.weight import torch_func_is_active

ACTIVATIONS = {"none": 0, "relu": 1, "relu6": 2}  # as the kernels number them


def normalise(
    x: Tensor,  # (batch, channels, ...)
    weight: Tensor | None,  # (channels,)
    bias: Tensor | None,  # (channels,)
    running_mean: Tensor | None,  # (channels,)
    running_var: Tensor | None,  # (channels,)
    training: bool,
    momentum: float,
    eps: float,
    activation: str = "none",
    residual: Tensor | None = None,  # like x
) -> Tensor:
    """Return activation(batchnorm(x) + residual), with the arguments and rules of torch's `F.batch_norm`.

    training: whether the statistics are those of the batch; the running ones, if any, are then updated in place.
    """
    lookup(ACTIVATIONS, activation, "activation")
    given = [t for t in (weight, bias, running_mean, running_var, residual) if t is not None]
    if why_composed(x, given, training) is None and (residual is None or residual.shape == x.shape):
        settings = training, momentum, eps, ACTIVATIONS[activation]
        result: Tensor = _Normalise.apply(x, weight, bias, residual, running_mean, running_var, *settings)  # type: ignore[no-untyped-call]
        return result
    return composed(x, weight, bias, running_mean, running_var, training, momentum, eps, activation, residual)


def finished(y: Tensor, finish: Finish) -> Tensor:
    """Return the output y of a layer, finished."""
    norm = finish.weight, finish.bias, finish.mean, finish.variance
    return normalise(y, *norm, False, 0.0, finish.eps, finish.activation, finish.residual)


def composed(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Return what `normalise` returns, computed by torch's operations one after the other."""
    y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    y = y if residual is None else y + residual
    return {"none": lambda: y, "relu": lambda: F.relu(y), "relu6": lambda: F.relu6(y)}[activation]()


def why_composed(x: Tensor, others: list[Tensor], training: bool) -> str | None:
    """Return why the kernels do not serve these tensors, or None where they do."""
    if native.kernels is None:
        return native.WHY_NOT
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or torch_func_is_active():
        return "torch traces or transforms the function"
    if torch._C._len_torch_dispatch_stack() or torch.is_autocast_enabled("cpu"):
        return "a mode of torch is active that sees operations or changes their types"
    tensors = [x, *others]
    if any(type(t) is not Tensor and type(t) is not nn.Parameter for t in tensors):
        return "a tensor has a class of its own"
    if any(t.device.type != "cpu" or t.dtype != x.dtype for t in tensors) or x.dtype not in _TYPES:
        return "the kernels take tensors of float32 or float64 on a CPU"
    if x.dim() < 2 or x.numel() <= (x.shape[1] if training else 0):
        return "there are too few elements"
    return None


_TYPES = (torch.float32, torch.float64)


class _Normalise(torch.autograd.Function):
    """The operation by the native kernels; a backward pass that is differentiated again is composed of torch's."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        activation: int,
    ) -> Tensor:
        x = _dense(x)
        y, saved = torch.empty_like(x), x.new_empty(5 * x.shape[1])
        added = None if residual is None else as_in(x, residual)
        channels = [None if t is None else t.detach().contiguous() for t in (weight, bias, running_mean, running_var)]
        arguments = x.detach(), added, *channels, training, momentum, eps, activation, y, saved
        native.kernels.normalise_forward(*arguments, torch.get_num_threads())
        if training and running_mean is not None and running_var is not None:
            for running, updated in ((running_mean, channels[2]), (running_var, channels[3])):
                _update(running, updated)
        ctx.settings = training, eps, activation
        ctx.save_for_backward(x, weight, saved, y if residual is not None and activation else None)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        compute = _composed_gradients if torch.is_grad_enabled() else _native_gradients
        return (*compute(ctx, grad), None, None, None, None, None, None)


def _update(running: Tensor, updated: Tensor | None) -> None:
    """Tell autograd that the kernels have changed a running statistic; copy it where they had a contiguous copy."""
    assert updated is not None
    if updated.data_ptr() == running.data_ptr():
        torch.autograd.graph.increment_version(running)
    else:
        running.copy_(updated)


def _native_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight, bias and residual by the kernels."""
    (x, _, saved, y), (training, _, activation) = ctx.saved_tensors, ctx.settings
    needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
    grad = as_in(x, grad)
    x_grad = torch.empty_like(x) if needs_x else None
    cut = torch.empty_like(x) if needs_residual and activation else None
    weight_grad, bias_grad = (x.new_empty(x.shape[1]) if needed else None for needed in (needs_weight, needs_bias))
    arguments = grad, x.detach(), y, saved, training, activation, x_grad, cut, weight_grad, bias_grad
    native.kernels.normalise_backward(*arguments, torch.get_num_threads())
    return x_grad, weight_grad, bias_grad, (cut if activation else grad) if needs_residual else None


def _composed_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the same gradients by operations of torch, which can be differentiated again.

    With g the gradient behind the activation, v the weight over the standard deviation and h the normalised x, they are
    v (g - mean(g) - h mean(g h)), sum(g h), sum(g) and g; where the statistics are constants, the first one is v g.
    """
    (x, weight, saved, y), (training, eps, activation) = ctx.saved_tensors, ctx.settings
    axes, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    mean, _, scale, shift, inverse = saved.view(5, *shape)
    if activation:
        y = (x.detach() - mean) * scale + shift if y is None else y
        grad = grad.masked_fill((y <= 0) | (y >= 6) if activation == ACTIVATIONS["relu6"] else y <= 0, 0)
    if training:
        mean = x.mean(axes, keepdim=True)
        inverse = ((x - mean).square().mean(axes, keepdim=True) + eps).rsqrt()
    normal = (x - mean) * inverse
    bias_grad, weight_grad = grad.sum(axes), (grad * normal).sum(axes)
    count = x.numel() // x.shape[1]
    centred = grad - (bias_grad.view(shape) + normal * weight_grad.view(shape)) / count if training else grad
    x_grad = centred * (inverse if weight is None else inverse * weight.view(shape))
    gradients = x_grad, weight_grad, bias_grad, grad
    return tuple(g if needed else None for g, needed in zip(gradients, ctx.needs_input_grad[:4], strict=True))


def _dense(x: Tensor) -> Tensor:
    """Return x contiguous or channels-last in memory; a copy where it is neither."""
    return x if x.is_contiguous() or x.movedim(1, -1).is_contiguous() else x.contiguous()


def as_in(x: Tensor, other: Tensor) -> Tensor:
    """Return another tensor of x's shape without its gradient, in the memory format of x."""
    return other.detach() if other.stride() == x.stride() else torch.empty_like(x).copy_(other.detach())
