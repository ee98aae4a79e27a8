"""The loop over the steps of pruning: score the weights, keep the best, go on with these."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dctps.core.ranking import Scores, largest
from dctps.core.support import Int64, derive_seed, sample
from dctps.methods.pruning.collapse import CollapseError
from dctps.methods.pruning.method import Method
from dctps.methods.pruning.scored_network import ScoredNetwork
from dctps.methods.pruning.scoring_data import ScoringData

SPARSE_BELOW = 0.05  # the density below which sparse layers are faster than dense ones on a CPU


@dataclasses.dataclass
class PruningLoop:
    """The steps of one call of `prune`.

    name: the name of the method, for errors.
    counts: the number of weights that are kept after each step.
    seed: decides between equal scores.
    collapse: the collapse that ended the loop, if there was one.
    """

    name: str
    method: Method
    network: ScoredNetwork
    data: ScoringData
    counts: Sequence[int]
    seed: int
    on_collapse: str
    collapse: CollapseError | None = None

    def run(self) -> Iterator[Int64]:
        """Yield, after each step, the sorted positions of the weights that are kept."""
        kept: Int64 | None = None  # None stands for all weights
        if self.counts[-1] == self.network.size:  # all weights are kept, whatever their scores
            yield np.arange(self.network.size)
            return
        for step, count in enumerate(self.counts, 1):
            scores = self.network.collect(self.method.score(self.network, self.data), step)
            kept = self._choose(scores.numpy(), None if self.method.recovers else kept, count, step)
            yield kept
            if self.collapse is not None:
                return
            if step < len(self.counts):
                self._prune(kept)

    def _prune(self, kept: Int64) -> None:
        """Remove the other weights from the copy that is scored."""
        if self.method.uses_sparse_layers and len(kept) <= SPARSE_BELOW * self.network.size:
            self.network.make_sparse(kept)
        else:
            self.network.apply_mask(kept, self.method.recovers)

    def _choose(self, scores: Scores, among: Int64 | None, count: int, step: int) -> Int64:
        """Return the positions of the `count` best weights.

        Before the last step fewer weights may have a score, as long as they are enough for the last; then all of these
        are kept.
        """
        values = scores if among is None else scores[among]
        scored = values != 0 if self.method.signed else values > 0
        found, seed = int(np.count_nonzero(scored)), derive_seed(self.seed, f"step {step}")
        if found < self.counts[-1] and not self._zeros_are_ranked(values):
            chosen = self._handle_collapse(scored, step, seed)
        elif self.method.signed or found == len(values):
            chosen = largest(values, min(count, len(values)), seed)
        else:
            chosen = np.flatnonzero(scored)[largest(values[scored], min(count, found), seed)]
        return chosen if among is None else among[chosen]

    def _zeros_are_ranked(self, values: Scores) -> bool:
        """Return whether signed scores leave nothing to chance: all zeros are kept, above the negative scores."""
        return self.method.signed and int(np.count_nonzero(values >= 0)) <= self.counts[-1]

    def _handle_collapse(self, scored: npt.NDArray[np.bool_], step: int, seed: int) -> Int64:
        """Raise the error of the collapse, or note it and choose weights as `on_collapse` says."""
        self.collapse = self._error(int(np.count_nonzero(scored)), step)
        if self.on_collapse == "error":
            raise self.collapse
        if self.on_collapse == "random_fill":
            others = np.flatnonzero(~scored)
            scored[others[sample(len(others), self.counts[-1] - self.collapse.positive, seed)]] = True
        return np.flatnonzero(scored)

    def _error(self, found: int, step: int) -> CollapseError:
        """Return the error of a collapse, which says what happened and what the user can do."""
        asked, size = self.counts[-1], self.network.size
        kind = "a score other than zero" if self.method.signed else "a positive score"
        # The first step scores the dense network, so a lower density helps. Later steps score a network that was
        # already pruned too far, so a larger density helps.
        density = "a larger density" if step > 1 else f"a density of at most {found}/{size}" if found else ""
        remedies = [density, "other batches or more of them" if self.method.needs_data else "", "another method"]
        return CollapseError(
            f"{self.name} collapsed in step {step} of {len(self.counts)}: {asked:,} of {size:,} weights are to be "
            f"kept, the number with {kind} is {found:,} ({self.network.explain_zeros()}). Use "
            f'{", ".join(filter(None, remedies))}, on_collapse="short" (keeps {found:,}) or "random_fill" (adds '
            f"{asked - found:,} at random)",
            found,
            asked,
            step,
        )
