"""The one place that decides how a layer computes y = (alpha D + S) x.

`choose` maps an offset, a geometry, a memory layout, a backend and nnz to a `Route`. A route has a name, computes
forwards and backwards, and counts its multiply-adds. The backends, `count_ops` and `dctps bench layers` call `choose`.

    backend  route                   where
    dense    dense                   every layer; W is built
    torch    sparse                  layers without an offset
             transform, separable, direct, patches: named after the product with D (offset_torch.py); S is sparse
    native   sparse                  layers without an offset
             filters, depthwise      patches of a few entries; W is built
             pixels                  small 1x1 layers on packed channels-last tensors
             matrix, line, product, spectrum, hadamard: named after the pointwise stage of D (native/stages.py)
             sparse and torch ...    transforms without a form, groups, signs per position; torch applies D

A new route is a class with the methods of `Route` and a line in `choose`, `_native` or `product_name`.
"""

import functools
import math

from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset
from dctps.core.patch_offset import PatchOffset
from dctps.core.transforms import Walsh, Waves
from dctps.ops.native import routes as native
from dctps.ops.native.stages import channel_period
from dctps.ops.offset_torch import OFFSET_PRODUCTS, OffsetProduct
from dctps.ops.route import Layout, Route
from dctps.ops.torch_routes import DenseRoute, TorchRoute

# torch
SEPARABLE_GAIN = 4  # factor of multiplications that `separable` must save to repay its passes over memory
PATCH_GAIN = 16  # factor of multiplications that `patches` must save to repay the layout of every patch
# native
SHORT_PATCH = 64  # entries of a filter up to which a product with W is the fastest
SMALL_MATRIX = 1 << 11  # entries of D up to which a product with D is faster than a transform
PIXEL_WEIGHTS = 1 << 13  # weights of a 1x1 layer above which a transform is faster although it changes the layout
SAMPLED_DENSITY = 1 / 32  # density above which the gradients of single weights cost more than the dense gradient
LARGEST_RADIX = 31  # largest prime factor of a length that the native Fourier transform can have


def choose(offset: Offset | None, geometry: Geometry, layout: Layout, backend: str, nnz: int) -> Route:
    """Return the route of a layer with nnz values, for tensors with this layout in memory."""
    if offset is None or isinstance(offset, PatchOffset):
        return _choose(offset, geometry, layout, backend, nnz)
    return _choose_uncached(offset, geometry, layout, backend, nnz)  # an offset of a user's class may not be hashable


@functools.lru_cache(maxsize=4096)
def _choose(offset: PatchOffset | None, geometry: Geometry, layout: Layout, backend: str, nnz: int) -> Route:
    return _choose_uncached(offset, geometry, layout, backend, nnz)


def _choose_uncached(offset: Offset | None, geometry: Geometry, layout: Layout, backend: str, nnz: int) -> Route:
    if backend == "dense":
        return DenseRoute(offset, geometry)
    if backend == "torch":
        return TorchRoute(geometry, _product(offset, geometry))
    return _native(offset, geometry, layout, nnz)


# --- torch ----------------------------------------------------------------------------------------------------------


def _product(offset: Offset | None, geometry: Geometry) -> OffsetProduct | None:
    if offset is None:
        return None
    return OFFSET_PRODUCTS[product_name(offset, geometry)](offset, geometry)


def product_name(offset: Offset, geometry: Geometry) -> str:
    """Return the name of torch's product with D that needs the fewest multiplications, estimated from sizes alone."""
    g = geometry
    if g.taps == 1 and g.groups == 1:
        return "transform"
    if not isinstance(offset, PatchOffset):
        return "patches"
    direct, patches = math.prod(g.weight_shape), g.groups * offset.length * math.log2(max(2, offset.length))
    if offset.separable and g.taps > 1 and SEPARABLE_GAIN * _separable_estimate(offset, g) < direct:
        return "separable"
    return "patches" if PATCH_GAIN * patches < direct else "direct"


def _separable_estimate(offset: PatchOffset, geometry: Geometry) -> float:
    """Return an estimate of the multiplications per pixel of the product `separable`.

    The lowest m frequencies of a line of length q, restricted to n neighbouring channels, have about n m / q degrees of
    freedom. The rank at float32 precision is a little larger: it is 18, 27, 43, 74 for n = m = 64, 128, 256, 512.
    """
    m, n, terms = geometry.filters, geometry.group_channels, offset.terms
    full = terms * m * n
    low_rank = (offset.recipe.order, offset.recipe.rows) == ("spatial", "lowest") and isinstance(offset.form, Waves)
    if geometry.groups > 1 or not low_rank:
        return full + terms * m * geometry.taps
    rank = n * m / offset.length + 18
    return min(full, rank * (n + terms * m)) + terms * m * geometry.taps


# --- native ---------------------------------------------------------------------------------------------------------


def _native(offset: Offset | None, geometry: Geometry, layout: Layout, nnz: int) -> Route:
    if not isinstance(offset, PatchOffset):
        return native.SparseRoute(geometry, _product(offset, geometry))
    if geometry.taps > 1 and offset.shape[1] <= SHORT_PATCH:
        if geometry.is_depthwise and layout.adjacent:
            return native.DepthwiseRoute(geometry, offset)
        return native.FilterRoute(geometry, offset)
    if layout.packed and _is_small_pixel_layer(geometry, nnz):
        return native.PixelRoute(geometry, offset)
    kind = stage_kind(offset, geometry)
    if kind is None:
        return native.SparseRoute(geometry, _product(offset, geometry))
    return native.StagedRoute(geometry, offset, kind)


def _is_small_pixel_layer(geometry: Geometry, nnz: int) -> bool:
    size = geometry.filters * geometry.group_channels
    unstrided = max(geometry.stride, default=1) == 1 and not any(geometry.padding)
    return (
        geometry.taps == geometry.groups == 1 and unstrided and size <= PIXEL_WEIGHTS and nnz <= SAMPLED_DENSITY * size
    )


def stage_kind(offset: PatchOffset, geometry: Geometry) -> str | None:
    """Return the kind of pointwise stage by which the native kernels apply D, or None where they cannot apply it."""
    if geometry.groups > 1 or offset.signs.shape[1] > 1:
        return None
    if isinstance(offset.form, Walsh):
        return "hadamard"
    if geometry.taps == 1 and math.prod(offset.shape) <= SMALL_MATRIX:
        return "matrix"
    if not isinstance(offset.form, Waves):
        return None
    if geometry.taps == 1:
        return "line" if _is_smooth(offset.form.spectrum(1).length) else None
    return "spectrum" if _is_smooth(channel_period(offset)) else "product"


def _is_smooth(length: int) -> bool:
    """Return whether this length has no prime factor above LARGEST_RADIX; 0 is not a length."""
    for prime in range(2, LARGEST_RADIX + 1):
        while length and length % prime == 0:
            length //= prime
    return length == 1
