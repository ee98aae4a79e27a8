"""How close is equal: one table, with its reasons."""

import torch

TOLERANCES = {
    # sums of at most a few hundred terms of order one: 1e-13 is what is seen, three digits are left for other machines
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    # eps 1.2e-7 times the square root of some hundred terms, times the size (up to about 30) of a gradient's terms
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    # inputs and outputs are rounded to 8 bits of mantissa: 2^-8 of numbers up to about 4
    torch.bfloat16: {"rtol": 2e-2, "atol": 3e-2},
}


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to the table, by the less precise of the two types."""
    worst = min((actual.dtype, expected.dtype), key=lambda dtype: -torch.finfo(dtype).eps)
    torch.testing.assert_close(actual.to(expected.dtype), expected, **TOLERANCES[worst])
