"""The names of networks and data sets as figures and tables write them."""

from dctps.data import DATASETS

NETWORK_TITLES = {
    "lenet": "LeNet-5",
    "resnet18": "ResNet18",
    "resnet50": "ResNet50",
    "vgg19": "VGG19",
    "mobilenetv2": "MobileNetV2",
    "fixup_resnet110": "FixupResNet110",
    "fixup_resnet20": "FixupResNet20",
}


def network_title(model: str) -> str:
    """Return the title of a network, or its name if it has no title.

    >>> network_title("lenet"), network_title("mine:network")
    ('LeNet-5', 'mine:network')
    """
    return NETWORK_TITLES.get(model, model)


def data_title(data: str) -> str:
    """Return the title of a data set, or its name if it is not in `dctps.data.DATASETS`.

    >>> data_title("cifar10"), data_title("folder:mine")
    ('CIFAR-10', 'folder:mine')
    """
    return DATASETS[data].title if data in DATASETS else data
