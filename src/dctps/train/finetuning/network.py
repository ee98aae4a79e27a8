"""What is known of the pretrained network of a fine-tuning: how it takes texts or images, and what is new in it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from dctps.data.texts import Tokens

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of its pixels as fractions


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """How a network takes texts: what makes tokens of them, and what fills up short ones.

    special: the tokens that stand for no text, and the one that stands for unknown text.
    size: the number of tokens that the network has an embedding for, or None where that is not known.
    """

    encode: Callable[[Sequence[str]], list[Tokens]]
    padding: Mapping[str, int]
    left: bool  # whether texts are filled up on the left
    special: frozenset[int] = frozenset()
    size: int | None = None


@dataclasses.dataclass(frozen=True)
class Look:
    """How a network takes images: height and width, or None where it does not say, mean and standard deviation."""

    size: int | None = None
    mean: tuple[float, ...] = IMAGENET[0]
    std: tuple[float, ...] = IMAGENET[1]


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with an output for each class; `new`: the parameters that are not pretrained but drawn by the seed."""

    model: nn.Module
    takes: Tokenizer | Look
    new: tuple[str, ...] = ()
