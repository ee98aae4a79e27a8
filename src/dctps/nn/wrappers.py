"""Networks inside the wrappers of torch."""

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside torch's wrappers (DistributedDataParallel, torch.compile), so that its own names are saved."""
    while True:
        inner = model._modules.get("_orig_mod") or (
            model._modules.get("module") if isinstance(model, _WRAPPERS) else None
        )
        if inner is None:
            return model
        model = inner


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)
