"""A network to rewire, its batches, and the optimisers that train it."""

import torch
from torch import nn

import dctps

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "momentum fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True, weight_decay=1e-3),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def network(seed=0, **options):
    """A convolution and a linear layer in float64, 30 and 40 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        dctps.DpsConv2d(2, 6, 3, nnz=30, dtype=torch.float64, **options),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        dctps.DpsLinear(96, 5, nnz=40, dtype=torch.float64, **options),
    )


def batch(t: int, size=8):
    """The images of iteration t."""
    generator = torch.Generator().manual_seed(t)
    return torch.randn(size, 2, 6, 6, generator=generator, dtype=torch.float64)
