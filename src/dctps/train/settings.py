"""What a training run is: one frozen dataclass of plain values, in and out of JSON, and the id that follows from it.

A run's id is a hash of the settings that differ from their defaults. A new setting therefore needs a default under
which nothing changes, and a default may never be changed: both would give finished runs other names.
"""

import dataclasses
import functools
import hashlib
import json
import math
import typing
from pathlib import Path
from typing import Any, Literal

from dctps.base.registry import lookup
from dctps.methods.rewiring import REWIRINGS

Offset = str | None


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is trained, on what and how; these and only these decide a run's id."""

    model: str = "resnet50"
    """Network; one of dctps.models.MODELS, or package.module:function of your own."""
    width: int | None = None
    """Width of the first stage of a ResNet or VGG; None is the network's own."""
    hidden: int | None = None
    """Units in LeNet's fourth layer; None is the paper's 82."""
    data: str = "cifar10"
    """Data set; one of dctps.data.DATASETS, folder:PATH, or package.module:function of your own."""
    images: int | None = None
    """Of the images for training and validation only the first so many; None: all."""

    density: float | None = None
    """Fraction of the weights that train; None is the dense network."""
    offset: Offset = "dct"
    """Offset D of the sparse layers; None is classical pruning."""
    allocation: str = "epl"
    """How many weights each layer gets, where their places are drawn at random; one of dctps.ALLOCATIONS."""
    method: str | None = None
    """Who chooses the places instead: one of dctps.METHODS (pruning at initialisation), or imp (lottery tickets)."""
    method_steps: int | None = None
    """Steps of the method, rounds of imp; None is the method's own number (imp: a fifth goes in each round)."""
    method_batches: int | None = None
    """Batches per step of the method; None is its own number."""
    imp_round: int | None = None
    """The run of this round of imp, 0 being the dense one; None is the last. A run trains its earlier rounds itself."""
    imp_rewind: int = 0
    """Steps of the dense round after which imp takes the values that later rounds start from; 0: the initial ones."""
    rewire: str | None = None
    """Method that moves weights to other positions while the network trains: rigl, set or dsr. None moves none."""
    rewire_every: int = 100
    """Steps between rewirings."""
    rewire_until: float = 0.75
    """Fraction of all steps after which weights stay."""
    drop_fraction: float = 0.3
    """Of rigl and set: the fraction of its weights that a layer moves at first."""
    projection: str | None = None
    """Hyperplane Projection in place of sparse weights: dense, sparse or fastfood; density gives its dimensions."""
    norm_density: float | None = None
    """Fraction of BatchNorm's channels whose scale and shift train; None: all."""
    alpha: float | str = 1.0
    """Initial scale of D: a number, or a rule of dctps.ALPHAS."""
    train_alpha: bool = True
    """Whether alpha trains."""
    backend: str = "auto"
    """How sparse layers compute: auto, dense, torch or native."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """adam adds weight decay to the gradient (L2), as the paper does; adamw decouples it."""
    lr: float = 1e-3
    """Learning rate."""
    alpha_lr: float | None = None
    """Learning rate of the alphas; None is that of everything else."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 5e-4
    """On every trainable parameter, alpha, BatchNorm and biases included."""
    schedule: Literal["constant", "multistep", "cosine"] = "constant"
    """Learning rate over the epochs."""
    milestones: tuple[int, ...] = (120, 160)
    """Epochs at which multistep multiplies the learning rate by gamma."""
    gamma: float = 0.1
    """Factor of multistep."""
    legacy_lr_order: bool = False
    """Drop one epoch early, as the published code does."""

    epochs: int = 200
    """Passes over the training data."""
    batch_size: int = 128
    """Images per step, over all processes."""
    augment: bool = True
    """Random crops and flips, where the data set has them."""
    split: Literal["exact", "paper"] = "exact"
    """Validation split: exactly 10 %, or the published code's one image less."""
    seed: int = 0
    """Of the initialisation, the support, the split and the order of the images."""

    bf16: bool = False
    """Autocast to bfloat16."""
    channels_last: bool = False
    """Keep images and convolutions in channels-last memory format."""
    compile: bool = False
    """torch.compile the network."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _normalised(field.name, getattr(self, field.name)))
        _check(self)


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where and with what a run is executed; nothing here is part of a run's id."""

    runs: Path = Path("runs")
    """Folder of the run folders."""
    data_root: Path | None = None
    """Folder of the data sets; default: $DCTPS_DATA, else the user's cache."""
    device: str = "auto"
    """cpu, cuda, mps, or auto: the best there is."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves torch's own choice."""
    keep_memory: bool = True
    """On a CPU under Linux: freed memory stays with the process, which saves page faults in each step."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder (needs the tensorboard extra)."""
    quiet: bool = False
    """No progress, only errors."""


def _check(settings: Settings) -> None:
    for field in dataclasses.fields(settings):
        _check_type(field.name, getattr(settings, field.name))
    positive = "lr alpha_lr epochs batch_size gamma width hidden images method_steps method_batches rewire_every"
    for name in positive.split():
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, not {value}")
    if settings.density is not None and not 0 < settings.density <= 1:
        raise ValueError(f"density must be in (0, 1], not {settings.density}; leave it out for the dense network")
    _check_methods(settings)
    if settings.weight_decay < 0 or not 0 <= settings.momentum < 1 or settings.seed < 0:
        raise ValueError("weight_decay and seed must not be negative, momentum must be in [0, 1)")


def _check_methods(settings: Settings) -> None:
    """What the choice of a support, rewiring and projection ask of one another."""
    if settings.rewire is not None:
        lookup(REWIRINGS, settings.rewire, "rewire")
    for name in ("method", "rewire", "projection"):
        if getattr(settings, name) is not None and settings.density is None:
            raise ValueError(f"{name} {getattr(settings, name)} needs a density")
    if settings.projection is not None and (settings.method is not None or settings.rewire is not None):
        raise ValueError("a projection has no sparse weights: leave method and rewire out")
    if settings.imp_round is not None and (settings.method != "imp" or settings.imp_round < 0):
        raise ValueError(f"imp_round {settings.imp_round}: rounds are numbered from 0 and belong to the method imp")
    if settings.method == "imp" and (settings.offset is not None or settings.density == 1):
        raise ValueError("imp rewinds to a network's own values and prunes: say --offset None and a density below 1")
    if settings.imp_rewind < 0 or (settings.imp_rewind and settings.method != "imp"):
        raise ValueError(f"imp_rewind {settings.imp_rewind}: a number of steps, for the method imp")
    for name in ("norm_density", "rewire_until", "drop_fraction"):
        value = getattr(settings, name)
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{name} must be in (0, 1], not {value}")


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def _check_type(name: str, value: Any) -> None:
    """The type that a setting is declared with, and finite: what slips through would be found much later, or never."""
    hint = _hints()[name]
    options = typing.get_args(hint)
    words = [word for part in (hint, *options) if typing.get_origin(part) is Literal for word in typing.get_args(part)]
    if words:
        if value not in words and not (value is None and type(None) in options):
            raise ValueError(f"unknown {name} {value!r}; choose one of: {', '.join(words)}")
        return
    if name == "milestones":
        good = isinstance(value, tuple) and all(type(n) is int and n >= 0 for n in value)
    else:
        good = type(value) in (options or (hint,))  # a bool is an int to Python, but not to us
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        kind = getattr(hint, "__name__", str(hint)) if not options else str(hint)
        raise ValueError(f"setting {name} cannot be {value!r}; it is of type {kind}")


def _normalised(name: str, value: Any) -> Any:
    """Numbers of the declared type, so that 1 and 1.0, 0.0 and -0.0, [1] and (1,) are one setting with one id."""
    hint = _hints()[name]
    if float in (hint, *typing.get_args(hint)) and type(value) in (int, float):
        return float(value) + 0.0
    return tuple(value) if isinstance(value, list) else value


def non_defaults(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults, as JSON has them (tuples are lists)."""
    pairs = ((field.name, getattr(settings, field.name), field.default) for field in dataclasses.fields(settings))
    return {n: list(v) if isinstance(v, tuple) else v for n, v, default in pairs if v != default}


def run_id(settings: Settings) -> str:
    """Twelve hexadecimal digits: the same settings have the same id, on every platform and for ever."""
    text = json.dumps(non_defaults(settings), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def to_json(settings: Settings) -> dict[str, Any]:
    return dataclasses.asdict(settings)


def from_json(content: Any) -> Settings:
    """Settings from a JSON object; keys that are left out keep their defaults, unknown ones are an error."""
    if not isinstance(content, dict):
        raise ValueError(f"settings are a JSON object, not {type(content).__name__}")
    names = {field.name for field in dataclasses.fields(Settings)}
    unknown = sorted(set(content) - names)
    if unknown:
        raise ValueError(f"unknown settings {', '.join(unknown)}; there are: {', '.join(sorted(names))}")
    return Settings(**content)


_SGD = Settings(optimizer="sgd", lr=0.1, schedule="multistep")
PRESETS: dict[str, Settings] = {
    "paper-adam": Settings(),
    "paper-sgd": _SGD,  # the paper trains DCTpS at lr 0.03: say --lr 0.03
    "paper-lenet": Settings(model="lenet", epochs=160, batch_size=64),
}
