"""What `dctps bench` can be asked to measure: the flags of its three subjects, which do not need torch to be read."""

import dataclasses
import itertools
from typing import Annotated, NamedTuple

import tyro

from dctps.base.registry import NONE, is_none
from dctps.bench.stopwatch import check_counts

SCALING_WARMUP = 2  # rounds of `scaling` that do not count


def offset_name(offset: str | None) -> str:
    """Return the one name of an offset in tables and names of files; "none" is classical pruning."""
    return NONE if offset is None or is_none(offset) else offset


@dataclasses.dataclass(frozen=True)
class Layers:
    """Layer by layer, forward and backward: torch's dense layer against each way that ours can take.

    Layers with one shape, one shape of input and nearly one number of weights are measured once.
    """

    model: str = "resnet18"
    """A network of dctps.models, or your own as package.module:function (function() returns an nn.Module)."""
    density: float = 1e-3
    """Fraction of the weights that train, in (0, 1]."""
    offset: str = "dct"
    """A name of dctps.OFFSETS, transform/order/signs/rows/seed, or none."""
    batch: int = 32
    """Examples per batch."""
    repeats: int = 7
    """Times that every way is measured; the median is reported."""
    inference: bool = False
    """Forward only, under torch.inference_mode."""
    channels_last: bool = False
    """Inputs in channels-last memory format."""
    input_shape: tuple[int, ...] = (3, 32, 32)
    """Shape of one example."""
    classes: int = 10
    """Classes of the network."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", offset_name(self.offset))

    def check(self) -> None:
        """ValueError for what cannot be measured, before anything is."""
        from dctps.bench import networks

        networks.check([self.model], [self.density], [self.offset])
        check_counts(batch=self.batch, repeats=self.repeats, classes=self.classes)
        check_counts(input_shape=min(self.input_shape, default=0))
        if self.channels_last and len(self.input_shape) != 3:
            raise ValueError("--channels-last is for inputs of channels x height x width")

    @property
    def memory_format(self) -> str:
        return "channels_last" if self.channels_last else "contiguous"


@dataclasses.dataclass(frozen=True)
class Steps:
    """Whole training steps (zero_grad, forward, cross entropy, backward, Adam, float32) or inferences, in turn.

    Contenders: the dense network, ours, and the peers; each in the better of both memory formats. With --against,
    two versions of dctps instead.
    """

    models: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--model"])] = ("resnet18",)
    """Networks of dctps.models, or your own as package.module:function (function() returns an nn.Module)."""
    densities: Annotated[tuple[float, ...], tyro.conf.arg(aliases=["--density"])] = (1e-2, 1e-3)
    """Fractions of the weights that train, in (0, 1]."""
    offsets: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["--offset"])] = ("dct",)
    """Offsets: names of dctps.OFFSETS, transform/order/signs/rows/seed, or none."""
    batch: int = 128
    """Examples per step."""
    steps: int = 7
    """Rounds that count; the median is reported."""
    warmup: int = 2
    """Rounds before them that do not count; the first also chooses the backends of our layers."""
    inference: bool = False
    """Forward passes in eval mode under torch.inference_mode, instead of training steps."""
    input_shape: tuple[int, ...] = (3, 32, 32)
    """Shape of one example."""
    classes: int = 10
    """Classes of the targets."""
    width: int | None = None
    """Channels in the first stage of the ResNets and VGGs; None takes the usual width."""
    peers: tuple[str, ...] | None = None
    """Who takes part beside the dense network and ours: published (two dense products, dense gradients),
    dense_compiled (torch.compile), onnxruntime, openvino (both dense, for --inference),
    sparseprop, sparselab (both for the offset none, sparselab for linear networks),
    ours_fused (ours without dctps.streamline, in inferences).
    What is not installed is left out, with a word.
    None stands for published and, for the offset none, sparseprop."""
    against: str | None = None
    """A commit, branch or tag of this repository, or a wheel of dctps.
    It is installed into a temporary folder.
    Both versions take their steps in turn, each in a process of its own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", tuple(map(offset_name, self.offsets)))

    def check(self) -> None:
        """ValueError for what cannot be measured, before anything is."""
        from dctps.bench import contenders, networks

        networks.check(self.models, self.densities, self.offsets)
        networks.check_width(self.models, self.width)
        check_counts(batch=self.batch, steps=self.steps, warmup=self.warmup, classes=self.classes)
        check_counts(input_shape=min(self.input_shape, default=0), width=1 if self.width is None else self.width)
        contenders.check_peers(self.peers or ())
        if self.against is not None and self.peers is not None:
            raise ValueError("--against compares two versions of dctps and no peers; leave --peers out")

    @property
    def cells(self) -> list["StepCell"]:
        return [StepCell(*of) for of in itertools.product(self.models, self.densities, self.offsets)]

    @property
    def rounds(self) -> int:
        return len(self.cells) * (self.warmup + self.steps)


class StepCell(NamedTuple):
    """What the contenders are compared on."""

    model: str
    density: float
    offset: str


@dataclasses.dataclass(frozen=True)
class Scaling:
    """One layer, forward and backward: time against its size at one density, and against the density at one size.

    A linear layer of n x n, and a 3 x 3 convolution from c to c channels.
    """

    sizes: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192)
    """Sizes n of the linear layer."""
    channels: tuple[int, ...] = (32, 64, 128, 256, 512)
    """Channels c of the convolution."""
    density: float = 1e-3
    """The density at which the size changes."""
    densities: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1)
    """Densities at which the size is fixed."""
    fixed_size: int = 2048
    """The size n at which the density changes."""
    fixed_channels: int = 256
    """The channels c at which the density changes."""
    pixels: int = 8
    """Height and width of the convolution's images."""
    batch: int = 32
    """Examples per batch."""
    offset: str = "dct"
    """A name of dctps.OFFSETS, transform/order/signs/rows/seed, or none."""
    repeats: int = 7
    """Times that every layer is measured; the median is reported."""
    dense_limit: float = 2.0
    """Gigabytes of weight and gradient beyond which the dense layer is left out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", offset_name(self.offset))

    def check(self) -> None:
        """ValueError for what cannot be measured, before anything is."""
        from dctps.bench import networks

        networks.check_densities([self.density, *self.densities])
        networks.check_offsets([self.offset])
        counts = {"sizes": min(self.sizes, default=1), "channels": min(self.channels, default=1)}
        check_counts(**counts, fixed_size=self.fixed_size, fixed_channels=self.fixed_channels, pixels=self.pixels)
        check_counts(batch=self.batch, repeats=self.repeats)
        if not self.dense_limit >= 0:
            raise ValueError(f"--dense-limit must not be negative, but is {self.dense_limit}")

    @property
    def cells(self) -> list["ScalingCell"]:
        axes = {"linear": (self.sizes, self.fixed_size), "conv": (self.channels, self.fixed_channels)}
        cells = []
        for layer, (sizes, fixed) in axes.items():
            cells += [ScalingCell("size", layer, size, self.density) for size in sizes]
            cells += [ScalingCell("density", layer, fixed, density) for density in self.densities]
        return cells

    @property
    def rounds(self) -> int:
        return len(self.cells) * (SCALING_WARMUP + self.repeats)


class ScalingCell(NamedTuple):
    """One layer to measure; `sweep` says what changes between the cells of one curve."""

    sweep: str
    layer: str
    size: int
    density: float
