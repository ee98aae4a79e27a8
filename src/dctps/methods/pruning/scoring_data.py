"""The data that scores are taken on: batches, a loss, an input of ones; each is checked before it is used."""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dctps.base.registry import lookup
from dctps.nn.logits import logits_of

Inputs = tuple[Tensor, ...] | Mapping[str, Any]  # the arguments of the network, nearly always one; or by their names
Batch = tuple[Inputs, Any]  # inputs and labels
Loss = Callable[[Any, Any], Tensor]  # takes the output of the network and the labels, and returns a scalar


@dataclasses.dataclass
class ScoringData:
    """The batches, the loss and the shape of an input, for any number of steps.

    Batches that can be iterated again (a list, a DataLoader) start over at their end; a generator must be long enough.
    """

    batches: Iterable[Any] | None
    per_step: int  # the number of batches in each step
    loss: Loss
    input_shape: tuple[int, ...] | None
    device: torch.device

    def __post_init__(self) -> None:
        self._drawn = 0
        self._ones: tuple[Tensor, ...] | None = None
        self._stream = self._endless()

    def draw(self) -> list[Batch]:
        """Return the batches of one step, new ones each time, on the device of the network."""
        return [self._next() for _ in range(self.per_step)]

    def ones(self) -> tuple[Tensor, ...]:
        """Return one example of ones, in float64, of the shape `input_shape`, or else of the first batch's shape."""
        if self._ones is None:
            inputs = (torch.empty(1, *self.input_shape, device=self.device),) if self.input_shape else self._next()[0]
            if isinstance(inputs, Mapping):
                raise ValueError("an input of ones cannot be made of a batch with names; give input_shape=")
            self._ones = tuple(torch.ones_like(x[:1], dtype=torch.float64) for x in inputs)
        return self._ones

    def _next(self) -> Batch:
        inputs, labels = next(self._stream)
        self._drawn += 1
        labels = labels.to(self.device) if isinstance(labels, Tensor) else labels
        if isinstance(inputs, Mapping):
            return {k: x.to(self.device) if isinstance(x, Tensor) else x for k, x in inputs.items()}, labels
        arguments = tuple(x.to(self.device) for x in (inputs if isinstance(inputs, tuple | list) else (inputs,)))
        return arguments, labels

    def _endless(self) -> Iterator[tuple[Any, Any]]:
        """Yield the batches over and over; raise ValueError if there is none."""
        for epoch in itertools.count():
            before = self._drawn
            for batch in self._iterator(epoch):
                yield _pair(batch)
            if self._drawn == before:
                raise ValueError("batches= is empty; give at least one batch (inputs, labels)")

    def _iterator(self, epoch: int) -> Iterator[Any]:
        """Start to iterate over the batches; raise ValueError if this is not possible, or not again."""
        assert self.batches is not None
        try:
            iterator = iter(self.batches)
        except TypeError:
            kind = type(self.batches).__name__
            raise ValueError(f"batches= must be an iterable of pairs (inputs, labels), not a {kind}") from None
        if epoch > 0 and iterator is self.batches:
            raise ValueError(
                f"batches= ended after {self._drawn} batches, and a generator cannot start over; give a list or a "
                "DataLoader, give a longer generator, or lower steps= or batches_per_step="
            )
        return iterator


def _pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and labels of a batch; raise ValueError if it is no such pair.

    A batch with names is its own inputs, and its labels are those called `labels`.
    """
    if isinstance(batch, Mapping):
        return batch, batch.get("labels")
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise ValueError(
            f"a batch is a pair (inputs, labels), not a {type(batch).__name__}{size}; "
            "a single batch is given as batches=[(inputs, labels)]"
        )
    inputs, labels = batch
    if not all(isinstance(x, Tensor) for x in (inputs if isinstance(inputs, tuple | list) else [inputs])):
        raise ValueError(f"the inputs of a batch are a tensor or a tuple of tensors, not a {type(inputs).__name__}")
    return inputs, labels


def checked_shape(shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the shape of one example as a tuple; raise ValueError unless it has sizes of at least 1."""
    if shape is None:
        return None
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        sizes = ()
    if min(sizes, default=0) < 1:
        raise ValueError(f"input_shape is that of one example, such as (channels, height, width), not {shape!r}")
    return sizes


# --- losses ----------------------------------------------------------------------------------------------------------


def neg_logit(logits: Tensor, labels: Tensor) -> Tensor:  # (n, classes, ...), (n, ...) -> ()
    """Return minus the mean logit of the true class, which is the negative log-likelihood applied to raw logits."""
    return -logits.gather(1, labels.unsqueeze(1)).mean()


LOSSES: dict[str, Loss] = {"cross_entropy": F.cross_entropy, "neg_logit": neg_logit}


def checked_loss(loss: str | Loss) -> Loss:
    """Return a loss that checks its result to be a scalar; a loss named in LOSSES also checks the labels."""
    if callable(loss):
        given = loss
        return lambda output, labels: _scalar(given(output, labels))
    named = lookup(LOSSES, loss, "loss")

    def of_logits(output: Any, labels: Any) -> Tensor:
        logits = logits_of(output)
        return _scalar(named(logits, _labels(logits, labels)))

    return of_logits


def _labels(logits: Any, labels: Any) -> Tensor:
    """Return the labels as int64; raise ValueError unless they fit the logits."""
    if not isinstance(logits, Tensor) or logits.dim() < 2:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"type {type(logits).__name__}"
        raise ValueError(f"the network's output has {what}, not (batch, classes); give a loss= of your own for it")
    wanted = (logits.shape[0], *logits.shape[2:])
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
        raise ValueError(f"labels are an integer tensor of class numbers, not {kind}; for other labels give a loss=")
    if tuple(labels.shape) != wanted:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, the logits {tuple(logits.shape)} need {wanted}")
    if labels.numel() == 0:
        raise ValueError("a batch is empty: it has no labels")
    low, high = (int(x) for x in labels.aminmax())
    if low < 0 or high >= logits.shape[1]:
        raise ValueError(f"labels reach from {low} to {high}, but the network has classes 0 to {logits.shape[1] - 1}")
    return labels.long()


def _scalar(value: Any) -> Tensor:
    """Return a loss as a tensor of shape (); raise ValueError unless it is one number."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"the loss must be a tensor with one number, not {what}; take its mean")
    return value.reshape(())
