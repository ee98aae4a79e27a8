"""Several processes that train one network: who they are, sums over them, and how many bytes they exchange."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dctps.core.support import Support
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.sizes import pruned_bytes
from dctps.nn.supported import SupportedLayer


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among the `world` processes that torchrun started; without torchrun it is the only one."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks to people."""
        return self.rank == 0

    def sum(self, numbers: list[float], device: torch.device) -> list[float]:
        """The sums of some numbers over all processes."""
        if self.world == 1:
            return numbers
        tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(tensor)
        return [float(n) for n in tensor.tolist()]

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            dist.barrier()

    def share_buffers(self, model: nn.Module) -> None:
        """Give all processes the running statistics of the first; each has seen its own images only."""
        if self.world > 1:
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    dist.broadcast(buffer, 0)

    def share(self, supports: dict[str, Support], device: torch.device) -> dict[str, Support]:
        """The supports of the first process; the scores of others may differ in their last digits."""
        if self.world == 1:
            return supports
        return {n: Support(support.shape, self._shared(support.positions, device)) for n, support in supports.items()}

    def _shared(self, positions: Tensor, device: torch.device) -> Tensor:
        count = torch.tensor(len(positions), device=device)
        dist.broadcast(count, 0)
        sent = positions.to(device) if self.first else positions.new_empty(int(count), device=device)
        dist.broadcast(sent, 0)
        return sent.cpu()

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model under DistributedDataParallel.

        Buffers that are not part of the state are not exchanged.
        """
        if self.world == 1:
            return model
        state = model.state_dict().keys()
        apart = [name for name, _ in model.named_buffers() if name not in state]
        wrapper = nn.parallel.DistributedDataParallel
        wrapper._set_params_and_buffers_to_ignore_for_model(model, apart)
        return wrapper(model)


@contextlib.contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Join the processes of torchrun, if there are any, and leave them at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(dist.get_rank(), world)
        dist.barrier()  # a process that leaves while another still talks to it may abort that one
    finally:
        dist.destroy_process_group()


def wire_bytes(model: nn.Module) -> tuple[int, int]:
    """Bytes of gradients that a process sends each step, and those of the dense network."""
    sent = sum(_bytes(p) for p in model.parameters() if p.requires_grad)
    dense = sum(pruned_bytes(m) for m in model.modules() if isinstance(m, SupportedLayer))
    layers = [m for m in model.modules() if isinstance(m, DpsLayer)]
    alphas = sum(_bytes(m.alpha) for m in layers if isinstance(m.alpha, nn.Parameter))
    return sent, sent + dense - alphas


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
