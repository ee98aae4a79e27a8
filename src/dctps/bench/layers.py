"""`dctps bench layers`: the layers of one network, each way they can take against torch's own layer."""

import copy
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator

import torch
from torch import Tensor, nn

from dctps.bench import networks
from dctps.bench.calls import inference, there_and_back
from dctps.bench.contenders import FORMATS, in_format
from dctps.bench.stopwatch import interleaved
from dctps.bench.subjects import Layers
from dctps.nn.convert import densify, sparsify
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.layers import DpsLinear
from dctps.ops import autotune, functional

WARMUP = 1


@dataclasses.dataclass
class Case:
    """A layer, what its input looks like, and how often the network runs such a layer."""

    name: str
    layer: DpsLayer
    shape: tuple[int, ...]
    channels_last: bool
    gradient: bool  # whether the input wants one: not that of a first layer
    count: int = 1

    def example(self, gradients: bool) -> Tensor:
        x = torch.randn(self.shape)
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x.requires_grad_(gradients and self.gradient)


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
    route: str  # how our layer computes, by the name in dctps.ops.routes; empty for torch's own layer
    chosen: bool  # whether `auto` takes it
    median_ms: float
    min_ms: float
    ratio_to_dense: float  # above 1: faster
    memory_bytes: int  # of weight, positions, gradient and Adam's moments, without bias and alpha

    @property
    def cell(self) -> str:
        return f"{self.layer} {self.weight_shape}"


def find_cases(asked: Layers) -> list[Case]:
    """The distinct cases of a network, by one batch through it."""
    asked.check()
    net = networks.build(asked.model, asked.input_shape, asked.classes)
    net = sparsify(net, asked.density, offset=asked.offset, allocation="epl")
    in_format(net, asked.memory_format)
    cases: dict[Hashable, Case] = {}
    named = [(name, layer) for name, layer in net.named_modules() if isinstance(layer, DpsLayer)]
    handles = [layer.register_forward_pre_hook(_collector(name, cases)) for name, layer in named]
    net(torch.randn(asked.batch, *asked.input_shape).contiguous(memory_format=FORMATS[asked.memory_format]))
    for handle in handles:
        handle.remove()
    return list(cases.values())


def _collector(name: str, cases: dict[Hashable, Case]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def collect(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, DpsLayer)
        x, nnz_class = inputs[0], autotune.nnz_class(layer.nnz)
        padding = getattr(layer, "padding", None), getattr(layer, "padding_mode", None)
        last = autotune.is_channels_last(x)
        key = (type(layer), layer.geometry, padding, layer.bias is None, nnz_class, x.shape, last, x.requires_grad)
        if key in cases:
            cases[key].count += 1
        else:
            cases[key] = Case(name, layer, tuple(x.shape), last, x.requires_grad)

    return collect


def measure(asked: Layers, cases: list[Case], tick: Callable[[], object] = lambda: None) -> Iterator[list[LayerRow]]:
    """The rows of each case, as soon as they are known."""
    for case in cases:
        yield _measure_case(asked, case, tick)


def _measure_case(asked: Layers, case: Case, tick: Callable[[], object]) -> list[LayerRow]:
    ways = {"dense": in_format(densify(copy.deepcopy(case.layer)), asked.memory_format)}
    for backend in functional.backends():
        ways[f"ours/{backend}"] = layer = copy.deepcopy(case.layer)
        layer.backend = backend
    x = case.example(gradients=not asked.inference)
    call = inference if asked.inference else there_and_back
    times = interleaved({name: call(way, x) for name, way in ways.items()}, asked.repeats, WARMUP, tick)
    chosen = f"ours/{_choice(case.layer, x, gradients=not asked.inference)}"
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
            input_shape="x".join(map(str, case.shape)),
            nnz=case.layer.nnz,
            contender=name,
            route=_route_name(ways[name], x),
            chosen=name == chosen,
            median_ms=own.median,
            min_ms=own.least,
            ratio_to_dense=times["dense"].median / own.median,
            memory_bytes=_weight_memory(case.layer, dense=name == "dense"),
        )
        for name, own in times.items()
    ]


def _route_name(layer: nn.Module, x: Tensor) -> str:
    return layer.route(x).name if isinstance(layer, DpsLayer) else ""


def _choice(layer: DpsLayer, x: Tensor, gradients: bool) -> str:
    """What `auto` stands for, with gradients or without."""
    seen = x.reshape(-1, x.shape[-1]) if isinstance(layer, DpsLinear) else x
    with torch.set_grad_enabled(gradients):
        return layer.chosen_backend(seen)


def _weight_memory(layer: DpsLayer, dense: bool) -> int:
    size = layer.values.element_size()
    if dense:
        return 4 * size * math.prod(layer.geometry.weight_shape)
    return 4 * size * layer.nnz + layer.positions.nbytes
