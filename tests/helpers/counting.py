"""An instrumented reference: each route once more, slowly, on numpy arrays, with every multiply-add counted.

It returns the output, which must be that of the layer, so that what is counted is a computation that really gives it.
A fast transform of length q is counted as q log2 q; making tables, and additions without a product, are not counted.
"""

import itertools
import math

import numpy as np
import torch

from dctps.core.geometry import Geometry
from dctps.ops.native import stages
from dctps.ops.separable import factors_of


class Reference:
    """One layer on one image, computed by the route of this name."""

    def __init__(self, layer, x: torch.Tensor) -> None:  # x: (1, channels, *spatial)
        self.layer, self.geometry, self.count = layer, layer.geometry, 0
        self.x = x[0].numpy()
        self.weight = layer.dense_weight().detach().double().numpy()
        self.alpha = None if layer.alpha is None else layer.alpha.item()
        self.outputs = list(itertools.product(*map(range, self.geometry.output_size(x.shape[2:]))))

    def run(self, name: str) -> np.ndarray:  # (filters, number of outputs)
        if name in ("dense", "filters", "depthwise", "pixels"):
            return self._columns(lambda place: self._filters(place, self.weight))
        sparse = self._columns(self._sparse)
        way = name.removeprefix("sparse and torch ")
        if way == "sparse":
            return sparse
        by_place = {"direct": self._direct, "transform": self._transformed, "patches": self._transformed}
        offset = self._columns(by_place[way]) if way in by_place else self._staged(way)
        return sparse + self.alpha * offset

    def _columns(self, column) -> np.ndarray:
        return np.stack([column(place) for place in self.outputs], axis=1)

    # --- patches

    def _read(self, channel: int, place: tuple[int, ...], tap: tuple[int, ...]) -> float:
        g = self.geometry
        at = [o * s + t * d - p for o, s, t, d, p in zip(place, g.stride, tap, g.dilation, g.padding, strict=True)]
        inside = all(0 <= i < size for i, size in zip(at, self.x.shape[1:], strict=True))
        return self.x[(channel, *at)] if inside else 0.0

    def _patch(self, place: tuple[int, ...], group: int) -> np.ndarray:
        g = self.geometry
        channels = range(group * g.group_channels, (group + 1) * g.group_channels)
        return np.array([[self._read(c, place, tap) for tap in self._taps()] for c in channels]).reshape(-1)

    def _taps(self):
        return itertools.product(*map(range, self.geometry.kernel))

    def _group(self, filter_: int) -> int:
        return filter_ // (self.geometry.filters // self.geometry.groups)

    def _filters(self, place, weight) -> np.ndarray:
        rows = weight.reshape(self.geometry.filters, -1)
        return np.array([self._dot(rows[k], self._patch(place, self._group(k))) for k in range(len(rows))])

    def _dot(self, a: np.ndarray, b: np.ndarray) -> float:
        self.count += len(a)
        return float(a @ b)

    def _sparse(self, place) -> np.ndarray:
        y, patch = np.zeros(self.geometry.filters), self.weight[0].size
        for position, value in zip(self.layer.positions.tolist(), self.layer.values.tolist(), strict=True):
            k, entry = divmod(position, patch)
            y[k] += self._dot(np.array([value]), self._patch(place, self._group(k))[[entry]])
        return y

    def _direct(self, place) -> np.ndarray:
        return self._filters(place, self.layer.offset.matrix(torch.float64).numpy())

    def _transformed(self, place) -> np.ndarray:
        """Every group's patch through the whole transform, of which each filter takes its row."""
        offset, found = self.layer.offset, []
        for group in range(self.geometry.groups):
            self.count += round(offset.length * math.log2(offset.length))
            found.append(offset.apply(torch.from_numpy(self._patch(place, group))).numpy())
        return np.array([found[self._group(k)][k] for k in range(self.geometry.filters)])

    # --- a pointwise stage along the channels of each pixel, then taps

    def _staged(self, kind: str) -> np.ndarray:
        if kind == "separable":
            return self._separable()
        offset = self.layer.offset
        stage = (
            stages.folded_product(offset, self.layer.values.dtype) if kind == "product" else stages.STAGES[kind](offset)
        )
        planes = self._at_pixels(lambda v: self._pointwise(stage, v), self._phases_read())
        m, terms, _ = stage.weights.shape
        source = np.arange(m * terms) if stage.source is None else stage.source
        return self._columns(lambda place: self._combined(planes, source.reshape(m, terms), stage.weights, place))

    def _phases_read(self):
        """The pixels that lie in a phase of the stride which some kernel position reads."""
        g = self.geometry
        read = [{t * d % s for t in range(k)} for k, d, s in zip(g.kernel, g.dilation, g.stride, strict=True)]
        for pixel in itertools.product(*map(range, self.x.shape[1:])):
            phases = [(i + p) % s for i, p, s in zip(pixel, g.padding, g.stride, strict=True)]
            if all(phase in axis for phase, axis in zip(phases, read, strict=True)):
                yield pixel

    def _at_pixels(self, stage, pixels) -> dict[tuple[int, ...], np.ndarray]:
        return {pixel: stage(self.x[(slice(None), *pixel)]) for pixel in pixels}

    def _matrix(self, matrix: np.ndarray, v: np.ndarray) -> np.ndarray:
        self.count += matrix.size
        return matrix @ v

    def _pointwise(self, stage, v: np.ndarray) -> np.ndarray:
        if stage.constructor == "product":
            first, second, signs = stage.arguments
            halves = self._thinned(first, self._folded(v * signs, len(second)))
            return np.stack([self._matrix(b, h) for b, h in zip(second, halves, strict=True)], axis=1).reshape(-1)
        length, *tables = stage.arguments
        self.count += round(length * math.log2(length))
        return self._fourier(length, *tables, v) if stage.constructor == "fourier" else self._walsh(length, *tables, v)

    def _folded(self, v: np.ndarray, parts: int) -> list[np.ndarray]:
        if parts == 1:
            return [v]
        half = len(v) // 2
        even = v[: len(v) - half].copy()
        even[:half] += v[::-1][:half]
        return [even, v[:half] - v[::-1][:half]]

    def _thinned(self, first, halves) -> list[np.ndarray]:
        return [h if a is None else self._matrix(a, h) for a, h in zip(first, halves, strict=True)]

    def _fourier(self, length, place, signs, frequency, real, imaginary, v) -> np.ndarray:
        line = np.zeros(length)
        line[place] = signs * v
        X = np.fft.fft(line)[frequency]
        return real * X.real + imaginary * X.imag

    def _walsh(self, length, signs, rows, scale, v) -> np.ndarray:
        p = np.arange(len(v))
        common = np.bitwise_and.outer(rows, p)
        parity = np.array([[bin(bits).count("1") % 2 for bits in row] for row in common.tolist()])
        return scale * (1 - 2 * parity) @ (signs * v)

    def _combined(self, planes, source, weights, place) -> np.ndarray:
        m, terms, taps = weights.shape
        y = np.zeros(m)
        for t, tap in enumerate(self._taps()):
            seen = self._seen(planes, place, tap)
            for k, r in itertools.product(range(m), range(terms)):
                self.count += taps > 1
                y[k] += weights[k, r, t] * seen[source[k, r]]
        return y

    def _seen(self, planes, place, tap) -> np.ndarray:
        g = self.geometry
        at = tuple(o * s + t * d - p for o, s, t, d, p in zip(place, g.stride, tap, g.dilation, g.padding, strict=True))
        return planes[at] if at in planes else np.zeros_like(next(iter(planes.values())))

    def _separable(self) -> np.ndarray:
        """torch's way: pointwise convolutions at every pixel, group by group, then the taps."""
        g: Geometry = self.geometry
        factors = factors_of(self.layer.offset, g.groups, self.layer.values.dtype, torch.device("cpu"))
        matrices = [w.flatten(1).double().numpy() for w in factors.pointwise]
        pixels = itertools.product(*map(range, self.x.shape[1:]))
        planes = self._at_pixels(lambda v: self._by_groups(matrices, v), pixels)
        per_group, m = g.filters // g.groups, g.filters
        order = np.arange(m * factors.terms).reshape(g.groups, factors.terms, per_group)
        source = order.transpose(0, 2, 1).reshape(m, factors.terms)
        weights = factors.depthwise.double().numpy().reshape(m * factors.terms, g.taps)[source]
        return self._columns(lambda place: self._combined(planes, source, weights, place))

    def _by_groups(self, matrices, v: np.ndarray) -> np.ndarray:
        groups = self.geometry.groups
        for matrix in matrices:
            parts = zip(np.split(matrix, groups), np.split(v, groups), strict=True)
            v = np.concatenate([self._matrix(own, part) for own, part in parts])
        return v
