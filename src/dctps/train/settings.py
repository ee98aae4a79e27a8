"""What a training run is: one frozen dataclass of plain values, in and out of JSON, and the id that follows from it.

A run's id is a hash of the settings that differ from the defaults with which ids began. A new setting therefore needs a
default under which nothing changes. Where a default has changed since, `FIRST_DEFAULTS` has the first one, so that
finished runs keep their names.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from dctps.base.words import printable
from dctps.train.settings_checks import check_settings, normalise_paths, normalise_settings

Offset = str | None


class AnySettings(Protocol):
    """What the settings of every kind of training have; they are frozen dataclasses of plain values."""

    @property
    def model(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def bf16(self) -> bool: ...

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the id, as JSON has them."""
        ...


S = TypeVar("S", bound=AnySettings)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is trained, on what and how; these and only these decide a run's id."""

    model: str = "resnet50"
    """Network to train: package.module:function of your own, or one of:
    small_cnn, lenet, vgg11, vgg13, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, mobilenetv2,
    fixup_resnet20, fixup_resnet32, fixup_resnet44, fixup_resnet56, fixup_resnet110."""
    width: int | None = None
    """Number of channels in the first stage of a ResNet or VGG. None takes the usual width of the network."""
    hidden: int | None = None
    """Number of units in LeNet's fourth layer. None takes the paper's 82."""
    data: str = "cifar10"
    """Data set: folder:PATH for a folder of images, package.module:function of your own, or one of:
    cifar10, cifar100, tiny_imagenet, mnist, fashion_mnist, digits, digits32.
    The digits (8 x 8, and enlarged to 3 x 32 x 32) need no download."""
    images: int | None = None
    """Use only this many images, the first ones, for training and validation. None uses all."""

    density: float | None = None
    """Fraction of the weights that train. None trains the dense network."""
    offset: Offset = "dct_signed"
    """Offset D of the sparse layers: dct (published), dct_signed, dst, hartley, hadamard, srht, rotation,
    transform/order/signs/rows/seed, or none for classical pruning, without an offset."""
    allocation: str = "epl"
    """Rule that says how many weights each layer gets when they are drawn at random:
    uniform, epl, epf, erk, er, sqrt, epf_strict, uniform_paper, epl_paper, epf_paper, erk_paper, epl_paper_rigl,
    erk_paper_rigl, erk_google."""
    method: str | None = None
    """Method that chooses the weights before training: package.module:function of your own, or one of:
    random, magnitude, snip, iter_snip, grasp, force, force_paper, synflow, or imp for lottery tickets.
    None draws them by the allocation."""
    method_steps: int | None = None
    """Number of steps of the pruning method, or of rounds of imp. None takes the usual number of the method.
    The usual rounds of imp give up a fifth of the weights each."""
    method_batches: int | None = None
    """Number of batches in each step of the pruning method. None takes the usual number of the method."""
    imp_round: int | None = None
    """Round of imp to train: round 0 is the dense network, None is the last round.
    Earlier rounds that are missing are trained first."""
    imp_rewind: int = 0
    """Number of steps of the dense round after which imp takes the values that later rounds start from.
    0 takes the initial values."""
    rewire: str | None = None
    """Method that moves weights to other positions while the network trains: rigl, set or dsr. None moves none."""
    rewire_every: int = 100
    """Number of steps from one rewiring to the next."""
    rewire_until: float = 0.75
    """Fraction of all steps after which weights stay where they are."""
    drop_fraction: float = 0.3
    """Fraction of its weights that a layer moves in the first rewiring by rigl or set."""
    projection: str | None = None
    """Train in a random subspace (Hyperplane Projection) in place of sparse weights:
    dense, sparse, sparse_per_tensor or fastfood.
    The density gives the dimension of the subspace."""
    norm_density: float | None = None
    """Fraction of the channels of BatchNorm whose scale and shift train. None trains all of them."""
    alpha: float | str = "leverage"
    """Initial scale alpha of the offset: a number (published: 1), or one of the rules:
    paper, exact, preserve and leverage.
    leverage is for 1,000 steps at the learning rate 1e-3; leverage/LR/STEPS is the same rule for another training."""
    train_alpha: bool = True
    """Train alpha together with the weights."""
    frozen: Literal["values", "norms"] | None = None
    """Parameters that stay as they are, to see what the others learn without them:
    values (of S, in every layer but the last), or norms (the scales and shifts of BatchNorm).
    None freezes nothing."""
    backend: str = "auto"
    """How sparse layers compute: auto (the fastest of the others on this machine), dense, torch or native."""

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimiser. adam adds the weight decay to the gradient (L2), as the paper does; adamw decouples it."""
    lr: float = 1e-3
    """Learning rate at the first epoch."""
    alpha_lr: float | None = None
    """Learning rate of the alphas. None takes the learning rate of the other parameters."""
    values_lr: float | None = None
    """Learning rate of the values of S. None takes the learning rate of the other parameters."""
    momentum: float = 0.9
    """Momentum of the optimiser sgd."""
    weight_decay: float = 5e-4
    """Weight decay of every trainable parameter, alphas, BatchNorm and biases included."""
    schedule: Literal["constant", "multistep", "cosine"] = "constant"
    """How the learning rate changes over the epochs."""
    milestones: tuple[int, ...] = (120, 160)
    """Epochs at which the schedule multistep multiplies the learning rate by gamma."""
    gamma: float = 0.1
    """Factor by which the schedule multistep multiplies the learning rate."""
    legacy_lr_order: bool = False
    """Multiply the learning rate one epoch before each milestone, as the published code does."""

    epochs: int = 200
    """Number of passes over the training images."""
    batch_size: int = 128
    """Number of images in a step, over all processes together."""
    augment: bool = True
    """Crop and mirror training images at random, where the data set provides for it."""
    split: Literal["exact", "paper"] = "exact"
    """How many training images are kept for validation: exactly 10 %, or one less, as in the published code."""
    seed: int = 0
    """Seed of the initialisation, the support, the split and the order of the images."""

    bf16: bool = False
    """Compute in bfloat16 where torch.autocast does."""
    channels_last: bool = False
    """Keep images and convolutions in the channels-last memory format."""
    compile: bool = False
    """Compile the network with torch.compile."""

    def __post_init__(self) -> None:
        normalise_settings(self)
        check_settings(self)

    def identity(self) -> dict[str, Any]:
        """Return what differs from the first defaults; settings at a later default without effect are left out."""
        first = {field.name: FIRST_DEFAULTS.get(field.name, field.default) for field in dataclasses.fields(self)}
        changed = set(non_defaults(self))
        named = {name for name, value in first.items() if getattr(self, name) != value}
        named -= _without_effect(self) - changed
        return {name: value for name, value in _as_json(self).items() if name in named}


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where and with what a run is executed; nothing here is part of a run's id. Paths may be given as strings."""

    runs: Path = Path("runs")
    """Folder in which every run has a folder of its own."""
    data_root: Path | None = None
    """Folder of the data sets. None takes $DCTPS_DATA if it is set, else ~/.cache/dctps."""
    device: str = "auto"
    """Device that computes: cpu, cuda, mps, or auto for the best there is."""
    threads: int | None = None
    """Number of threads of torch on the CPU. None leaves the choice to torch."""
    keep_memory: bool = True
    """Keep freed memory in the process, which makes steps faster on a CPU under Linux."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run folder, which needs the tensorboard extra."""
    quiet: bool = False
    """Print errors only, and no progress."""

    def __post_init__(self) -> None:
        normalise_paths(self)


# --- in and out of JSON ---------------------------------------------------------------------------------------------


def non_defaults(settings: AnySettings) -> dict[str, Any]:
    """The settings that differ from their defaults, as JSON has them."""
    defaults = {field.name: field.default for field in dataclasses.fields(type(settings))}  # type: ignore[arg-type]
    return {name: value for name, value in _as_json(settings).items() if getattr(settings, name) != defaults[name]}


def _as_json(settings: AnySettings) -> dict[str, Any]:
    """All settings, with lists in place of tuples."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in vars(settings).items()}


FIRST_DEFAULTS: dict[str, Any] = {"offset": "dct", "alpha": 1.0}  # of the settings whose defaults have changed


def run_id(settings: AnySettings) -> str:
    """Twelve hexadecimal digits: the same settings have the same id, on every platform and for ever."""
    text = json.dumps(settings.identity(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_effect(settings: Settings) -> set[str]:
    """The settings of D that mean nothing in a network without sparse layers, or in one without an offset."""
    if settings.density is None or settings.projection is not None:
        return {"offset", "alpha"}
    return {"alpha"} if settings.offset is None else set()


def to_json(settings: AnySettings) -> dict[str, Any]:
    """All settings as a JSON object."""
    return dict(vars(settings))


def from_json(content: Any) -> Settings:
    """Settings from a JSON object; keys that are left out keep their defaults, unknown ones are an error."""
    return settings_from(content, Settings)


def settings_from(content: Any, kind: type[S]) -> S:
    """Settings of a kind from a JSON object."""
    if not isinstance(content, dict):
        raise ValueError(f"settings are a JSON object, not {type(content).__name__}")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = {field.name for field in fields}
    unknown = sorted(set(content) - names)
    if unknown:
        raise ValueError(f"unknown settings {printable(', '.join(unknown))}; there are: {', '.join(sorted(names))}")
    if missing := [
        field.name for field in fields if field.default is dataclasses.MISSING and field.name not in content
    ]:
        raise ValueError(f"the setting {missing[0]} is missing")
    return kind(**content)


PUBLISHED = Settings(offset="dct", alpha=1.0)  # the paper's main protocol
PRESETS: dict[str, Settings] = {
    "paper-adam": PUBLISHED,
    # the paper trains DCTpS at a learning rate of 0.03: say --lr 0.03
    "paper-sgd": dataclasses.replace(PUBLISHED, optimizer="sgd", lr=0.1, schedule="multistep"),
    "paper-lenet": dataclasses.replace(PUBLISHED, model="lenet", epochs=160, batch_size=64),
}
