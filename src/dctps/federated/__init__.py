"""Federated learning: a network as a list of arrays and back, their exact average, and packets of few bytes.

What two sides must share (the network, its supports, its offsets, what is frozen) is not sent, only a digest of it.
What is sent are the values, alphas, biases and norms. Because supports are equal, the average of the arrays is exactly
the average of the dense weights W = alpha D + S. No framework is needed; docs/federated.md shows one.
"""

from dctps.federated.arrays import Arrays, arrays, average, set_arrays
from dctps.federated.packets import KINDS, Sender, pack, unpack

__all__ = ["KINDS", "Arrays", "Sender", "arrays", "average", "pack", "set_arrays", "unpack"]
