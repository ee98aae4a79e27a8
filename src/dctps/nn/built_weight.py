"""The weight of a sparse layer for code that expects a parameter: a tensor that refuses to be changed.

`layer.weight` is built at each access, so a change in place would be lost without a word. Code that only reads it, as
`F.linear(x, layer.weight)` or `layer.weight.data.norm()`, gets ordinary tensors.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dctps.ops.weight import torch_func_is_active


class BuiltWeight(Tensor):
    """A tensor that was built for reading; a change in place of it, or of a view of it, is a RuntimeError."""

    advice: str  # what to do instead
    part: Any = None  # what built it, if several layers share that
    _is_hf_initialized = True  # transformers draws the weights anew that do not say so when it has loaded a file

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        for changed in _changed(func, args, kwargs):
            if isinstance(changed, BuiltWeight):
                name = getattr(func, "__name__", str(func))
                raise RuntimeError(f"{name} would change a weight that is built at each access: {changed.advice}")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        source = next((a for a in args if isinstance(a, BuiltWeight)), None)
        if isinstance(result, np.ndarray):
            result.setflags(write=False)
        if isinstance(result, list | tuple) and type(result) in (list, tuple):
            return type(result)(_guarded(part, source) for part in result)
        return _guarded(result, source)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Tensor:
        plain: Tensor = _plain(self).detach().clone()
        return plain


def refuse_changes(weight: Tensor, advice: str) -> Tensor:
    """Return the weight as one that refuses changes; while torch traces or transforms a function, as it is."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or torch_func_is_active():
        return weight
    with torch._C.DisableTorchFunctionSubclass():
        built = weight.as_subclass(BuiltWeight)
    built.advice = advice
    return built


def _guarded(result: Any, source: BuiltWeight | None) -> Any:
    """Return a result that shares the memory of a built weight as one that refuses changes, any other as it is."""
    if isinstance(result, Tensor) and source is not None and _shares_memory(result, source):
        return refuse_changes(result, source.advice)
    return _plain(result)


def _changed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that a function changes in place."""
    name = getattr(func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True
    sets = name in ("__setitem__", "__set__", "__delete__") or name in _IN_PLACE_OPERATORS
    first = (args or (kwargs.get("tensor", kwargs.get("input")),))[0] if in_place or sets else None
    changed = [first, kwargs.get("out")]
    return [part for one in changed for part in (one if isinstance(one, list | tuple) else [one])]


_IN_PLACE_OPERATORS = {
    f"__i{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
}


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        if a.is_meta or b.is_meta or a.layout != torch.strided:
            return False
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _plain(result: Any) -> Any:
    """Return a result as a tensor of torch's own class."""
    if isinstance(result, BuiltWeight):
        with torch._C.DisableTorchFunctionSubclass():
            return result.as_subclass(Tensor)
    return result
