"""The report of a network: shape, nnz, density, offset and alpha of each layer; what stayed dense and why; totals."""

import collections
import dataclasses
import math

from torch import nn

from dctps.base.words import percent
from dctps.core.offsets import PRETRAINED, offset_name
from dctps.nn.batchnorm import SparseBatchNorm
from dctps.nn.built_layer import built_parts
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.fuse import Fused, LeftUnfused, fused_layers, left_unfused, why_slow
from dctps.nn.prunable import LeftDense, left_dense, prunable
from dctps.nn.sizes import Sizes, sizes
from dctps.nn.sparse_part import SparsePart
from dctps.nn.tunable import left_whole
from dctps.nn.wrappers import unwrapped


@dataclasses.dataclass(frozen=True)
class LayerRow:
    """The row of one sparse layer in the report."""

    name: str
    shape: tuple[int, ...]
    nnz: int
    size: int
    density: float
    offset: str | None
    alpha: float | None


@dataclasses.dataclass(frozen=True)
class NormRow:
    """The row of one sparse BatchNorm layer: the scale and shift of `nnz` of its `size` channels train."""

    name: str
    nnz: int
    size: int


@dataclasses.dataclass(frozen=True)
class ParameterRow:
    """A parameter outside the sparse layers, and its number of elements."""

    name: str
    size: int


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked of `sparsify`; the network keeps it for its report."""

    density: float
    nnz: int
    allocation: str


def attach_request(model: nn.Module, request: Request | None) -> None:
    """Keep the request with the network, as an attribute that is not part of its state; None removes it."""
    model._dctps_request = request  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Report:
    """The sparse layers of a network and what stayed dense; `str()` gives the table.

    trained, frozen: the parameters outside the sparse layers that train, and that do not.
    """

    layers: list[LayerRow]
    left_dense: list[LeftDense]
    asked: Request | None
    norms: list[NormRow]
    sizes: Sizes
    fused: list[Fused] = dataclasses.field(default_factory=list)
    left_unfused: list[LeftUnfused] = dataclasses.field(default_factory=list)
    trained: list[ParameterRow] = dataclasses.field(default_factory=list)
    frozen: list[ParameterRow] = dataclasses.field(default_factory=list)

    @property
    def nnz(self) -> int:
        """The number of weights that train in all sparse layers."""
        return sum(layer.nnz for layer in self.layers)

    @property
    def size(self) -> int:
        """The number of weights of all sparse layers if they were dense."""
        return sum(layer.size for layer in self.layers)

    @property
    def density(self) -> float:
        return self.nnz / self.size if self.layers else float("nan")

    def __str__(self) -> str:
        lines = _table([_HEADER, *map(_cells, self.layers), self._total()]) if self.layers else ["no sparse layer"]
        lines += self._remarks()
        if self.left_dense:
            lines += ["", "left dense:", *(f"  {name or '(the network)'}: {why}" for name, why in self.left_dense)]
        return "\n".join(lines + self._fused())

    def _fused(self) -> list[str]:
        """Return which BatchNorm layers compute together with what, and which do not."""
        if not self.fused:
            return []
        count = collections.Counter(followed_by or "nothing" for _, followed_by in self.fused)
        kinds = ", ".join(f"{n} with {kind}" for kind, n in count.items())
        slow = why_slow()
        lines = ["", f"fused BatchNorm layers: {kinds}" + (f"; computed by torch, because {slow}" if slow else "")]
        return lines + [f"  {name} is not fused: {why}" for name, why in self.left_unfused]

    def _total(self) -> list[str]:
        return ["total", "", f"{self.nnz:,}", f"{self.size:,}", percent(self.density), "", ""]

    def _remarks(self) -> list[str]:
        empty = [layer.name for layer in self.layers if layer.nnz == 0]
        remarks = []
        if self.asked is not None:
            asked = f"asked {self.asked.nnz:,} ({percent(self.asked.density)} by {self.asked.allocation})"
            remarks.append(f"{asked}, got {self.nnz:,}")
            if any(layer.offset not in (None, PRETRAINED) for layer in self.layers):
                remarks.append("former weights replaced: W starts at alpha D (offset=None keeps them at the support)")
        if empty:
            remarks.append(f"without a trainable weight: {', '.join(empty)}")
        if self.norms:
            nnz, size = sum(norm.nnz for norm in self.norms), sum(norm.size for norm in self.norms)
            layers = f"{len(self.norms)} BatchNorm layers" if len(self.norms) > 1 else "one BatchNorm layer"
            remarks.append(f"scale and shift of {nnz:,} channels of {size:,} ({percent(nnz / size)}) in {layers}")
        return remarks + self.groups() + self.whole_network()

    def groups(self) -> list[str]:
        """Return what trains sparsely, what trains as a whole and what is frozen, in a fine-tuned network."""
        if not any(layer.offset == PRETRAINED for layer in self.layers):
            return []
        names = [row.name for row in self.trained]
        shown = (": " + ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")) if names else ""
        return [
            f"trains sparsely: {self.nnz:,} values of {self.size:,} in {len(self.layers)} weights W0 + S",
            f"trains as a whole: {sum(r.size for r in self.trained):,} numbers in {len(names)} parameters{shown}",
            f"frozen: {sum(r.size for r in self.frozen):,} numbers in {len(self.frozen)} parameters",
        ]

    def whole_network(self) -> list[str]:
        """Return how much of the whole network trains, and how large it is in a file, dense parts included."""
        s = self.sizes
        if not self.layers and not self.norms:
            return []
        share, file = percent(s.trainable / s.parameters), percent(s.file_bytes / s.dense_bytes)
        return [
            f"whole network: {s.trainable:,} of {s.parameters:,} parameters train ({share}); "
            f"its file has tensors of {s.file_bytes:,} bytes, dense {s.dense_bytes:,} ({file})"
        ]


def report(model: nn.Module) -> Report:
    """Return the report of a network, or of a single layer."""
    model = unwrapped(model)
    names = {id(part): name for name, part in built_parts(model)}
    layers = [(path, m) for path, m in model.named_modules() if isinstance(m, DpsLayer)]
    sparse = {names.get(id(m), path): m for path, m in layers if not isinstance(m, SparsePart)}
    rows = [_row(name, layer, offset_name(layer.offset)) for name, layer in sparse.items()]
    tuned = tuned_weights(model)
    rows += [_row(name, weight.part, PRETRAINED) for name, weight in tuned.items()]
    plain = [LeftDense(name, "not converted: excluded, or put in later") for name in prunable(model)]
    left = left_whole(model) if tuned else plain + left_dense(model)
    norms = [NormRow(n, m.nnz, m.num_features) for n, m in model.named_modules() if isinstance(m, SparseBatchNorm)]
    asked = getattr(model, "_dctps_request", None)
    fused = fused_layers(model), left_unfused(model)
    own = {id(p) for m in model.modules() if isinstance(m, DpsLayer) for p in (m.values, m.alpha)}
    others = [(p.requires_grad, ParameterRow(n, _size(p))) for n, p in model.named_parameters() if id(p) not in own]
    groups = [row for trains, row in others if trains], [row for trains, row in others if not trains]
    return Report(rows, left, asked, norms, sizes(model), *fused, *groups)


def _size(parameter: nn.Parameter) -> int:
    return 0 if nn.parameter.is_lazy(parameter) else parameter.numel()


def _row(name: str, layer: DpsLayer, offset: str | None) -> LayerRow:
    shape = layer.geometry.weight_shape
    alpha = None if layer.alpha is None or layer.alpha.is_meta else layer.alpha.item()
    return LayerRow(name, shape, layer.nnz, math.prod(shape), layer.nnz / math.prod(shape), offset, alpha)


_HEADER = ["layer", "shape", "nnz", "size", "density", "offset", "alpha"]


def _cells(row: LayerRow) -> list[str]:
    alpha = "-" if row.alpha is None else f"{row.alpha:.4g}"
    shape = " x ".join(map(str, row.shape))
    offset = row.offset or "none"
    return [row.name or "(itself)", shape, f"{row.nnz:,}", f"{row.size:,}", percent(row.density), offset, alpha]


def _table(rows: list[list[str]]) -> list[str]:
    """Return the rows as lines with aligned columns: names to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    left = {0, 1, 5}
    padded = [
        [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))] for r in rows
    ]
    return ["  ".join(row).rstrip() for row in padded]
