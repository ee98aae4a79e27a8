"""BatchNorm layers that compute together with the addition and the activation behind them (`fuse.py` chooses them).

A fused layer is torch's layer with another class: parameters, buffers, names, hooks and state are those of the layer.
Its forward returns a `Pending`, which holds x until the code behind the layer adds a residual or applies an activation;
then one operation computes everything (`ops/normalise.py`). The forward code of the network stays the user's own.
Whatever else is done with a `Pending` computes the output of the layer first, so the result is always that of torch.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.nn.lazy import Lazy, Product, check_unchanged, computed, has_hooks, version
from dctps.ops.finish import Finish
from dctps.ops.normalise import normalise, why_composed

ADDITIONS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}
ADDITIONS_IN_PLACE = {Tensor.add_, Tensor.__iadd__}
ACTIVATIONS: dict[Any, str] = {  # functions of torch, and the name of what they compute
    F.relu: "relu",
    F.relu_: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    Tensor.relu: "relu",
    Tensor.relu_: "relu",
    F.relu6: "relu6",
}

# weight, bias, running mean and variance, whether the statistics are the batch's, momentum, eps
Arguments = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, bool, float, float]
_APPLY: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "relu6": F.relu6}


class Pending(Lazy):
    """The output of a fused layer that is not computed yet: y = batchnorm(x) + residual.

    waits: whether an activation follows an addition; without one, the addition computes y.
    """

    def __init__(self, x: Tensor | Product, arguments: Arguments, waits: bool) -> None:
        self.x, self.arguments, self.waits = x, arguments, waits
        self.residual: Tensor | None = None
        self.versions = [] if isinstance(x, Product) else [version(x)]  # a product checks its own input
        self.has_gradient = torch.is_grad_enabled()
        self.result: Tensor | None = None

    def value(self, activation: str = "none") -> Tensor:
        """Return the output behind this activation; without one it is computed once."""
        if self.result is not None:
            return self.result if activation == "none" else _APPLY[activation](self.result)
        self._check()
        with torch.set_grad_enabled(self.has_gradient):
            result = _normalised(self.x, self.arguments, activation, self.residual)
        if self.arguments[4]:  # in training: a second call must not update the running statistics again
            self.arguments = (*self.arguments[:2], None, None, *self.arguments[4:])
        if activation == "none":
            self.result = result
        return result

    def _check(self) -> None:
        check_unchanged([t for t in (self.x, self.residual) if isinstance(t, Tensor)], self.versions)
        if self.has_gradient and not torch.is_grad_enabled():
            raise RuntimeError(
                "the output of a fused BatchNorm layer was first used where gradients are switched off, so its "
                "gradient would be lost; dctps.fuse(model, exclude=...) leaves the layer out"
            )

    def added(self, other: Any, in_place: bool = False) -> Any:
        """Return batchnorm(x) + other, still pending where an activation follows."""
        other = computed(other)
        fits = isinstance(other, Tensor) and other.shape == self.x.shape and other.dtype == self.x.dtype
        fits = fits and (isinstance(self.x, Tensor) or (type(other) is Tensor and other.is_cpu))
        fits = fits and (self.has_gradient or not (torch.is_grad_enabled() and other.requires_grad))
        if not fits or self.residual is not None or self.result is not None:
            return self.value().add_(other) if in_place else self.value() + other
        total = self if in_place else Pending(self.x, self.arguments, self.waits)
        total.residual, total.versions = other, [*self.versions, version(other)]
        total.has_gradient = self.has_gradient
        return total if self.waits else total.value()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, Pending) and func in ACTIVATIONS and not set(kwargs or {}) - {"inplace"}:
            return first.value(ACTIVATIONS[func])
        if len(args) == 2 and not kwargs and func in ADDITIONS | ADDITIONS_IN_PLACE:
            if isinstance(first, Pending):
                return first.added(args[1], func in ADDITIONS_IN_PLACE)
            if func in ADDITIONS:
                return args[1].added(first)
        return super().__torch_function__(func, types, args, kwargs)

    def relu(self) -> Tensor:
        return self.value("relu")

    relu_ = relu

    def __add__(self, other: Any) -> Any:
        return self.added(other)

    __radd__ = add = __add__

    def __iadd__(self, other: Any) -> Any:
        return self.added(other, in_place=True)

    add_ = __iadd__


def _normalised(x: Tensor | Product, arguments: Arguments, activation: str, residual: Tensor | None) -> Tensor:
    """Return activation(batchnorm(x) + residual); a product has a BatchNorm with running statistics behind it."""
    weight, bias, mean, variance, *_, eps = arguments
    if isinstance(x, Tensor):
        return normalise(x, *arguments, activation=activation, residual=residual)
    assert mean is not None
    assert variance is not None
    return x.finished(Finish(weight, bias, mean, variance, eps, residual, activation))


class FusedBatchNorm(_BatchNorm):
    """The base of the fused layers.

    followed_by: what the network does with the output, as `fuse` found: "", "relu", "add" or "add and relu".
    is_sheltered: whether nothing can change the input before the output is computed, as `fuse` found.
    """

    followed_by: str = ""
    is_sheltered: bool = False

    def __call__(self, x: Any) -> Any:
        """Return the output; hooks of the layer see tensors."""
        sees = self._forward_hooks or self._forward_pre_hooks or module_hooks._global_forward_pre_hooks
        sees = sees or module_hooks._global_forward_hooks
        return super().__call__(computed(x) if sees else x)

    def forward(self, x: Tensor) -> Any:
        if isinstance(x, torch.fx.Proxy):
            return x.tracer.create_proxy("call_module", x.tracer.path_of_module(self), (x,), {})
        if isinstance(x, Lazy) and not self._takes(x):
            x = x.value()
        uses_batch = self.training or self.running_mean is None
        state = [t for t in (self.weight, self.bias, self.running_mean, self.running_var) if t is not None]
        if why_composed(x.x if isinstance(x, Product) else x, state, uses_batch) is not None:
            return super().forward(x.value() if isinstance(x, Product) else x)
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        arguments = self._arguments(uses_batch)
        if not self.followed_by or has_hooks(self) or not self._may_wait(x):
            return _normalised(x, arguments, "none", None)
        return Pending(x, arguments, self.followed_by != "add")

    def _takes(self, x: Lazy) -> bool:
        """Return whether x is a product that can be normalised before it is written."""
        if not isinstance(x, Product) or x.result is not None or torch.is_grad_enabled():
            return False
        has_statistics = not self.training and self.running_mean is not None and self.running_var is not None
        return has_statistics and x.dim() > 2 and x.shape[1] == self.num_features

    def _may_wait(self, x: Tensor | Product) -> bool:
        """Return whether a change in place of x would be seen, or cannot be: inference mode counts no changes."""
        counts = not torch.is_inference_mode_enabled()
        return self.is_sheltered or isinstance(x, Product) or (counts and not x.is_inference())

    def _arguments(self, uses_batch: bool) -> Arguments:
        """Return the arguments of `normalise` by the rules of torch's layer, and count the batch."""
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else momentum
        updates = not self.training or self.track_running_stats
        running = (self.running_mean, self.running_var) if updates else (None, None)
        return self.weight, self.bias, *running, uses_batch, momentum, self.eps


class FusedBatchNorm1d(FusedBatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, computed with what follows it."""


class FusedBatchNorm2d(FusedBatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, computed with what follows it."""


class FusedBatchNorm3d(FusedBatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, computed with what follows it."""


FUSED: dict[type[nn.Module], type[FusedBatchNorm]] = {  # the layers of torch, and their fused versions
    nn.BatchNorm1d: FusedBatchNorm1d,
    nn.BatchNorm2d: FusedBatchNorm2d,
    nn.BatchNorm3d: FusedBatchNorm3d,
}
