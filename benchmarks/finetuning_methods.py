"""The methods that `finetuning.py` compares. Each makes a network trainable and writes the file that a user keeps."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from finetuning_tasks import Budget, EfficientNetLite, MiniLM, Task
from torch import nn

import dctps

HEAD = "classifier"
SNIP_BATCHES = 8


class Prepared(NamedTuple):
    """A network that can be trained, and a function that writes what was trained to a folder and returns its bytes."""

    net: nn.Module
    save: Callable[[Path], int]


class Method(NamedTuple):
    """How a network is prepared, by its task, the budget and a seed, and the learning rates to choose from."""

    prepare: Callable[[Task, Budget | None, int], Prepared]
    rates: tuple[float, ...]
    has_budget: bool = False
    tasks: tuple[str, ...] = (MiniLM.name, EfficientNetLite.name)


def _dense(trains: Callable[[str], bool]) -> Callable[[Task, Budget | None, int], Prepared]:
    """Return a method that trains the parameters of some names as they are."""

    def prepare(task: Task, budget: Budget | None, seed: int) -> Prepared:
        net = task.network()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(trains(name))

        def save(folder: Path) -> int:
            kept = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
            safetensors.torch.save_file(kept, folder / "kept.safetensors")
            return os.path.getsize(folder / "kept.safetensors")

        return Prepared(net, save)

    return prepare


def _is_head(name: str) -> bool:
    return name.startswith(HEAD)


def _peft(kind: str) -> Callable[[Task, Budget | None, int], Prepared]:
    def prepare(task: Task, budget: Budget | None, seed: int) -> Prepared:
        import peft

        assert budget is not None
        shared = {"r": budget.rank, "target_modules": budget.layers, "modules_to_save": [HEAD]}
        if kind == "lora":
            config = peft.LoraConfig(**shared, lora_alpha=2 * budget.rank)
        else:
            config = peft.ShiraConfig(**shared, random_seed=seed)
        net = peft.get_peft_model(_with_plain_pointwise(task.network()), config)

        def save(folder: Path) -> int:
            net.save_pretrained(folder)
            return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))

        return Prepared(net, save)

    return prepare


def _with_plain_pointwise(net: nn.Module) -> nn.Module:
    """Return the network with 1x1 convolutions of torch's class in place of those of a subclass; they are the same.

    peft makes the layers of an adapter by the class of the layer, and some classes take further arguments.
    """
    for path, layer in list(net.named_modules()):
        if isinstance(layer, nn.Conv2d) and type(layer) is not nn.Conv2d and layer.kernel_size == (1, 1):
            plain = nn.Conv2d(layer.in_channels, layer.out_channels, 1, bias=layer.bias is not None)
            plain.load_state_dict(layer.state_dict())
            parent, _, name = path.rpartition(".")
            setattr(net.get_submodule(parent), name, plain)
    return net


def _ours(places: str) -> Callable[[Task, Budget | None, int], Prepared]:
    def prepare(task: Task, budget: Budget | None, seed: int) -> Prepared:
        assert budget is not None
        net = task.network()
        shapes = {name: m.weight.shape for name, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
        adapted = [shape for name, shape in shapes.items() if re.fullmatch(budget.layers, name)]
        values = sum(budget.rank * (shape[0] + shape[1]) for shape in adapted)
        ours = [name for name in shapes if re.fullmatch(budget.ours, name)]
        density = values / sum(math.prod(shapes[name]) for name in ours)
        other = [name for name, module in net.named_modules() if hasattr(module, "weight") and name not in ours]
        if places == "random":
            dctps.sparsify(net, density, offset="pretrained", train=HEAD, exclude=_known(net, other), seed=seed)
        else:
            order = task.order(seed)
            batches = [task.batch("train", next(order)) for _ in range(SNIP_BATCHES)]
            net.requires_grad_(False)
            options = {"batches": batches, "batches_per_step": SNIP_BATCHES, "progress": False}
            found = dctps.prune(net, places, density, exclude=[n for n in shapes if n not in ours], **options)
            dctps.sparsify(net, supports=found, offset="pretrained", train=HEAD)

        def save(folder: Path) -> int:
            dctps.save(net, folder / "adapter.safetensors")
            return os.path.getsize(folder / "adapter.safetensors")

        return Prepared(net, save)

    return prepare


def _known(net: nn.Module, names: list[str]) -> list[str]:
    """Return those names whose layers could be fine-tuned, without the head."""
    matrices = {name for name in names if net.get_submodule(name).weight.dim() > 1}
    return [name for name in names if name in matrices and not _is_head(name)]


SPARSE, LOW_RANK = (1e-3, 3e-3, 1e-2), (5e-4, 1.5e-3, 5e-3)

METHODS: dict[str, Method] = {
    "full": Method(_dense(lambda name: True), (3e-5, 1e-4, 3e-4)),
    "head": Method(_dense(_is_head), (1e-3, 3e-3, 1e-2)),
    "bitfit": Method(_dense(lambda name: _is_head(name) or name.endswith("bias")), LOW_RANK),
    "lora": Method(_peft("lora"), LOW_RANK, has_budget=True),
    "shira": Method(_peft("shira"), SPARSE, has_budget=True, tasks=(MiniLM.name,)),  # SHiRA adapts linear layers alone
    "ours": Method(_ours("random"), SPARSE, has_budget=True),
    "ours, snip": Method(_ours("snip"), SPARSE, has_budget=True, tasks=(MiniLM.name,)),
}
