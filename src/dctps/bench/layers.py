"""`dctps bench layers`: the layers of one network, each way they can take against torch's own layer."""

import copy
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor, nn

from dctps import functional
from dctps.bench import networks
from dctps.bench.calls import inference, there_and_back
from dctps.bench.contenders import FORMATS, in_format
from dctps.bench.footprint import memory
from dctps.bench.stopwatch import check_counts, interleaved
from dctps.convert import densify, sparsify
from dctps.layers import DpsLayer, DpsLinear

WARMUP = 1


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

    def check(self) -> None:
        """ValueError for what cannot be measured, before anything is."""
        networks.check([self.model], [self.density], [self.offset])
        check_counts(batch=self.batch, repeats=self.repeats, classes=self.classes)
        check_counts(**{"input-shape": min(self.input_shape, default=0)})
        if self.channels_last and len(self.input_shape) != 3:
            raise ValueError("--channels-last is for inputs of channels x height x width")

    @property
    def memory_format(self) -> str:
        return "channels_last" if self.channels_last else "contiguous"


@dataclasses.dataclass
class Case:
    """A layer, an input as it meets it, and how often the network does so."""

    name: str
    layer: DpsLayer
    x: Tensor
    count: int = 1


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """One way of one case; `dense` is torch's own layer, ours are ours/dense (builds W), ours/torch, ours/native."""

    model: str
    density: float
    offset: str
    batch: int
    mode: str
    memory_format: str
    layer: str
    count: int
    weight_shape: str
    input_shape: str
    nnz: int
    contender: str
    chosen: bool  # whether `auto` takes it
    median_ms: float
    min_ms: float
    ratio_to_dense: float  # above 1: faster
    memory_bytes: int  # of weight, positions, gradient and Adam's moments, without bias and alpha


def find_cases(asked: Layers) -> list[Case]:
    """The distinct cases of a network, by one batch through it."""
    asked.check()
    net = networks.build(asked.model, asked.input_shape, asked.classes)
    net = sparsify(net, asked.density, offset=networks.offset_of(asked.offset), allocation="epl")
    in_format(net, asked.memory_format)
    cases: dict[Hashable, Case] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, DpsLayer):
            layer.register_forward_pre_hook(_collector(name, cases))
    net(torch.randn(asked.batch, *asked.input_shape).contiguous(memory_format=FORMATS[asked.memory_format]))
    return list(cases.values())


def _collector(name: str, cases: dict[Hashable, Case]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def collect(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, DpsLayer)
        x, size = inputs[0], round(2 * math.log2(max(1, layer.nnz)))  # supports of nearly one size share a case
        padding = getattr(layer, "padding", None), getattr(layer, "padding_mode", None)
        key = (type(layer), layer.geometry, padding, layer.bias is None, size, x.shape, x.requires_grad)
        if key in cases:
            cases[key].count += 1
        else:
            cases[key] = Case(name, layer, x.detach().clone().requires_grad_(x.requires_grad))

    return collect


def measure(asked: Layers, cases: list[Case], tick: Callable[[], object] = lambda: None) -> Iterator[list[LayerRow]]:
    """The rows of each case, as soon as they are known."""
    for case in cases:
        yield _measure_case(asked, case, tick)


def _measure_case(asked: Layers, case: Case, tick: Callable[[], object]) -> list[LayerRow]:
    ways = {"dense": in_format(densify(_alone(case.layer)), asked.memory_format)}
    for backend in functional.backends():
        ways[f"ours/{backend}"] = layer = _alone(case.layer)
        layer.backend = backend
    x = case.x.detach() if asked.inference else case.x
    call = inference if asked.inference else there_and_back
    times = interleaved({name: call(way, x) for name, way in ways.items()}, asked.repeats, WARMUP, tick)
    chosen = f"ours/{_choice(asked, case)}"
    return [
        LayerRow(
            model=asked.model,
            density=asked.density,
            offset=asked.offset,
            batch=asked.batch,
            mode="inference" if asked.inference else "training",
            memory_format=asked.memory_format,
            layer=case.name,
            count=case.count,
            weight_shape="x".join(map(str, case.layer.geometry.weight_shape)),
            input_shape="x".join(map(str, case.x.shape)),
            nnz=case.layer.nnz,
            contender=name,
            chosen=name == chosen,
            median_ms=own.median,
            min_ms=own.least,
            ratio_to_dense=times["dense"].median / own.median,
            memory_bytes=_weight_memory(case.layer, dense=name == "dense"),
        )
        for name, own in times.items()
    ]


def _alone(layer: DpsLayer) -> DpsLayer:
    """A copy that no longer reports to the collector."""
    new = copy.deepcopy(layer)
    new._forward_pre_hooks.clear()
    return new


def _choice(asked: Layers, case: Case) -> str:
    """What `auto` stands for, with gradients or without."""
    x = case.x.detach()
    seen = x.reshape(-1, x.shape[-1]) if isinstance(case.layer, DpsLinear) else x
    with torch.set_grad_enabled(not asked.inference):
        return case.layer.chosen_backend(seen)


def _weight_memory(layer: DpsLayer, dense: bool) -> int:
    size = layer.values.element_size()
    if dense:
        return 4 * size * math.prod(layer.geometry.weight_shape)
    return 4 * size * layer.nnz + layer.positions.nbytes
