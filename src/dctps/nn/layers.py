"""DpsLinear, DpsConv1d, DpsConv2d, DpsConv3d: the layers of torch with W = alpha D + S (paper: section 3)."""

import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dctps.base.registry import lookup
from dctps.core.geometry import Geometry
from dctps.core.offsets import OffsetLike
from dctps.core.support import Support
from dctps.nn.arguments import check_input
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.lazy import Product, computed
from dctps.ops.functional import AUTO


class DpsLinear(DpsLayer):
    """A linear layer y = (alpha D + S) x + bias: torch.nn.Linear with nnz trainable weights instead of out * in.

    >>> layer = DpsLinear(784, 100, density=0.01)
    >>> layer(torch.zeros(2, 784)).shape, layer.values.shape
    (torch.Size([2, 100]), torch.Size([784]))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        density: float | None = None,
        nnz: int | None = None,
        support: Support | None = None,
        offset: OffsetLike = "dct_signed",
        alpha: float = 1.0,
        train_alpha: bool = True,
        seed: int = 0,
        backend: str = AUTO,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = operator.index(in_features), operator.index(out_features)
        self._build(
            Geometry((self.out_features, self.in_features)),
            bias=bias,
            density=density,
            nnz=nnz,
            support=support,
            offset=offset,
            alpha=alpha,
            train_alpha=train_alpha,
            seed=seed,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor) -> Tensor:  # (..., in_features) -> (..., out_features)
        x = computed(x)
        weight = self._known_weight(x)
        if weight is not None:
            return F.linear(x, weight, self._own("bias"))
        y = self._multiply(self._as_batch(x))
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def _as_batch(self, x: Tensor) -> Tensor:  # (..., in_features) -> (rows, in_features)
        if not isinstance(x, Tensor):
            check_input(x, self.values)
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"expected an input (..., {self.in_features}), not {tuple(x.shape)}")
        return x if x.dim() == 2 else x.reshape(-1, self.in_features)

    def _arguments(self) -> str:
        return f"{self.in_features} -> {self.out_features}"


Size = int | Sequence[int]


class DpsConv(DpsLayer):
    """The base of the convolutions over `axes` axes, which take every argument of the convolutions of torch."""

    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        density: float | None = None,
        nnz: int | None = None,
        support: Support | None = None,
        offset: OffsetLike = "dct_signed",
        alpha: float = 1.0,
        train_alpha: bool = True,
        seed: int = 0,
        backend: str = AUTO,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.groups = map(operator.index, (in_channels, out_channels, groups))
        self.kernel_size, self.stride, self.dilation = map(self._per_axis, (kernel_size, stride, dilation))
        self.padding = padding if isinstance(padding, str) else self._per_axis(padding)
        self.padding_mode = padding_mode
        self._check_arguments()
        self._build(
            Geometry(
                (self.out_channels, self.in_channels // self.groups, *self.kernel_size),
                self.stride,
                self._symmetric_padding(),
                self.dilation,
                self.groups,
            ),
            bias=bias,
            density=density,
            nnz=nnz,
            support=support,
            offset=offset,
            alpha=alpha,
            train_alpha=train_alpha,
            seed=seed,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    def _per_axis(self, size: Size) -> tuple[int, ...]:
        """Return one number for each axis; a single number serves all axes."""
        sizes = tuple(size) if isinstance(size, Sequence) else (size,) * self.axes
        if len(sizes) != self.axes:
            raise ValueError(f"a {type(self).__name__} takes one number or {self.axes}, one for each axis, not {size}")
        return tuple(map(operator.index, sizes))

    def _check_arguments(self) -> None:
        """Raise ValueError unless the arguments are such that torch's convolution would take them."""
        if self.groups < 1 or self.in_channels % self.groups or self.out_channels % self.groups:
            channels = f"in_channels={self.in_channels} and out_channels={self.out_channels}"
            raise ValueError(f"groups={self.groups} must divide {channels}")
        if min(*self.kernel_size, *self.stride, *self.dilation) < 1:
            sizes = f"{self.kernel_size}, {self.stride}, {self.dilation}"
            raise ValueError(f"kernel_size, stride and dilation must be at least 1, not {sizes}")
        if not isinstance(self.padding, str) and min(self.padding) < 0:
            raise ValueError(f"padding must not be negative: {self.padding}")
        if isinstance(self.padding, str):
            lookup(dict.fromkeys(("same", "valid")), self.padding, "padding")
            if self.padding == "same" and max(self.stride) > 1:
                raise ValueError(f"padding='same' needs stride 1, not {self.stride}; give the padding in numbers")
        lookup(dict.fromkeys(("zeros", "reflect", "replicate", "circular")), self.padding_mode, "padding mode")

    def _both_sides(self) -> list[int]:
        """Return the padding on the left and right of each axis, the last axis first, as F.pad takes it."""
        if not isinstance(self.padding, str):
            return [p for pad in reversed(self.padding) for p in (pad, pad)]
        if self.padding == "valid":
            return [0] * (2 * self.axes)
        totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]

    def _symmetric_padding(self) -> tuple[int, ...]:
        """Return the padding that the product does by itself: with zeros, as many on both sides.

        It is 0 for every other padding, which `_as_batch` does before.
        """
        sides = self._both_sides()
        left, right = sides[::2][::-1], sides[1::2][::-1]
        return tuple(left) if self.padding_mode == "zeros" and left == right else (0,) * self.axes

    def forward(self, x: Tensor) -> Tensor:  # (batch, in_channels, *spatial) or without the batch axis
        x = computed(x)
        batch = self._as_batch(x)
        if batch.dim() == x.dim() and self._waits(batch):
            shape = len(batch), self.out_channels, *self.geometry.output_size(batch.shape[2:])
            return Product(batch, self._layer_tensors(), torch.Size(shape), self._multiply_by)  # type: ignore[return-value]
        y = self._multiply(batch)
        return y if x.dim() == self.axes + 2 else y[0]

    def _as_batch(self, x: Tensor) -> Tensor:  # ([batch,] in_channels, *spatial) -> (batch, in_channels, *padded)
        if not isinstance(x, Tensor):
            check_input(x, self.values)
        if x.dim() not in (self.axes + 1, self.axes + 2) or x.shape[-self.axes - 1] != self.in_channels:
            raise ValueError(
                f"expected an input ([batch,] {self.in_channels}, *{self.axes} axes), not {tuple(x.shape)}"
            )
        batch = x if x.dim() == self.axes + 2 else x[None]
        sides = self._both_sides()
        if any(sides) and not any(self.geometry.padding):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            batch = F.pad(batch, sides, mode=mode)
        return batch

    def _arguments(self) -> str:
        defaults = {"stride": (1,) * self.axes, "padding": (0,) * self.axes, "dilation": (1,) * self.axes, "groups": 1}
        defaults["padding_mode"] = "zeros"
        other = [f"{k}={getattr(self, k)}" for k, default in defaults.items() if getattr(self, k) != default]
        return ", ".join([f"{self.in_channels} -> {self.out_channels}", f"kernel_size={self.kernel_size}", *other])


class DpsConv1d(DpsConv):
    """A convolution over one axis: torch.nn.Conv1d with W = alpha D + S."""

    axes = 1


class DpsConv2d(DpsConv):
    """A convolution over two axes: torch.nn.Conv2d with W = alpha D + S.

    >>> DpsConv2d(64, 128, 3, bias=False, density=0.001)
    DpsConv2d(64 -> 128, kernel_size=(3, 3), bias=False, offset=dct_signed, nnz=74, density=0.001, alpha=1)
    """

    axes = 2


class DpsConv3d(DpsConv):
    """A convolution over three axes: torch.nn.Conv3d with W = alpha D + S."""

    axes = 3
