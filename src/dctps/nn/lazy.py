"""Outputs of layers that are computed when they are used, so that what follows can be computed with them.

`fuse.py` finds the layers whose outputs may wait. An output that waits is no tensor, but behaves as one: whatever is
done with it, other than what it waits for, computes it first.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks


class Lazy:
    """An output that is not computed yet."""

    def value(self) -> Tensor:
        """Return the output."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return func(*map(computed, args), **{key: computed(value) for key, value in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the output; only names that the class does not have come here."""
        return getattr(self.value(), name)


def computed(value: Any) -> Any:
    """Return an argument with every output in it computed."""
    if isinstance(value, Lazy):
        return value.value()
    if type(value) in (list, tuple):
        return type(value)(map(computed, value))
    return value


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.value(), name)(*map(computed, args))


_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]
_OPERATORS = [f"{side}{name}" for name in _BINARY for side in ("", "r", "i")]
_OTHERS = ["neg", "abs", "getitem", "setitem", "len", "iter", "gt", "lt", "ge", "le", "eq", "ne", "bool", "float"]
for _name in _OPERATORS + _OTHERS:
    setattr(Lazy, f"__{_name}__", _operator(f"__{_name}__"))


def has_hooks(layer: nn.Module) -> bool:
    """Return whether somebody looks at the output of a layer, or at its gradient."""
    own = layer._forward_hooks or layer._backward_hooks or layer._backward_pre_hooks
    everywhere = module_hooks._global_forward_hooks or module_hooks._global_backward_hooks
    return bool(own or everywhere or module_hooks._global_backward_pre_hooks)


def version(tensor: Tensor) -> int | None:
    """Return how often a tensor was changed in place, or None for a tensor of inference mode, which does not count."""
    return None if tensor.is_inference() else tensor._version


def check_unchanged(tensors: Iterable[Tensor], versions: Iterable[int | None]) -> None:
    """RuntimeError if a tensor was changed in place since it had this version."""
    if [version(t) for t in tensors] != list(versions):
        raise RuntimeError(
            "a tensor was changed in place between a layer that reads it and the place where the output of the layer "
            "is computed, which is the activation behind a fused BatchNorm layer; dctps.fuse(model, exclude=...) "
            "leaves the layer out"
        )


class Product(Lazy):
    """The output (alpha D + S) x + bias of a layer, which a BatchNorm layer is about to read.

    compute: returns the output, given the tensors of the layer and x, behind a `Finish` where one is given.
    """

    def __init__(
        self, x: Tensor, layer: tuple[Tensor | None, ...], shape: torch.Size, compute: Callable[..., Tensor]
    ) -> None:
        self.x, self.layer, self.shape, self.compute = x, layer, shape, compute
        self.dtype, self.is_inference_mode = x.dtype, torch.is_inference_mode_enabled()
        self.versions = [version(t) for t in self._tensors()]
        self.result: Tensor | None = None

    def _tensors(self) -> list[Tensor]:
        return [self.x, *(t for t in self.layer if t is not None)]

    def dim(self) -> int:
        return len(self.shape)

    def value(self) -> Tensor:
        """Return the output, which is computed once."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in self._tensors()):
            warnings.warn(
                "a sparse layer in evaluation was called where gradients are switched off, and its output is used "
                "where they are switched on: the layer gets no gradient (a reentrant checkpoint that ends behind the "
                "layer does so; use_reentrant=False does not)",
                stacklevel=2,
            )
        if self.result is None:
            self.result = self.finished(None)
        return self.result

    def finished(self, finish: Any) -> Tensor:
        """Return the output behind a `Finish`."""
        check_unchanged(self._tensors(), self.versions)
        with torch.inference_mode(self.is_inference_mode), torch.no_grad():
            return self.compute(self.layer, self.x, finish)
