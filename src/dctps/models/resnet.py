"""ResNets (He et al. 2016) for CIFAR: a 3 x 3 convolution first, no max-pool, four stages of stride 1, 2, 2, 2."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """The base of both blocks, relu(path(x) + shortcut(x)).

    The shortcut is the identity, or a 1 x 1 convolution where the shapes of input and output differ.
    """

    expansion: int
    shortcut: nn.Module

    def _make_shortcut(self, channels: int, planes: int, stride: int) -> nn.Module:
        out = planes * self.expansion
        if stride == 1 and channels == out:
            return nn.Identity()
        return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class BasicBlock(Block):
    """A block of two 3 x 3 convolutions, the first with the stride."""

    expansion = 1

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = self._make_shortcut(channels, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Bottleneck(Block):
    """A block of three convolutions: 1 x 1, 3 x 3 with the stride, 1 x 1 to four times as many channels."""

    expansion = 4

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.shortcut = self._make_shortcut(channels, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """A ResNet with four stages; each stage has twice as many channels as the one before.

    block: the class of the blocks.
    depths: the number of blocks in each stage.
    width: the number of channels in the first stage: 64 in the paper, fewer for quick experiments.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        num_classes: int = 10,
        in_channels: int = 3,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        channels = width
        for index, depth in enumerate(depths):
            planes = width << index
            strides = [1 if index == 0 else 2] + [1] * (depth - 1)
            blocks = []
            for stride in strides:
                blocks.append(block(channels, planes, stride))
                channels = planes * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
