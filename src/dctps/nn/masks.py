"""The masks of `torch.nn.utils.prune` as supports."""

from torch import Tensor, nn

from dctps.core.support import Support


def masked_supports(model: nn.Module) -> dict[str, Support]:
    """Return the places that the masks of `torch.nn.utils.prune` keep, by layer name; ValueError if there is none.

    Remove the masks by `torch.nn.utils.prune.remove` before `sparsify(model, supports=...)`.

    >>> import torch.nn.utils.prune as torch_prune
    >>> layer = torch_prune.l1_unstructured(nn.Linear(4, 5), "weight", 0.5)
    >>> masked_supports(nn.Sequential(layer))
    {'0': Support(shape=(5, 4), nnz=10, density=0.5)}
    """
    masks = {name: module._buffers.get("weight_mask") for name, module in model.named_modules()}
    found = {name: Support.from_mask(mask != 0) for name, mask in masks.items() if isinstance(mask, Tensor)}
    if not found:
        raise ValueError("no layer of this network has a mask of torch.nn.utils.prune on its weight")
    return found
