"""Networks before their first step: weights per layer (task counts), spectra of the Jacobian (task jacobian)."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from dctps.analysis.page.panels import by_line, by_panel, titles
from dctps.analysis.page.values import rounded
from dctps.experiments.results import Row
from dctps.experiments.status import COLLAPSED, DONE
from dctps.experiments.summary import over_seeds

Line = dict[str, Any]


def count_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return panels with a line for each method: the mean of its weights in each layer over seeds."""
    return _panels(rows, _counts)


def spectrum_panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return panels with a line for each method: means (geometric) and ranges of its singular values over images."""
    return _panels(rows, _spectrum)


def _panels(rows: Sequence[Row], line: Callable[[Sequence[Row]], Line]) -> list[dict[str, Any]]:
    groups = by_panel(rows)
    panels = []
    for title, members in zip(titles(list(groups), trained=False), groups.values(), strict=True):
        by_density = defaultdict[float | None, list[Row]](list)
        for row in members:
            by_density[row.settings.density].append(row)
        ordered = sorted(by_density.items(), key=lambda item: -(item[0] or 2.0))  # the dense network first
        panels.append({"title": title, "densities": [_density(d, group, line) for d, group in ordered]})
    return panels


def _density(density: float | None, rows: Sequence[Row], line: Callable[[Sequence[Row]], Line]) -> dict[str, Any]:
    """Return the lines of a panel at a density, and in words what is missing from them."""
    lines, missing = [], []
    for name, members in by_line(rows).items():
        done = [row for row in members if row.status == DONE]
        if done:
            lines.append({"name": name, "n": len(done), **line(done)})
        if len(done) < len(members):
            collapsed = sum(row.status == COLLAPSED for row in members)
            missing.append(f"{name}: {collapsed} collapsed, {len(members) - len(done) - collapsed} failed")
    return {"density": density, "lines": lines, "missing": missing}


def _counts(rows: Sequence[Row]) -> Line:
    counts, sizes = defaultdict[str, list[float]](list), dict[str, int]()
    for row in rows:
        for layer in row.content["layers"]:
            counts[layer["name"]].append(layer["nnz"])
            sizes[layer["name"]] = layer["size"]
    means = [rounded(over_seeds(values).mean) for values in counts.values()]
    return {"layers": list(sizes), "sizes": list(sizes.values()), "weights": means}


def _spectrum(rows: Sequence[Row]) -> Line:
    spectra = [values for row in rows for values in row.content["singular_values"]]
    length = min(map(len, spectra))
    columns = [[values[i] for values in spectra] for i in range(length)]
    return {
        "images": len(spectra),
        "middle": [rounded(_geometric_mean(column), 4) for column in columns],
        "low": [rounded(min(column), 4) for column in columns],
        "high": [rounded(max(column), 4) for column in columns],
    }


def _geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, which is zero if any value is."""
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0
