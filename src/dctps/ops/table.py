"""Rows of a sparse matrix S, looked up by their numbers: the sparse part of an embedding."""

import torch
from torch import Tensor

from dctps.ops.sparse import check_positions, derived
from dctps.ops.weight import dense_weight, torch_func_is_active


def look_up(
    rows: Tensor,  # (...), whole numbers
    values: Tensor,  # (nnz,)
    positions: Tensor,  # (nnz,)
    shape: tuple[int, ...],  # (rows of S, columns)
    padding: int | None,
) -> Tensor:  # (..., columns)
    """Return the rows of S with these numbers, in O(size of the result); differentiable in the values.

    padding: the number of a row that gets no gradient.
    """
    check_positions(positions, shape)
    flat, columns = rows.reshape(-1), shape[1]
    if torch_func_is_active():
        dense = dense_weight(values, positions, None, None, shape)
        return torch.nn.functional.embedding(rows, dense, padding)
    starts = derived(positions, shape, "rows", lambda places: _row_starts(places, shape))
    first = starts[flat]
    counts = starts[flat + 1] - first
    places = torch.repeat_interleave(
        torch.arange(len(flat), device=flat.device), counts
    )  # in the result, one per value
    skipped = torch.cumsum(counts, 0) - counts
    entries = torch.arange(len(places), device=flat.device) - skipped[places] + first[places]  # in the values
    found = values[entries]
    if padding is not None:
        found = torch.where(flat[places] == padding % shape[0], found.detach(), found)
    target = places * columns + positions[entries].long() % columns
    out = torch.zeros(len(flat) * columns, dtype=values.dtype, device=values.device)
    return out.index_add(0, target, found).view(*rows.shape, columns)


def _row_starts(positions: Tensor, shape: tuple[int, ...]) -> Tensor:  # (rows + 1,)
    """Return the index of the first value of each row, and the number of values at the end."""
    edges = torch.arange(shape[0] + 1, device=positions.device) * shape[1]
    return torch.searchsorted(positions.long(), edges)
