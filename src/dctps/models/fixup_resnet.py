"""Fixup ResNets (Zhang et al. 2019): deep residual networks without normalisation, by initialisation and scalars."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def _scalar(value: float) -> nn.Parameter:
    return nn.Parameter(torch.full((1,), value))


class FixupBlock(nn.Module):
    """relu(scale conv2(relu(conv1(x + bias1a) + bias1b) + bias2a) + bias2b + shortcut)."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (_scalar(0.0) for _ in range(4))
        self.scale = _scalar(1.0)
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)

    def reset_parameters(self) -> None:
        """The scalars; the weights are the network's to initialise, which knows how many blocks there are."""
        for bias in (self.bias1a, self.bias1b, self.bias2a, self.bias2b):
            nn.init.zeros_(bias)
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        shifted = x + self.bias1a
        y = F.relu(self.conv1(shifted) + self.bias1b)
        y = self.scale * self.conv2(y + self.bias2a) + self.bias2b
        return F.relu(y + (x if self.stride == 1 else _halved(shifted)))


def _halved(x: Tensor) -> Tensor:
    """Every other pixel, and as many zero channels again."""
    small = x[:, :, ::2, ::2]
    return torch.cat([small, torch.zeros_like(small)], dim=1)


class FixupResNet(nn.Module):
    """Depth 6 n + 2: three stages of n blocks, widths 16, 32, 64. Its output is zero at initialisation."""

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
        """conv1 of each block: He by fan-out times blocks^(-1/2); conv2 and the classifier zero; the stem torch's."""
        for block in self._blocks():
            nn.init.normal_(block.conv1.weight, std=self._std(block))
            nn.init.zeros_(block.conv2.weight)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def reset_parameters(self) -> None:
        """The network's own two scalars."""
        nn.init.zeros_(self.bias1)
        nn.init.zeros_(self.bias2)

    def initial_norms(self) -> dict[str, float]:
        """The expected norm of a filter at initialisation, by layer; only the stem's does not matter to Fixup.

        Of n independent N(0, s^2) it is s sqrt(2) Gamma((n + 1) / 2) / Gamma(n / 2).
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
        """The biases and scales, which the paper trains at a tenth of the learning rate."""
        return [p for name, p in self.named_parameters() if name.rpartition(".")[2].startswith(("bias", "scale"))]

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.conv1(x) + self.bias1))
        return self.fc(x.mean((2, 3)) + self.bias2)  # type: ignore[no-any-return]
