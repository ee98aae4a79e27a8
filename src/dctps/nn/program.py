"""The forward pass of a network in evaluation as a few calls: chains of the kernels, and torch's operations between.

A program serves inputs of one shape, layout and type. Outputs that only the kernels read lie in one piece of memory,
which each run allocates anew. All others are tensors of their own, so no run overwrites the result of another one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.node import map_arg

from dctps.nn.lazy import computed
from dctps.nn.paths import Node
from dctps.ops.native.chain import Placed

ALIGNMENT = 64  # bytes of a cache line


class ChainPart(NamedTuple):
    """Steps that the kernels compute in one call."""

    chain: Any
    reads: list[tuple[Node, Placed]]  # results of other parts
    writes: list[tuple[Node, Placed]]  # results that other parts read


class CallPart(NamedTuple):
    """A call of torch's."""

    function: Any
    args: tuple[Any, ...]  # nodes stand for their results
    kwargs: dict[str, Any]
    node: Node


class Program(NamedTuple):
    """The forward pass for inputs of one kind."""

    parts: list[ChainPart | CallPart]
    offsets: list[
        int
    ]  # in the common memory, of all tensors of chains by their numbers; 0 for those that lie elsewhere
    size: int  # bytes of the common memory
    dtype: torch.dtype
    source: Node
    result: Node

    def run(self, x: Tensor, threads: int) -> Tensor | None:
        """Return the output for x, or None where the program does not fit any more."""
        memory = torch.empty(self.size + ALIGNMENT, dtype=torch.uint8)
        start = -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT
        addresses = [start + offset for offset in self.offsets]
        found: dict[Node, Any] = {self.source: x}
        for part in self.parts:
            if isinstance(part, CallPart):
                args, kwargs = map_arg((part.args, part.kwargs), found.__getitem__)
                found[part.node] = part.function(*args, **kwargs)
            elif not self._run_chain(part, found, addresses, threads):
                return None
        result: Tensor = computed(found[self.result])
        return result

    def _run_chain(self, part: ChainPart, found: dict[Node, Any], addresses: list[int], threads: int) -> bool:
        for node, placed in part.reads:
            x = found[node] = computed(found[node])
            if (
                type(x) is not Tensor
                or x.shape != placed.shape
                or x.stride() != placed.strides
                or x.dtype != self.dtype
            ):
                return False
            addresses[placed.number] = x.data_ptr()
        for node, placed in part.writes:
            y = found[node] = torch.empty_strided(placed.shape, placed.strides, dtype=self.dtype)
            addresses[placed.number] = y.data_ptr()
        done: bool = part.chain.run(addresses, threads)
        return done


class Room:
    """The places of tensors in one piece of memory: a place is used again when nobody reads its tensor any more."""

    def __init__(self, itemsize: int) -> None:
        self.itemsize, self.size = itemsize, 0
        self.offsets: list[int] = []  # of all tensors by number; those that lie elsewhere have 0
        self._free: list[tuple[int, int]] = []  # sizes and offsets
        self._taken: dict[int, tuple[int, int]] = {}

    def add(self, elements: int) -> int:
        """Return the number of a new tensor; one without elements lies elsewhere."""
        number = len(self.offsets)
        self.offsets.append(0)
        if elements:
            need = -(-elements * self.itemsize // ALIGNMENT) * ALIGNMENT
            fitting = [place for place in self._free if place[0] >= need]
            if fitting:
                place = min(fitting)
                self._free.remove(place)
            else:
                place, self.size = (need, self.size), self.size + need
            self._taken[number], self.offsets[number] = place, place[1]
        return number

    def release(self, number: int) -> None:
        """Let later tensors have the place of this one."""
        if number in self._taken:
            self._free.append(self._taken.pop(number))
