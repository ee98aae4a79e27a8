"""What an export has written: its size beside that of the dense file, how weights are stored, and the check."""

import dataclasses
from pathlib import Path

from dctps.base.words import percent
from dctps.export.batches import Batches


@dataclasses.dataclass(frozen=True)
class WeightRow:
    """How the weight of one sparse layer is stored; `why_dense` is None where its recipe is."""

    name: str
    offset: str | None
    nnz: int
    why_dense: str | None = None


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """An ONNX file, its size beside that of the dense file, and its largest difference from torch's outputs."""

    file: Path
    bytes: int
    dense_bytes: int
    opset: int
    ir_version: int
    batches: Batches  # which the file takes
    weights: list[WeightRow]
    difference: float | None = None  # the largest one between the outputs of ONNX Runtime and of torch; None: unchecked
    largest: float | None = None  # torch's largest absolute value of that output
    base: Path | None = None  # the file of W0 to which this file refers
    base_bytes: int = 0

    def __str__(self) -> str:
        share = percent(self.bytes / self.dense_bytes)
        recipes = sum(row.why_dense is None for row in self.weights)
        lines = [f"{self.file}: {self.bytes:,} bytes, with dense weights {self.dense_bytes:,} ({share})"]
        lines.append(f"opset {self.opset}, IR version {self.ir_version}, {self.batches}")
        if self.base is not None:
            lines.append(f"refers to {self.base}: {self.base_bytes:,} bytes, for all tasks of the same base")
        lines.append(f"weights stored as recipes: {recipes} of {len(self.weights)}")
        lines += [
            f"  {row.name or '(itself)'} is stored densely: {row.why_dense}" for row in self.weights if row.why_dense
        ]
        if self.difference is None:
            return "\n".join([*lines, "the outputs were not compared with torch's"])
        return "\n".join([*lines, f"largest difference from torch: {self.difference:.2g} of {self.largest:.3g}"])

    @property
    def any_batch(self) -> bool:
        """Whether the file takes batches of any size."""
        return self.batches.any
