"""LeNet-5 in the paper's variant for CIFAR-10: no biases, average pooling, 82 units in the fourth layer."""

import torch.nn.functional as F
from torch import Tensor, nn


class LeNet(nn.Module):
    """LeNet-5, which has 61,510 weights for 32 x 32 inputs and 10 classes.

    hidden: the number of units in the fourth layer; LeCun's original has 84, which makes 61,770 weights.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3, hidden: int = 82) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5, bias=False)
        self.conv2 = nn.Conv2d(6, 16, 5, bias=False)
        self.conv3 = nn.Conv2d(16, 120, 5, bias=False)
        self.fc1 = nn.Linear(120, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (b, 3, 32, 32) -> (b, classes)
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.conv3(x)).flatten(1)
        x = F.relu(self.fc1(x))
        return self.fc2(x)  # type: ignore[no-any-return]
