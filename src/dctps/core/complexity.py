"""The paper's count of multiply-adds (section "Run Times and Theoretical Complexity").

One product W x of a layer with m filters of n entries costs m n multiply-adds when W is dense. With q = max(m, n) it
costs q log2 q + nnz when W = alpha D + S, and nnz without an offset. A convolution performs one product for each output
pixel.
"""

import math
from collections.abc import Sequence


def transform_operations(length: int) -> int:
    """Return the multiply-adds of a fast transform: length * log2(length), by convention.

    >>> transform_operations(1024)
    10240
    """
    return round(length * math.log2(length))


def product_operations(weight_shape: Sequence[int], nnz: int, has_offset: bool) -> float:
    """Return the paper's count for one product with a weight of this shape: q log2 q + nnz, or nnz without an offset.

    >>> product_operations((512, 1024), nnz=100, has_offset=True)
    10340.0
    """
    q = max(weight_shape[0], math.prod(weight_shape[1:]))
    return nnz + (q * math.log2(q) if has_offset else 0)
