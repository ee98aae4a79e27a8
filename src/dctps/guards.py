"""What surrounds a training: signals that wait for the end of a step, denormal numbers, and where infinities begin."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn


def first_bad_layer(model: nn.Module, x: Tensor | None) -> str:
    """Which layer's output is the first that is not finite, and whether its own numbers already are not."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the first parameter that is not finite is {name!r}"
    if x is None:
        return "every parameter is finite"
    bad: list[str] = []

    def look(name: str) -> Any:
        return lambda module, inputs, y: (
            bad.append(name) if isinstance(y, Tensor) and not bool(y.isfinite().all()) else None
        )

    leaves = [(n, m) for n, m in model.named_modules() if not list(m.children())]
    handles = [module.register_forward_hook(look(name)) for name, module in leaves]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return f"the first output that is not finite is that of {bad[0]!r}" if bad else "every output is finite by itself"


class Signals:
    """Ctrl-C and SIGTERM wait for the end of a step; a second Ctrl-C does not."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "Signals":
        with contextlib.suppress(ValueError):  # outside the main thread signals are not ours to take
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *error: object) -> None:
        for number, handler in getattr(self, "before", {}).items():
            signal.signal(number, handler)


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Sparse networks without BatchNorm underflow, and arithmetic on denormal numbers is several times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
