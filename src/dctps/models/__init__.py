"""The paper's networks as plain PyTorch, which know nothing of sparse layers; `build(name, num_classes)` makes one."""

import functools
import math
from collections.abc import Callable

from torch import nn

from dctps.base.registry import lookup
from dctps.models.fixup_resnet import FixupResNet
from dctps.models.lenet import LeNet
from dctps.models.mobilenetv2 import MobileNetV2
from dctps.models.resnet import BasicBlock, Bottleneck, ResNet
from dctps.models.small_cnn import SmallCNN
from dctps.models.vgg import VGG

MODELS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": SmallCNN,
    "lenet": LeNet,
    "vgg11": functools.partial(VGG, 11),
    "vgg13": functools.partial(VGG, 13),
    "vgg16": functools.partial(VGG, 16),
    "vgg19": functools.partial(VGG, 19),
    "resnet18": functools.partial(ResNet, BasicBlock, (2, 2, 2, 2)),
    "resnet34": functools.partial(ResNet, BasicBlock, (3, 4, 6, 3)),
    "resnet50": functools.partial(ResNet, Bottleneck, (3, 4, 6, 3)),
    "resnet101": functools.partial(ResNet, Bottleneck, (3, 4, 23, 3)),
    "mobilenetv2": MobileNetV2,
    "fixup_resnet20": functools.partial(FixupResNet, 20),
    "fixup_resnet32": functools.partial(FixupResNet, 32),
    "fixup_resnet44": functools.partial(FixupResNet, 44),
    "fixup_resnet56": functools.partial(FixupResNet, 56),
    "fixup_resnet110": functools.partial(FixupResNet, 110),
}


def build(name: str, num_classes: int = 10, in_channels: int = 3, **options: int) -> nn.Module:
    """Build a network with the paper's initialisation: N(0, 2 / fan_in) for every weight; Fixup ResNets use Fixup's.

    options: `hidden` for LeNet, `width` for the ResNets and VGGs.

    >>> sum(p.numel() for p in build("lenet").parameters())
    61510
    """
    model = lookup(MODELS, name, "model")(num_classes=num_classes, in_channels=in_channels, **options)
    if not isinstance(model, FixupResNet):
        he_normal_(model)
    return model


def he_normal_(model: nn.Module) -> None:
    """Draw the weight of every convolution and linear layer from N(0, 2 / fan_in); biases keep torch's default."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = math.prod(module.weight.shape[1:])
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_in))
