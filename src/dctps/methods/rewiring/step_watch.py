"""Noticing that the optimiser of a rewiring is also called directly, so that every step would be taken twice."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch


class StepWatch:
    """Counts the steps that an optimiser takes outside of `own_step`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.foreign, self._own = 0, False
        this = weakref.ref(self)  # the optimiser must not keep a rewiring alive

        def count(*_: Any) -> None:
            watch = this()
            if watch is not None and not watch._own:
                watch.foreign += 1

        optimizer.register_step_post_hook(count)

    @contextlib.contextmanager
    def own_step(self) -> Iterator[None]:
        """Take a step of the optimiser that does not count."""
        self._own = True
        try:
            yield
        finally:
            self._own = False

    def check(self) -> None:
        """Raise RuntimeError if the optimiser has taken a step by itself since the last check."""
        foreign, self.foreign = self.foreign, 0
        if foreign:
            raise RuntimeError(
                "optimizer.step() was called, and then rewire.step(), which takes a step of the optimiser as well: "
                "every step would be taken twice; call rewire.step() alone"
            )
