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


def panel_as_run(panel: str, data: str) -> str:
    """Return the name of a panel and, where a scale has replaced the data set that it names, the one that is used.

    >>> panel_as_run("LeNet-5, CIFAR-10", "cifar10"), panel_as_run("LeNet-5, CIFAR-10", "digits32")
    ('LeNet-5, CIFAR-10', 'LeNet-5, CIFAR-10 (run on digits 32 x 32)')
    """
    named = {info.title for info in DATASETS.values()} & set(panel.split(", "))
    return f"{panel} (run on {data_title(data)})" if named and data_title(data) not in named else panel
