"""Fixup ResNets (Zhang et al. 2019): scalars and a special initialisation replace the normalisation layers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _scalar(value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((1,), value))


class FixupBlock(nn.Module):
    """A residual block: relu(scale conv2(relu(conv1(x + bias1a) + bias1b) + bias2a) + bias2b + shortcut)."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (_scalar(0.0) for _ in range(4))
        self.scale = _scalar(1.0)
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)

    def reset_parameters(self) -> None:
        """Reset the scalars. The network resets the weights, because they depend on the number of its blocks."""
        for bias in (self.bias1a, self.bias1b, self.bias2a, self.bias2b):
            nn.init.zeros_(bias)
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        shifted = x + self.bias1a
        y = F.relu(self.conv1(shifted) + self.bias1b)
        y = self.scale * self.conv2(y + self.bias2a) + self.bias2b
        return F.relu(y + (x if self.stride == 1 else _halved(shifted)))


def _halved(x: Tensor) -> Tensor:
    """Return every other pixel of each axis, with as many zero channels appended as there are channels."""
    small = x[:, :, ::2, ::2]
    return torch.cat([small, torch.zeros_like(small)], dim=1)


class FixupResNet(nn.Module):
    """A network of depth 6 n + 2: three stages of n blocks, 16, 32, 64 channels wide. Its initial output is zero."""

    def __init__(self, depth: int = 110, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.blocks_per_stage = (depth - 2) // 6
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.bias1, self.bias2 = _scalar(0.0), _scalar(0.0)
        blocks = []
        channels = 16
        for planes in (16, 32, 64):
            for index in range(self.blocks_per_stage):
                blocks.append(FixupBlock(channels, planes, 2 if index == 0 and planes > 16 else 1))
                channels = planes
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, num_classes)
        self.reset_weights()

    def reset_weights(self) -> None:
        """Draw conv1 of each block from N(0, 2 / (fan_out blocks)); set conv2 and the classifier to zero.

        The first convolution of the network keeps the initialisation of torch.
        """
        for block in self._blocks():
            nn.init.normal_(block.conv1.weight, std=self._std(block))
            nn.init.zeros_(block.conv2.weight)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def reset_parameters(self) -> None:
        """Reset the two scalars outside the blocks."""
        nn.init.zeros_(self.bias1)
        nn.init.zeros_(self.bias2)

    def initial_norms(self) -> dict[str, float]:
        """Return, by layer, the expected norm of a filter at initialisation; Fixup leaves the first convolution free.

        n independent draws from N(0, s^2) have the expected norm s sqrt(2) Gamma((n + 1) / 2) / Gamma(n / 2).
        """
        norms = {"fc": 0.0}
        for index, block in enumerate(self._blocks()):
            n = 9 * block.conv1.in_channels
            ratio = math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
            norms[f"blocks.{index}.conv1"] = self._std(block) * math.sqrt(2) * ratio
            norms[f"blocks.{index}.conv2"] = 0.0
        return norms

    def _std(self, block: FixupBlock) -> float:
        return math.sqrt(2 / (block.conv1.out_channels * 9)) / math.sqrt(len(self.blocks))

    def _blocks(self) -> list[FixupBlock]:
        return [block for block in self.blocks if isinstance(block, FixupBlock)]

    def slow_parameters(self) -> list[nn.Parameter]:
        """Return the biases and scales, which the paper trains at a tenth of the learning rate."""
        return [p for name, p in self.named_parameters() if name.rpartition(".")[2].startswith(("bias", "scale"))]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.conv1(x) + self.bias1))
        return self.fc(x.mean((2, 3)) + self.bias2)  # type: ignore[no-any-return]
