"""Batches of texts that were made tokens: shuffled and padded, the same for the same seed."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dctps.data.batches import epoch_generator

Tokens = Mapping[str, Sequence[int]]  # what a tokenizer makes of one text, by the names of a network's arguments


class TextBatches:
    """Batches of encoded texts, as (x, y): x maps names to int64 (b, length), y is int64 (b,).

    A batch is as long as its longest text. As in `Batches`, an epoch depends on its number alone and can be entered at
    any batch.

    >>> batches = TextBatches([{"ids": [5]}, {"ids": [6, 7]}, {"ids": [8]}], torch.arange(3), 2, padding={"ids": 0})
    >>> [(x["ids"].tolist(), y.tolist()) for x, y in batches.epoch(0)]
    [([[5, 0], [6, 7]], [0, 1]), ([[8]], [2])]
    """

    def __init__(
        self,
        texts: Sequence[Tokens],
        labels: Tensor,  # int64 (n,)
        batch_size: int,
        *,
        padding: Mapping[str, int],  # what fills up the arguments of a short text; 0 where nothing is said
        left: bool = False,  # whether texts are filled up on the left
        shuffle: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.texts = [{name: torch.tensor(part, dtype=torch.int64) for name, part in text.items()} for text in texts]
        self.labels, self.indices = labels, torch.arange(len(labels))
        self.batch_size, self.shuffle, self.seed, self.device = batch_size, shuffle, seed, device
        self.padding, self.side = padding, "left" if left else "right"

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return -(-len(self.indices) // self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield the batches of an epoch from batch `start` on."""
        order = self.indices
        if self.shuffle:
            order = order[torch.randperm(len(order), generator=epoch_generator(self.seed, number, "order"))]
        for chosen in order.split(self.batch_size)[start:]:
            yield self._padded(chosen.tolist()), self.labels[chosen].to(self.device)

    def _padded(self, chosen: list[int]) -> dict[str, Tensor]:
        return {
            name: pad_sequence(
                [self.texts[i][name] for i in chosen],
                batch_first=True,
                padding_value=self.padding.get(name, 0),
                padding_side=self.side,
            ).to(self.device)
            for name in self.texts[0]
        }
