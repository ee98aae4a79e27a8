"""The processes that train one network together, as far as rewiring is concerned: the first decides for all.

What they exchange has a wire of its own: on that of DistributedDataParallel it could get between its buckets.
"""

import torch.distributed as dist
from torch import Tensor


class Peers:
    """This process among those of a group of torch.distributed (None: all there are); alone without it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.own: dist.ProcessGroup | None = None
        self.first = True
        if several(group):
            ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
            self.own = dist.new_group(ranks, use_local_synchronization=True)
            self.root, self.first = ranks[0], dist.get_rank() == ranks[0]

    def total(self, tensor: Tensor) -> Tensor | None:
        """The sum over all processes, at the first; None at the others. The tensor may be overwritten."""
        if self.own is None:
            return tensor
        tensor = tensor.contiguous()
        dist.reduce(tensor, self.root, group=self.own)
        return tensor if self.first else None

    def as_the_first(self, numbers: Tensor) -> Tensor:
        """The first process's numbers; all processes have as many."""
        if self.own is not None:
            dist.broadcast(numbers, self.root, group=self.own)
        return numbers


def several(group: dist.ProcessGroup | None = None) -> bool:
    """Whether there are other processes at the moment."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
