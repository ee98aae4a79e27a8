"""What makes a method of pruning at initialisation."""

import dataclasses
from collections.abc import Callable, Iterator

from torch import Tensor

from dctps.methods.pruning.scored_network import Prepare, ScoredNetwork
from dctps.methods.pruning.scoring_data import ScoringData


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of pruning at initialisation: a score, and how it is used."""

    title: str  # the name in figures and tables
    score: Callable[[ScoredNetwork, ScoringData], Iterator[Tensor]]  # yields a tensor of scores for each layer
    prepare: Prepare | None = None  # prepares the copy that is scored; None if the score does not run the network
    steps: int = 1
    batches: int = 0  # the number of batches in each step; 0 if the score needs no data
    loss: str = "cross_entropy"
    signed: bool = False  # negative scores count too, and are ranked below zero
    recovers: bool = False  # pruned weights are scored too, and may come back in a later step
    uses_sparse_layers: bool = False  # the copy gets sparse layers when few weights are left; not if `recovers`

    @property
    def needs_data(self) -> bool:
        """Whether the score needs batches of data."""
        return self.batches > 0

    @property
    def needs_input(self) -> bool:
        """Whether the score runs the network, on data or on ones."""
        return self.prepare is not None
