"""The tensors of an example, the same for other numbers of samples, and the batches that an exported file takes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Batches:
    """The numbers of samples that a file takes; `refused`: those that were tried and that the network does not take."""

    smallest: int
    largest: int | None  # None: there is no largest one
    refused: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        """Whether batches may have any size."""
        return self == Batches(1, None)

    def __contains__(self, samples: int) -> bool:
        last = samples if self.largest is None else self.largest
        return self.smallest <= samples <= last and samples not in self.refused

    def __str__(self) -> str:
        if self.smallest == self.largest:
            return f"batches of {self.smallest} only, which the network asks for"
        upwards = "any size" if self.smallest == 1 else f"{self.smallest} or more"
        sizes = upwards if self.largest is None else f"{self.smallest} to {self.largest}"
        return f"batches of {sizes}{self._but()}"

    def _but(self) -> str:
        return f" that the network takes (not {', '.join(map(str, self.refused))})" if self.refused else ""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tensors of an example, positional or named, each with the axis of the batch first."""

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] | None = None  # None: positional

    @property
    def args(self) -> tuple[Tensor, ...]:
        """The positional tensors."""
        return self.tensors if self.names is None else ()

    @property
    def kwargs(self) -> dict[str, Tensor]:
        """The named tensors."""
        return {} if self.names is None else dict(zip(self.names, self.tensors, strict=True))

    @property
    def grows(self) -> tuple[bool, ...]:
        """Which tensors have a row for each sample: beside larger ones, a tensor of one row is for all samples."""
        alone = all(len(t) == 1 for t in self.tensors)
        return tuple(alone or len(t) > 1 for t in self.tensors)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return min(len(t) for t, grows in zip(self.tensors, self.grows, strict=True) if grows)

    def with_samples(self, samples: int) -> "Inputs | None":
        """Return the same rows in turn, so many; None where a tensor has no whole number of rows for them."""
        rows = [len(t) * samples if g else len(t) * self.samples for t, g in zip(self.tensors, self.grows, strict=True)]
        if any(row % self.samples for row in rows):
            return None
        pairs = zip(self.tensors, rows, strict=True)
        return Inputs(tuple(t[torch.arange(row // self.samples) % len(t)] for t, row in pairs), self.names)

    def random(self) -> "Inputs":
        """Return random numbers of the same shapes; whole numbers, such as words, are these in turn."""
        generator = torch.Generator(device="cpu").manual_seed(0)
        made = (
            torch.randn(t.shape, generator=generator) if t.dtype == torch.float32 else t.roll(1, 0)
            for t in self.tensors
        )
        return Inputs(tuple(made), self.names)

    def __str__(self) -> str:
        return ", ".join(str(tuple(t.shape)) for t in self.tensors)


def inputs_of(example: Example) -> Inputs:
    """Return the tensors of an example; raise ValueError if these are none."""
    if not isinstance(example, Mapping | Sequence):
        example = (example,)
    tensors = list(example.values()) if isinstance(example, Mapping) else list(example)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) == 0 or tensor.is_meta:
            raise ValueError(
                "an example input is a tensor with a batch axis and at least one sample, a sequence of such tensors or "
                f"a dictionary of them by the names of the arguments; this is {shown(tensor)}"
            )
    if not tensors:
        raise ValueError("an example input has at least one tensor")
    return Inputs(tuple(t.detach().cpu() for t in tensors), tuple(example) if isinstance(example, Mapping) else None)


def shown(value: object) -> str:
    """Return what a value is that is no tensor of an example, or no output."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" + (" on the meta device" if value.is_meta else "")
    return f"an object of type {type(value).__name__}"


def served(program: Any, traced: Inputs) -> Batches:
    """Return the batches for which a program of torch.export holds: that of the example, or a range of sizes.

    torch traces a batch as a number of at least 2, so a range from 2 upwards may hold for one sample, too.
    """
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    names = program.graph_signature.user_inputs[: len(traced.tensors)]
    axes = [placeholders[n].meta["val"].shape[0] for n, grows in zip(names, traced.grows, strict=True) if grows]
    sizes = [None if isinstance(axis, int) else axis.node.expr for axis in axes]
    if any(size is None or size.is_Integer for size in sizes):
        return Batches(traced.samples, traced.samples)
    ranges = [program.range_constraints[size] for size in sizes if size in program.range_constraints]
    smallest = max((int(r.lower) for r in ranges), default=1)
    largest = min((int(r.upper) for r in ranges if r.upper.is_Integer), default=torch.iinfo(torch.int32).max)
    bounded = largest < torch.iinfo(torch.int32).max
    if smallest == largest:
        return Batches(largest, largest)
    return Batches(1 if smallest <= 2 else smallest, largest if bounded else None)
