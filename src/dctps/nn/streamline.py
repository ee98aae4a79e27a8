"""`streamline`: a network whose repeated forward passes in evaluation are a few calls of the kernels.

The forward code of a network runs in Python, and so does the call of each layer. On a single image that takes as long
as the arithmetic. torch.fx reads the forward code once. After that one call of the kernels computes all sparse
convolutions that follow one another, with BatchNorm, residuals, activations and max-pools between them. The weights are
read in each pass. Whatever is unusual (gradients, hooks, training, another device or type, a tracer that looks on) is
left to the network itself.
"""

import threading
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from dctps.nn.paths import trace
from dctps.nn.program import Program
from dctps.nn.program_maker import Maker, record
from dctps.nn.watch import Watch
from dctps.ops import autotune, native
from dctps.ops.weight import is_eager

MOST_PROGRAMS = 8  # kinds of inputs that are remembered
MOST_MADE = 64  # programs that are made for one network, whatever changes


def streamline(net: nn.Module) -> "Streamlined":
    """Return a module that computes what the network computes, with less work around the arithmetic in evaluation.

        fast = dctps.streamline(dctps.fuse(net)).eval()
        with torch.inference_mode():
            y = fast(x)

    The network stays as it is, and shares its parameters with the new module. What its forward code decides by anything
    else than the attributes of its modules (a global variable, say) is decided once.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"streamline(net) takes a network of torch, not a {type(net).__name__}")
    return net if isinstance(net, Streamlined) else Streamlined(net)


class Streamlined(nn.Module):
    """A network, and the programs by which it is computed in evaluation."""

    why_not: str = ""  # why the last program that was asked for could not be made

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self._forget()

    def _forget(self) -> None:
        self._programs: dict[Hashable, Program | None] = {}
        self._watch: Watch | None = None
        self._made, self._lock = 0, threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        mine = "_programs", "_watch", "_made", "_lock"
        return {name: value for name, value in self.__dict__.items() if name not in mine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._forget()

    def forward(self, x: Tensor) -> Any:
        if not is_eager() or not _is_usual(x):
            return self.net(x)
        watch = self._watch
        if watch is None or not watch.holds():
            watch = self._watch = Watch(self.net)
            self._programs = {}
        if watch.has_hooks():
            return self.net(x)
        threads = torch.get_num_threads()
        key = x.shape, x.stride(), x.dtype, threads, autotune.settings()
        if key not in self._programs:
            return self._make(x, key, threads)
        program = self._programs[key]
        y = None if program is None else program.run(x, threads)
        if y is None and program is not None:  # a support has changed
            self._programs.pop(key, None)
        return self.net(x) if y is None else y

    def _make(self, x: Tensor, key: Hashable, threads: int) -> Any:
        """Compute the output for x, and make the program for inputs like x."""
        if self._made >= MOST_MADE or not self._lock.acquire(blocking=False):
            return self.net(x)
        try:
            self._made += 1
            if len(self._programs) >= MOST_PROGRAMS:
                self._programs.clear()
            self._programs[key] = None
            found = "it trains" if any(m.training for m in self.net.modules()) else trace(self.net)
            if isinstance(found, str):
                self.why_not = found
                return self.net(x)
            shown, y = record(found, x)
            self._programs[key] = Maker(found, shown, x.dtype, threads).make()
            self.why_not = "" if self._programs[key] is not None else "the kernels compute none of its layers"
            return y
        finally:
            self._lock.release()


def _is_usual(x: Any) -> bool:
    if type(x) is not Tensor or torch.is_grad_enabled() or torch._C._is_any_autocast_enabled():
        return False
    fits = x.is_cpu and x.dtype in (torch.float32, torch.float64) and not x.requires_grad
    return fits and native.kernels is not None
