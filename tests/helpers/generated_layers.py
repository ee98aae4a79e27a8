"""Layers of odd geometries on tensors that lie oddly in memory, drawn from a number, some with a number that is broken.

A broken number is an infinity or a NaN. `docs/numerics.md` says where it may show in results; `Expected` is that rule.
"""

import contextlib
import dataclasses
import functools
import math
import random

import torch
from torch import Tensor

from dctps import DpsLinear, Support, TransformOffset
from dctps.core.geometry import Geometry, convolve
from dctps.core.offsets import CHOICES, OFFSETS
from dctps.core.transforms import TRANSFORMS
from dctps.ops import functional, native
from helpers.tolerances import assert_close

QUANTITIES = ("y", "x", "values", "alpha")  # the output, and the gradients
ALPHA_SHAPE = DpsLinear(1, 1, nnz=1).alpha.shape


def _every_other(x: Tensor, dim: int) -> Tensor:
    return torch.stack([x, x], dim).select(dim, 0)


def _inside_of_nans(x: Tensor) -> Tensor:
    wide = x.new_full([size + 3 for size in x.shape], math.nan)
    inner = wide[tuple(slice(2, 2 + size) for size in x.shape)]
    return inner.copy_(x)


LAYOUTS = {
    "rows": lambda x: x,
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "channels last, every other": lambda x: _every_other(x.movedim(1, -1), -2).movedim(-1, 1),
    "every other": lambda x: _every_other(x, -1),
    "inside of NaNs": _inside_of_nans,
    "batch innermost": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "one image": lambda x: x[:1].expand(x.shape),
    "one channel": lambda x: x[:, :1].expand(x.shape),
    "one column": lambda x: x[..., :1].expand(x.shape),
    "one number": lambda x: x[(slice(1),) * x.dim()].expand(x.shape),
}


@dataclasses.dataclass(frozen=True)
class GeneratedLayer:
    """A layer, what it is given, and how it computes."""

    number: int
    geometry: Geometry
    spatial: tuple[int, ...]
    batch: int
    nnz: int
    offset: str | None
    alpha: float
    dtype: torch.dtype
    layouts: tuple[str, str]  # of the input and of the gradient of the output
    broken: (
        tuple[str, tuple[int, ...] | None, float] | None
    )  # a tensor, a place in it (None: any) and its broken number
    needs: tuple[bool, bool, bool]  # whether the gradients of x, values and alpha are wanted
    threads: int  # threads and bytes of a chunk of the native kernels
    chunk: int
    scale: float = 1.0  # size of the numbers in x and in the gradient of the output

    def bound_offset(self):
        return None if self.offset is None else TransformOffset.parse(self.offset).bind(self.geometry.weight_shape)

    def tensors(self) -> dict[str, Tensor | None]:
        """x, values, positions, alpha and the gradient of the output, which is named "upstream"."""
        g, generator = self.geometry, torch.Generator().manual_seed(self.number)

        def numbers(*shape):
            return torch.randn(shape, dtype=self.dtype, generator=generator)

        x, upstream = (LAYOUTS[layout] for layout in self.layouts)
        found = {
            "x": x(self.scale * numbers(self.batch, g.channels, *self.spatial)),
            "values": numbers(self.nnz),
            "alpha": None if self.offset is None else torch.full(ALPHA_SHAPE, self.alpha, dtype=self.dtype),
            "upstream": upstream(self.scale * numbers(self.batch, g.filters, *g.output_size(self.spatial))),
            "positions": Support.sample(g.weight_shape, self.nnz, seed=self.number).positions,
        }
        if self.broken is not None:
            name, place, number = self.broken
            _break(found[name], place, number, random.Random(self.number))
        return found

    def results(self, backend: str) -> dict[str, Tensor]:
        """The output and the gradients that are wanted."""
        t = self.tensors()
        names = [
            name for name, needed in zip(QUANTITIES[1:], self.needs, strict=True) if needed and t[name] is not None
        ]
        leaves = [t[name].requires_grad_() for name in names]
        with _threads(self.threads if backend == "native" else 1), _chunks(self.chunk):
            layer = t["x"], t["values"], t["positions"], t["alpha"], None, self.bound_offset(), self.geometry
            y = functional.multiply(*layer, backend)
            gradients = torch.autograd.grad(y, leaves, t["upstream"]) if leaves else ()
        return {"y": y.detach(), **dict(zip(names, gradients, strict=True))}


def _break(tensor: Tensor | None, place: tuple[int, ...] | None, number: float, rng: random.Random) -> None:
    if tensor is not None and tensor.numel():
        tensor[place or tuple(rng.randrange(size) for size in tensor.shape)] = number


@contextlib.contextmanager
def _threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _chunks(size: int):
    before = None if native.kernels is None else native.kernels.cache_budget(size)
    try:
        yield
    finally:
        if before is not None:
            native.kernels.cache_budget(before)


# --- drawing ----------------------------------------------------------------------------------------------------------


def generated_layer(number: int) -> GeneratedLayer:
    """The layer with this number, always the same."""
    rng = random.Random(number)
    geometry, spatial = _geometry(rng)
    size = math.prod(geometry.weight_shape)
    tensor = rng.choice([None, None, "x", "x", "values", "upstream", "upstream", "alpha"])
    return GeneratedLayer(
        number=number,
        geometry=geometry,
        spatial=spatial,
        batch=rng.choice([0, 1, 2, 3, 5]),
        nnz=min(size, rng.choice([0, 1, 5, 20, size // 40, size])),
        offset=_offset(rng),
        alpha=rng.choice([0.7, 0.7, -1.3, 0.0]),
        dtype=rng.choice([torch.float32, torch.float64]),
        layouts=_layouts(rng),
        broken=None if tensor is None else (tensor, None, rng.choice([math.inf, -math.inf, math.nan])),
        needs=rng.choice([(True, True, True)] * 3 + [(True, True, False), (False, True, True), (False, True, False)]),
        threads=rng.randint(1, 5),
        chunk=rng.choice([1, 20_000, 10**6]),
    )


def _offset(rng: random.Random) -> str | None:
    made = TransformOffset(rng.choice(list(TRANSFORMS)), *map(rng.choice, CHOICES.values()), rng.randrange(9))
    return rng.choice([None, None, *OFFSETS, made.name, made.name])


def _layouts(rng: random.Random) -> tuple[str, str]:
    """The layouts of the input and of the gradient, half of them alike, because routes need both in one format."""
    one = rng.choice(["channels last"] * 3 + list(LAYOUTS))
    return one, rng.choice([one] * len(LAYOUTS) + list(LAYOUTS))


def _geometry(rng: random.Random) -> tuple[Geometry, tuple[int, ...]]:
    """A geometry, and a size of its input with at most some thousand pixels."""
    axes = rng.choice([0, 1, 2, 2, 2, 3])
    groups, channels, filters = _channels(rng, axes)
    one_pixel = rng.random() < 0.2
    kernel = tuple(
        1 if one_pixel else rng.choice([1, 2, 3] if axes == 3 else [1, 2, 3, 3, 4, 5, 7]) for _ in range(axes)
    )
    stride = tuple(rng.choice([1, 1, 1, 2, 3, 5, 9]) for _ in range(axes))
    dilation = tuple(rng.choice([1, 1, 1, 2, 3, 8]) for _ in range(axes))
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(rng.choice([0, 0, 1, 2, r // 2, r, 4 if axes == 3 else 9]) for r in reach)
    least = [max(r + 1 - 2 * p, 1) for r, p in zip(reach, padding, strict=True)]
    spatial = tuple(size + rng.randrange(4 if axes == 3 else 10) for size in least)
    if math.prod(spatial) > 2000:
        return _geometry(rng)
    return Geometry((groups * filters, channels, *kernel), stride, padding, dilation, groups), spatial


def _channels(rng: random.Random, axes: int) -> tuple[int, int, int]:
    """The numbers of groups, of channels of a group, and of filters of a group."""
    kind = rng.choice(["dense"] * 4 + ["groups", "depthwise", "depthwise", "multiplied"]) if axes else "dense"
    if kind in ("depthwise", "multiplied"):
        return rng.choice([2, 5, 16, 21, 40]), 1, 1 if kind == "depthwise" else 2
    few = axes == 3 or kind == "groups"
    channels = rng.choice([1, 2, 3, 5, 8, 17] if few else [1, 3, 16, 33, 64, 70, 90, 127])
    filters = rng.choice([1, 2, 7, 16] if few else [1, 4, 16, 33, 80, 160])
    return rng.choice([2, 3]) if kind == "groups" else 1, channels, filters


# --- what is right ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Expected:
    """A result by its definition: its numbers where it may not be broken, where it must be, and where it may be."""

    numbers: Tensor
    must: Tensor
    may: Tensor

    def check(self, result: Tensor) -> None:
        result = result.reshape(self.numbers.shape)
        broken = ~result.isfinite()
        assert not (self.must & ~broken).any(), "a broken number was lost"
        assert not (broken & ~self.may).any(), "a number is broken that no broken number reaches"
        assert_close(result[~self.may], self.numbers[~self.may])


def expected_results(layer: GeneratedLayer, backend: str) -> dict[str, Expected]:
    """All results by their definition, that is by a dense weight in float64."""
    with _threads(1):  # more of them would wait for one another longer than they compute
        return _expected_results(layer, backend == "dense")


@functools.lru_cache(maxsize=2)
def _expected_results(layer: GeneratedLayer, is_dense: bool) -> dict[str, Expected]:
    t, g = layer.tensors(), layer.geometry
    places = t["positions"].long()

    def sparse(values: Tensor) -> Tensor:
        flat = torch.zeros(math.prod(g.weight_shape), dtype=torch.float64)
        return flat.index_add(0, places, values).view(g.weight_shape)

    every, D = torch.ones(g.weight_shape, dtype=torch.float64), 0.0
    connected, broken_weight = sparse(_ones(t["values"])), sparse(_broken(t["values"]))
    if layer.offset is not None:
        D = layer.bound_offset().matrix(torch.float64).view(g.weight_shape)
        connected, broken_weight = every, broken_weight + _broken(t["alpha"])
    W = sparse(_whole(t["values"])) + (0.0 if t["alpha"] is None else _whole(t["alpha"])) * D
    numbers = _products(_whole(t["x"]), W, _whole(t["upstream"]), g)
    must = _reached(t, broken_weight, connected, g)
    # The dense weight has zeros where there is no connection, and zero times infinity is a NaN.
    may = _reached(t, broken_weight, every if is_dense else connected, g)
    may = [a | b for a, b in zip(may, _through_zeros(t, broken_weight, g), strict=True)]
    found = {name: Expected(*three) for name, *three in zip(("y", "x", "W"), numbers, must, may, strict=True)}
    W_grad = found.pop("W")
    at_places = (part.flatten()[places] for part in dataclasses.astuple(W_grad))
    alpha = Expected(torch.sum(W_grad.numbers * D), W_grad.must.any(), W_grad.may.any())
    return found | {"values": Expected(*at_places), "alpha": alpha}


def _products(x: Tensor, weight: Tensor, upstream: Tensor, g: Geometry) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the gradients of x and of the weight."""
    x, weight = x.requires_grad_(), weight.detach().requires_grad_()
    y = convolve(x, weight, None, g)
    return y.detach(), *torch.autograd.grad(y, [x, weight], upstream)


def _reached(t: dict[str, Tensor | None], broken_weight: Tensor, connected: Tensor, g: Geometry) -> list[Tensor]:
    """Where the output and the gradients of x and W have a term with a broken number, if padding makes no terms."""
    x, upstream = t["x"], t["upstream"]
    by_x = _products(_broken(x), connected, _ones(upstream), g)
    by_weight = _products(_ones(x), broken_weight, _ones(upstream), g)
    by_upstream = _products(_ones(x), connected, _broken(upstream), g)
    counts = by_x[0] + by_weight[0], by_weight[1] + by_upstream[1], by_x[2] + by_upstream[2]
    return [count > 0.5 for count in counts]


def _through_zeros(t: dict[str, Tensor | None], broken_weight: Tensor, g: Geometry) -> list[Tensor]:
    """Where broken numbers may show by meeting zeros: the padding, and the zeros between and around the gradients."""
    spatial = (1,) * g.axes
    in_filter = broken_weight.flatten(1).any(1).view(1, -1, *spatial)
    in_channel = broken_weight.view(g.groups, -1, g.group_channels, g.taps).any(3).any(1).view(1, -1, *spatial)
    in_upstream = _broken(t["upstream"]).transpose(0, 1).flatten(1).any(1).view(-1, 1, *spatial)
    return [in_filter, in_channel, in_upstream]


def _whole(tensor: Tensor) -> Tensor:
    """The tensor with zeros in the place of broken numbers."""
    return torch.where(tensor.isfinite(), tensor, 0).double().contiguous()


def _broken(tensor: Tensor) -> Tensor:
    return (~tensor.isfinite()).double().contiguous()


def _ones(tensor: Tensor) -> Tensor:
    return torch.ones(tensor.shape, dtype=torch.float64)
