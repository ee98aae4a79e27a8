"""Access to networks inside the wrappers of torch."""

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the network inside torch's wrappers (DistributedDataParallel, torch.compile).

    Its parameters have the names that a file should hold, without the prefix of the wrapper.
    """
    while True:
        inner = model._modules.get("_orig_mod") or (
            model._modules.get("module") if isinstance(model, _WRAPPERS) else None
        )
        if inner is None:
            return model
        model = inner


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)
