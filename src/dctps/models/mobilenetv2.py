"""MobileNetV2 in the CIFAR variant that the paper uses.

It differs from Sandler et al. (2018) in four points: ReLU instead of ReLU6; an expanding convolution also at expansion
1; stride 1 in the first convolution and in the second row of the table; a 1 x 1 convolution on the shortcut of every
stride-1 block that changes the number of channels.
"""

import torch.nn.functional as F
from torch import Tensor, nn

ROWS = [  # expansion, channels, number of blocks, stride of the first block
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


class InvertedResidual(nn.Module):
    """A block of three convolutions: 1 x 1 to `expansion` times the channels, 3 x 3 depthwise, 1 x 1 to `out` channels.

    At stride 1 the input is added to the output.
    """

    def __init__(self, channels: int, out: int, expansion: int, stride: int) -> None:
        super().__init__()
        planes = expansion * channels
        self.stride = stride
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, groups=planes, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride == 1 and channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return y + self.shortcut(x) if self.stride == 1 else y  # type: ignore[no-any-return]


class MobileNetV2(nn.Module):
    """MobileNetV2, which has 58 convolutions and linear layers with 2,261,824 weights for 10 classes."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 32, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        blocks = []
        channels = 32
        for expansion, out, repeats, stride in ROWS:
            for index in range(repeats):
                blocks.append(InvertedResidual(channels, out, expansion, stride if index == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.conv2 = nn.Conv2d(320, 1280, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(1280)
        self.fc = nn.Linear(1280, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
