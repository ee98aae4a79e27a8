"""Sparse networks in the folders of transformers (version 5): `save_pretrained` and `from_pretrained`.

`model.save_pretrained(folder)` writes the state_dict, which says for each sparse layer which one it is. A plain
`from_pretrained` does not know what to make of it and gives every such layer a new dense weight, with a warning. So
`sparsify` leaves a mark in the configuration of the network, `quantization_config` with the method "dctps", and this
module makes the layers sparse before transformers loads their state. `sparsify` and `dctps.load` import it by
themselves; a program that only loads a folder imports it first:

    import dctps.nn.pretrained
    model = AutoModelForSequenceClassification.from_pretrained(folder)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from dctps.core.support import Support
from dctps.nn import identity
from dctps.nn.buildable import attach_saved
from dctps.nn.built_layer import BuiltLayer, BuiltPart
from dctps.nn.foreign import MARK, mark_config
from dctps.nn.fuse import mark
from dctps.nn.prunable import LAYERS
from dctps.nn.replace import make_sparse_layer, replace_layers
from dctps.nn.supported import EXTRA


@register_quantization_config(MARK)
class DctpsConfig(QuantizationConfigMixin):
    """The mark in the configuration of a network that has sparse layers."""

    def __init__(self, **options: Any) -> None:
        self.quant_method = MARK  # type: ignore[assignment]  # the methods of transformers are an Enum of theirs


@register_quantizer(MARK)
class DctpsQuantizer(HfQuantizer):
    """What `from_pretrained` calls for a network with the mark."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: nn.Module, **options: Any) -> None:
        """Make those layers sparse that are so in the files; their state is loaded afterwards."""
        new = {}
        found = {n: identity.decode(s) for n, s in _identities(options.get("checkpoint_files") or []).items()}
        _attach_parts(model, found)
        for name, (support, offset) in found.items():
            layer = _find(model, name)
            if isinstance(layer, BuiltPart):
                continue
            sparse = make_sparse_layer(name, layer, support, {"offset": offset}, torch.device("cpu"))
            new[id(layer)] = sparse.to("meta") if layer.get_parameter("weight").is_meta else sparse
        replace_layers(model, new)

    def _process_model_after_weight_loading(self, model: nn.Module, **options: Any) -> None:
        """Leave the network as `sparsify` would: marked, and no different from one that was never saved."""
        mark(model)
        mark_config(model)
        for attribute in ("hf_quantizer", "quantization_method", "is_quantized"):
            if attribute in vars(model):
                delattr(model, attribute)

    def is_serializable(self) -> bool:
        """Return whether the network can be saved again."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether the network can be trained."""
        return True


def _attach_parts(model: nn.Module, found: Mapping[str, tuple[Support, str | None]]) -> None:
    """Let those layers read built weights that do so in the files."""
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    attach_saved(model, {name: (support, {"offset": offset}) for name, (support, offset) in found.items()})
    for layer in model.modules():
        if isinstance(layer, BuiltLayer):
            layer.sparse_part.to("meta" if on_meta else None)


def _identities(files: Sequence[str]) -> dict[str, Tensor]:
    """Return the identities of the sparse layers in the files of a folder, by layer name."""
    found = dict[str, Tensor]()
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            keys = [key for key in tensors.keys() if key.endswith(f".{EXTRA}")]  # noqa: SIM118
            found |= {key.removesuffix(f".{EXTRA}"): tensors.get_tensor(key) for key in keys}
    return found


def _find(model: nn.Module, name: str) -> nn.Module:
    """Return the plain layer of this name; raise ValueError if the network has none."""
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"the files hold a sparse layer {name!r}, which this network does not have") from None
    if type(layer) not in LAYERS and not isinstance(layer, BuiltPart):
        kind = type(layer).__name__
        raise ValueError(f"the layer {name!r} is sparse in the files, but a {kind} in this network")
    return layer
