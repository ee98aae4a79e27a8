"""Measurements as tables on a screen."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dctps.base.words import percent
from dctps.bench.against import AgainstRow
from dctps.bench.layers import LayerRow
from dctps.bench.scaling import ScalingRow
from dctps.bench.steps import StepRow


def layer_table(rows: Sequence[LayerRow]) -> Table:
    """One line per case: torch's layer, our ways, which of them `auto` takes, and the bytes of the weights."""
    ways = list(dict.fromkeys(row.contender for row in rows))  # every case has a row for each
    cases = [rows[start : start + len(ways)] for start in range(0, len(rows), len(ways))]
    right = ["nnz", *(way.replace("/", "\n") for way in ways), "auto", "route", "its ms", "ratio", "bytes dense / ours"]
    table = _table(["layer", "weight", "input"], right)
    first = rows[0]
    table.title = (
        f"{first.model}, {percent(first.density)}, {first.offset}, batch {first.batch}, {first.mode}: medians, ms"
    )
    for case in cases:
        first, chosen = case[0], next(row for row in case if row.chosen)
        name = f"{first.layer or '(itself)'}{f'  x{first.count}' if first.count > 1 else ''}"
        table.add_row(
            name,
            first.weight_shape,
            first.input_shape,
            f"{first.nnz:,}",
            *(milliseconds(row.median_ms) for row in case),
            chosen.contender.removeprefix("ours/"),
            chosen.route,
            milliseconds(chosen.median_ms),
            ratio(chosen.ratio_to_dense),
            f"{size(first.memory_bytes)} / {size(chosen.memory_bytes)}",
        )
    table.add_section()
    table.add_row(*_totals(cases))
    return table


def _totals(cases: Sequence[Sequence[LayerRow]]) -> list[str]:
    """All layers, each as often as the network runs it."""
    sums = [sum(case[way].count * case[way].median_ms for case in cases) for way in range(len(cases[0]))]
    chosen = [next(row for row in case if row.chosen) for case in cases]
    ours = sum(row.count * row.median_ms for row in chosen)
    held = [sum(row.count * row.memory_bytes for row in own) for own in ([case[0] for case in cases], chosen)]
    calls, weights = sum(row.count for row in chosen), sum(row.count * row.nnz for row in chosen)
    times = [*map(milliseconds, sums), "", "", milliseconds(ours)]
    return [f"all {calls}", "", "", f"{weights:,}", *times, ratio(sums[0] / ours), " / ".join(map(size, held))]


def step_table(rows: Sequence[StepRow]) -> Table:
    """One block per network, density and offset, one line per contender."""
    left = ["model", "density", "offset", "contender", "format"]
    table = _table(
        left, ["median ms", "min ms", "vs dense", "vs dense fused", "vs best dense", "vs published", "memory", "peak"]
    )
    before = None
    for row in rows:
        cell = (row.network, percent(row.density), row.offset)
        if before not in (None, cell):
            table.add_section()
        table.add_row(
            *(cell if cell != before else ("", "", "")),
            row.contender,
            row.memory_format,
            milliseconds(row.median_ms),
            milliseconds(row.min_ms),
            ratio(row.ratio_to_dense),
            ratio(row.ratio_to_dense_fused),
            ratio(row.ratio_to_best_dense),
            ratio(row.ratio_to_published),
            *("" if count is None else size(count) for count in (row.memory_bytes, row.peak_bytes)),
        )
        before = cell
    return table


def against_table(rows: Sequence[AgainstRow]) -> Table:
    """One line per contender and cell: this version against the other one."""
    left = ["cell", "contender"]
    table = _table(left, ["this ms", f"{rows[0].other_version} ms", "ratio", "least", "largest"])
    for row in rows:
        ratios = map(ratio, (row.ratio, row.least_ratio, row.largest_ratio))
        table.add_row(row.cell, row.contender, milliseconds(row.median_ms), milliseconds(row.other_ms), *ratios)
    return table


def scaling_table(rows: Sequence[ScalingRow]) -> Table:
    """One line per cell: the dense layer against ours."""
    table = _table(["sweep", "layer"], ["size", "density", "nnz", "dense ms", "ours ms", "backend", "ratio"])
    dense = {(r.sweep, r.layer, r.size, r.density): r.median_ms for r in rows if r.contender == "dense"}
    before = None
    for row in rows:
        if row.contender == "dense":
            continue
        own = dense.get((row.sweep, row.layer, row.size, row.density))
        if before not in (None, (row.layer, row.sweep)):
            table.add_section()
        before = row.layer, row.sweep
        cells = f"{row.size:,}", percent(row.density), f"{row.nnz:,}", "-" if own is None else milliseconds(own)
        table.add_row(row.sweep, row.layer, *cells, milliseconds(row.median_ms), row.backend, ratio(row.ratio_to_dense))
    return table


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def milliseconds(time: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{time:,.0f}" if time >= 100 else f"{time:.3g}"


def ratio(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}x"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"
