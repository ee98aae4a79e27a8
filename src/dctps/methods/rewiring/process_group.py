"""The processes that train one network together and rewire alike: the first of them decides for all.

They exchange positions in a process group of their own, so as not to interfere with DistributedDataParallel.
"""

import torch.distributed as dist
from torch import Tensor


class Peers:
    """This process among those of a group of torch.distributed; None is the group of all processes."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group: dist.ProcessGroup | None = None  # None if this is the only process
        self.first = True
        if several(group):
            ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
            self.group = dist.new_group(ranks, use_local_synchronization=True)
            self.root, self.first = ranks[0], dist.get_rank() == ranks[0]

    def total(self, tensor: Tensor) -> Tensor | None:
        """The sum over all processes in the first one, None in the others. The tensor may be overwritten."""
        if self.group is None:
            return tensor
        tensor = tensor.contiguous()
        dist.reduce(tensor, self.root, group=self.group)
        return tensor if self.first else None

    def as_the_first(self, numbers: Tensor) -> Tensor:
        """The numbers of the first process; all processes have equally many."""
        if self.group is not None:
            dist.broadcast(numbers, self.root, group=self.group)
        return numbers


def several(group: dist.ProcessGroup | None = None) -> bool:
    """Whether there are several processes at the moment."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1
