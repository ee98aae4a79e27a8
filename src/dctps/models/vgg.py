"""VGG with BatchNorm for 32 x 32 and 64 x 64 inputs: four max-pools, a global average pool, one linear layer."""

from torch import Tensor, nn

POOL = 0
PLANS = {  # by depth: the number of filters of each convolution, and where the max-pools are
    11: [64, POOL, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512],
    13: [64, 64, POOL, 128, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512],
    16: [64, 64, POOL, 128, 128, POOL, *[256] * 3, POOL, *[512] * 3, POOL, *[512] * 3],
    19: [64, 64, POOL, 128, 128, POOL, *[256] * 4, POOL, *[512] * 4, POOL, *[512] * 4],
}


class VGG(nn.Module):
    """A VGG: 3 x 3 convolutions without bias, each followed by BatchNorm and ReLU; the fifth pool is an average.

    width: the number of filters in the first stage, 64 as published; the other stages scale with it.
    """

    def __init__(self, depth: int = 19, num_classes: int = 10, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_channels
        for step in PLANS[depth]:
            if step == POOL:
                layers.append(nn.MaxPool2d(2))
                continue
            filters = step * width // 64
            layers += [
                nn.Conv2d(channels, filters, 3, padding=1, bias=False),
                nn.BatchNorm2d(filters),
                nn.ReLU(inplace=True),
            ]
            channels = filters
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))  # type: ignore[no-any-return]
