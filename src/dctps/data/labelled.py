"""Examples by their names or texts, each with the name of its class, in the parts of a data set."""

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dctps.data.batches import split
from dctps.data.dataset import DataError

TRAINING, VALIDATION, TEST = PARTS = ("training", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Examples of one part: texts, or names of files; and the class of each."""

    items: list[str]
    labels: list[str]

    def __len__(self) -> int:
        return len(self.items)

    def at(self, indices: Iterable[int]) -> "Labelled":
        """Return the examples with these indices."""
        chosen = list(indices)
        return Labelled([self.items[i] for i in chosen], [self.labels[i] for i in chosen])

    def numbers(self, classes: list[str]) -> Tensor:  # int64 (n,)
        """Return the number of each example's class."""
        number = {name: index for index, name in enumerate(classes)}
        return torch.tensor([number[label] for label in self.labels], dtype=torch.int64)


def with_all_parts(given: Mapping[str, Labelled], fraction: float, seed: int) -> dict[str, Labelled]:
    """Return the three parts; a fraction of the training examples, drawn by the seed, becomes each that is missing."""
    parts = dict(given)
    for part in (TEST, VALIDATION):
        if part not in parts:
            rest, taken = split(len(parts[TRAINING]), seed, fraction=fraction)
            if not len(taken) or not len(rest):
                raise DataError(
                    f"{len(parts[TRAINING])} examples are too few to keep a fraction of {fraction:g} for {part}; give "
                    f"more, or {part} examples of their own"
                )
            parts[part], parts[TRAINING] = parts[TRAINING].at(taken.tolist()), parts[TRAINING].at(rest.tolist())
    return parts


def class_names(parts: Mapping[str, Labelled]) -> list[str]:
    """Return the classes of the training examples: numbers in their order, else names in that of the alphabet.

    Raise DataError if there is only one, or if another part has a class that the training examples do not have.
    """
    names = set(parts[TRAINING].labels)
    for part, examples in parts.items():
        if unknown := sorted(set(examples.labels) - names):
            some = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
            raise DataError(f"the {part} examples have the class {unknown[0]!r}; the training examples have: {some}")
    if len(names) < 2:
        raise DataError(f"all training examples are of one class, {min(names)!r}; a classifier needs two or more")
    return sorted(names, key=int) if all(_is_number(name) for name in names) else sorted(names)


def _is_number(name: str) -> bool:
    """Return whether this is an integer as programs write it, so that two names never are the same number."""
    return name.isascii() and name.removeprefix("-").isdecimal() and str(int(name[:20])) == name
