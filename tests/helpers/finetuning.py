"""Layers of every kind that can be fine-tuned, and the definition W = alpha W0 + S of what they compute."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from dctps.nn.fine_tuned import tuned_weights


class Attention(nn.Module):
    """Self-attention by torch's layer, with one packed weight or, for keys of another width, with three."""

    def __init__(self, width: int, keys: int | None = None) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, kdim=keys, vdim=keys, batch_first=True)
        self.keys = keys

    def forward(self, x: Tensor) -> Tensor:
        other = x if self.keys is None else F.pad(x, (0, self.keys - x.shape[-1]))
        return self.attention(x, other, other)[0]


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and variance 1: its output is not linear in its weight."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-3)
        return self._conv_forward(x, w, self.bias)


class SamePadConv2d(nn.Conv2d):
    """A convolution that pads by itself and then reads its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 1, 1)), self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Foreign(nn.Module):
    """A layer of nobody's family that reads `self.weight`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) @ self.weight.T


class Head(nn.Module):
    """An embedding whose weight is also that of the last layer, as in language models."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(rows, width, padding_idx=1), nn.Linear(width, rows, bias=False)
        self.last.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.table(x)))


class Cell(nn.Module):
    """A recurrent cell, called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x, self.cell(x))


def tokens(n: int) -> Tensor:
    return torch.randint(0, 9, (3, n))


# name -> (a layer, an input), for two generated sizes
KINDS = {
    "linear": lambda a, b: (nn.Linear(a, b), torch.randn(2, 3, a)),
    "linear, one row": lambda a, b: (nn.Linear(a, b, bias=False), torch.randn(a)),
    "Conv1d": lambda a, b: (nn.Conv1d(a, b, 3, padding="same", padding_mode="circular"), torch.randn(2, a, 5)),
    "Conv2d": lambda a, b: (nn.Conv2d(a, b, (3, 2), (2, 1), 1), torch.randn(2, a, 6, 5)),
    "Conv2d, grouped": lambda a, b: (nn.Conv2d(2 * a, 2 * b, 3, padding=1, groups=2), torch.randn(2, 2 * a, 4, 5)),
    "Conv2d, depthwise": lambda a, b: (nn.Conv2d(a, a, 3, padding=1, groups=a), torch.randn(2, a, 4, b + 2)),
    "Conv2d, one image": lambda a, b: (nn.Conv2d(a, b, 2, dilation=2, bias=False), torch.randn(a, 5, 4)),
    "Conv3d": lambda a, b: (nn.Conv3d(a, b, 2), torch.randn(1, a, 3, 3, 4)),
    "ConvTranspose1d": lambda a, b: (nn.ConvTranspose1d(a, b, 3, 2, 1, bias=False), torch.randn(a, 4)),
    "ConvTranspose2d": lambda a, b: (
        nn.ConvTranspose2d(2 * a, 2 * b, 3, 2, 1, output_padding=1, groups=2, dilation=2),
        torch.randn(2, 2 * a, 3, 4),
    ),
    "ConvTranspose3d": lambda a, b: (nn.ConvTranspose3d(a, b, 2), torch.randn(1, a, 2, 3, 2)),
    "Conv1D of transformers": lambda a, b: (Conv1D(b, a), torch.randn(2, 3, a)),
    "Embedding": lambda a, b: (nn.Embedding(9, b, padding_idx=-2), tokens(a)),
    "EmbeddingBag": lambda a, b: (nn.EmbeddingBag(9, b), tokens(a)),
    "packed attention": lambda a, b: (Attention(2 * a), torch.randn(2, 3, 2 * a)),
    "attention": lambda a, b: (Attention(2 * a, 2 * a + b), torch.randn(2, 3, 2 * a)),
    "a subclass that standardises": lambda a, b: (StandardisedConv2d(a, b, 3), torch.randn(2, a, 4, 4)),
    "a subclass that pads": lambda a, b: (SamePadConv2d(a, b, 3, stride=2), torch.randn(2, a, 5, 5)),
    "a foreign layer": lambda a, b: (Foreign(a), torch.randn(b, a)),
    "a recurrent cell": lambda a, b: (Cell(a), torch.randn(b, a)),
    "a tied weight": lambda a, b: (Head(9, a), tokens(b)),
}


def by_definition(base: nn.Module, tuned: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output of `base` with the weights alpha W0 + S of `tuned`, and the gradients of its sum of squares.

    S is a dense tensor here, and all gradients come from that of the dense weight.
    """
    weights, leaves = {}, {}
    now = dict(tuned.named_parameters())
    state = {name: now[name].detach().clone() for name, _ in base.named_parameters()}
    keys = {id(p): name for name, p in tuned.named_parameters()}
    for name, weight in tuned_weights(tuned).items():
        S = torch.zeros(weight.base.numel(), dtype=weight.base.dtype)
        for position, value in zip(weight.part.positions.tolist(), weight.part.values.tolist(), strict=True):
            S[position] = value
        alpha = 1.0 if weight.part.alpha is None else weight.part.alpha.item()
        leaves[name] = (alpha * weight.base.detach() + S.view(weight.base.shape)).requires_grad_()
        weights[keys[id(weight.base)]] = leaves[name]
    trained = {n: state[n].requires_grad_() for n, p in tuned.named_parameters() if p.requires_grad and n in state}
    y = functional_call(copy.deepcopy(base), {**state, **trained, **weights}, x, tie_weights=True)
    y.square().sum().backward()
    gradients = {name: leaf.grad for name, leaf in trained.items()}
    for name, weight in tuned_weights(tuned).items():
        dense = leaves[name].grad.reshape(-1)
        gradients[f"{name} values"] = dense[weight.part.positions.long()]
        gradients[f"{name} alpha"] = dense @ weight.base.detach().reshape(-1)
    return y.detach(), gradients


def gradients_of(tuned: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output of a fine-tuned network, and the gradients of its sum of squares as above."""
    y = tuned(x)
    y.square().sum().backward()
    parts = {id(p) for m in tuned_weights(tuned).values() for p in m.part.parameters()}
    found = {n: p.grad for n, p in tuned.named_parameters() if p.requires_grad and id(p) not in parts}
    for name, weight in tuned_weights(tuned).items():
        found[f"{name} values"] = weight.part.values.grad
        if weight.part.alpha is not None:
            found[f"{name} alpha"] = weight.part.alpha.grad.reshape(())
    return y.detach(), found


def shaken(net: nn.Module, size: float = 0.1) -> nn.Module:
    """Change everything that trains, as some steps would."""
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))
    return net
