"""Adapters in the format of peft's SHiRA (`adapter_config.json` and `adapter_model.safetensors`), there and back.

peft stores two int32 for each value, has linear layers alone, and gives each layer exactly r (in + out) values. So an
adapter is filled up with zeros at position (0, 0), whose values peft adds up. Modules that train as a whole are peft's
`modules_to_save`. Neither direction needs peft itself.
"""

import collections
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from dctps.base.files import write_atomically
from dctps.checkpoint.adapter_state import AdapterState, base_weights, state_of
from dctps.checkpoint.adapters import Adapter
from dctps.checkpoint.contents import CheckpointError
from dctps.core.fingerprint import fingerprint
from dctps.core.support import Support
from dctps.nn.fine_tuned import all_uses, tuned_weights
from dctps.nn.wrappers import unwrapped

PREFIX, WEIGHT, INDICES = "base_model.model.", ".shira_weight", ".shira_indices"
CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"


def export_shira(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write what fine-tuning has made of a network into a folder that peft's `PeftModel.from_pretrained` loads.

    Raise ValueError, before anything is written, if peft cannot express it: for a weight that is not that of an
    nn.Linear, for an alpha, for a layer with too few places, or for parameters that are only a part of a module.
    """
    model = unwrapped(model)
    state = state_of(model)
    rank = _rank(model, state)
    tensors = dict[str, Tensor]()
    for name, support in state.supports.items():
        indices, values = _filled_up(support, state.values[name], rank * sum(support.shape))
        tensors[PREFIX + name + INDICES], tensors[PREFIX + name + WEIGHT] = indices, values
    whole = _whole_modules(model, state)
    tensors |= {PREFIX + name: tensor.contiguous() for name, tensor in state.rest.items()}
    config: dict[str, Any] = {
        "peft_type": "SHIRA",
        "task_type": None,
        "r": rank,
        "mask_type": "random",
        "random_seed": 0,
    }
    config |= {"target_modules": list(state.supports), "modules_to_save": whole or None, "inference_mode": True}
    config |= {"base_model_name_or_path": getattr(getattr(model, "config", None), "_name_or_path", None) or None}
    content, text = serialize(tensors, {"format": "pt"}), json.dumps(config, indent=2) + "\n"
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / FILE, lambda file: file.write_bytes(content))
    write_atomically(target / CONFIG, lambda file: file.write_text(text))


def import_shira(folder: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Attach a SHiRA adapter of peft to a network, in place, and return the network.

    peft's files do not say which weights W0 an adapter was trained on, so that is not checked.
    """
    config, tensors = _read(Path(folder))
    if config.get("peft_type") != "SHIRA":
        raise CheckpointError(f"{folder} holds an adapter of the type {config.get('peft_type')!r}, not SHIRA")
    bases = base_weights(unwrapped(model))
    supports, values, rest = dict[str, Support](), dict[str, Tensor](), dict[str, Tensor]()
    try:
        for key, tensor in tensors.items():
            name = key.removeprefix(PREFIX)
            if name.endswith(WEIGHT):
                name = name.removesuffix(WEIGHT)
                supports[name], values[name] = _sorted(name, bases, tensors[PREFIX + name + INDICES], tensor)
            elif not name.endswith(INDICES):
                rest[name] = tensor
        base = fingerprint({name: bases[name] for name in supports})
        return Adapter(((1.0, AdapterState(supports, values, {}, rest, base)),)).attach(model)
    except (ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{folder} does not fit this network: {error}") from error


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((folder / CONFIG).read_text())
        tensors = load_file(folder / FILE)
    except (OSError, ValueError, SafetensorError, RecursionError) as error:
        raise CheckpointError(f"{folder} is not the folder of an adapter of peft: {error}") from error
    if not isinstance(config, dict) or not any(name.endswith(WEIGHT) for name in tensors):
        raise CheckpointError(f"{folder} holds no values of SHiRA")
    return config, tensors


def _sorted(name: str, bases: dict[str, nn.Parameter], indices: Tensor, values: Tensor) -> tuple[Support, Tensor]:
    """Return the support and the values of a layer; values at the same place are added up, as peft does."""
    if name not in bases:
        raise ValueError(f"the network has no weight {name!r}")
    shape = tuple(bases[name].shape)
    if indices.shape != (2, len(values)) or values.dim() != 1:
        raise ValueError(f"{name!r} has indices {tuple(indices.shape)} for values {tuple(values.shape)}")
    rows, columns = indices.long()
    if len(values) and not (int(indices.min()) >= 0 and int(rows.max()) < shape[0] and int(columns.max()) < shape[1]):
        raise ValueError(f"{name!r} has indices outside of its weight of shape {shape}")
    flat = rows * shape[1] + columns
    kept = _without_filling(flat, values)
    places, at = torch.unique(flat[:kept], return_inverse=True)
    total = torch.zeros(len(places), dtype=torch.float64).index_add_(0, at, values[:kept].double())
    return Support(shape, places), total.to(values.dtype)


def _without_filling(places: Tensor, values: Tensor) -> int:
    """Return how many values there are before the zeros at (0, 0) that only fill up.

    They stand at the end, behind a real value at (0, 0), which may be zero, too. Where all values are zeros at (0, 0),
    the layer has none.
    """
    real = torch.nonzero((places != 0) | (values != 0))
    return int(real[-1]) + 1 if len(real) else 0


def _filled_up(support: Support, values: Tensor, count: int) -> tuple[Tensor, Tensor]:  # (2, count), (count,)
    """Return the rows and columns of the places, and the values, with zeros at (0, 0) up to this number."""
    positions, more = support.positions.long(), count - support.nnz
    places = torch.cat([positions, positions.new_zeros(more)])
    indices = torch.stack([places // support.shape[1], places % support.shape[1]])
    return indices.to(torch.int32), torch.cat([values, values.new_zeros(more)])


def _rank(model: nn.Module, state: AdapterState) -> int:
    """Return peft's r, which must serve all layers; raise ValueError if a layer cannot have r (in + out) values."""
    uses = collections.Counter(id(weight.part) for _, weight in all_uses(model))
    for name, weight in tuned_weights(model).items():
        if not isinstance(weight.layer, nn.Linear) or weight.key != "weight" or uses[id(weight.part)] > 1:
            what = "tied" if isinstance(weight.layer, nn.Linear) else f"of a {weight.layer.plain_class.__name__}"
            raise ValueError(f"the weight of {name!r} is {what}, and SHiRA has single nn.Linear alone; exclude it")
    if state.alphas:
        raise ValueError("SHiRA has no alpha; fine-tune without train_alpha")
    rank = max(1, *(-(-support.nnz // sum(support.shape)) for support in state.supports.values()))
    for name, support in state.supports.items():
        if rank * sum(support.shape) > support.size:
            need = f"r = {rank} gives it {rank * sum(support.shape)} values"
            raise ValueError(f"{name!r} has {support.size} places, but SHiRA's {need}; exclude it or take fewer values")
    return rank


def _whole_modules(model: nn.Module, state: AdapterState) -> list[str]:
    """Return the modules that train as a whole; raise ValueError if something else trains or has changed."""
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in state.rest))
    covered = {f"{name}.{key}" for name in names for key in model.get_submodule(name).state_dict()}
    tuned = [name for name in names if name in state.supports]
    missing = sorted(covered - state.rest.keys())
    if tuned or missing:
        what = f"the bias of {tuned[0]!r} trains" if tuned else f"{missing[0]!r} does not train, but its module does"
        raise ValueError(f"SHiRA saves whole modules beside its values, and here {what}; change train= in sparsify")
    return names
