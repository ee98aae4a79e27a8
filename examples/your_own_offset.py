"""An offset of your own is a class with a shape and three methods. Here D = u v' + I, applied and never stored."""

import torch
from torch import Tensor

import dctps


class RankOnePlusIdentity:
    """D = u v' + I with vectors u and v of length n. The product D x costs 2n multiplications instead of n^2."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.shape = (size, size)
        self.u, self.v = torch.randn(2, size, generator=generator) / size**0.5

    def apply(self, x: Tensor) -> Tensor:  # D x: (..., n) -> (..., n)
        return x + (x @ self.v)[..., None] * self.u

    def adjoint(self, y: Tensor) -> Tensor:  # D' y
        return y + (y @ self.u)[..., None] * self.v

    def matrix(self) -> Tensor:  # D itself, for the dense backend and for `dense_weight`
        return torch.eye(len(self.u)) + torch.outer(self.u, self.v)


layer = dctps.DpsLinear(4096, 4096, density=1e-4, offset=RankOnePlusIdentity(4096))
x = torch.randn(8, 4096)
error = (layer(x) - (x @ layer.dense_weight().T + layer.bias)).abs().max()
print(layer)
print(f"largest difference from the dense product: {error:.1e}")

# A recipe serves all layers of a network: here a sine transform in channel order with random signs and random rows.
net = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3))
offset = dctps.TransformOffset("dst", order="channel", signs="channel", rows="random", seed=1)
print(dctps.report(dctps.sparsify(net, 0.01, offset=offset)))
