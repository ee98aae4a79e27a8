"""The names of networks, data sets, offsets and settings as figures, tables and pages write them."""

from collections.abc import Callable, Mapping
from typing import Any

from dctps.core.offsets import TransformOffset
from dctps.data import DATASETS

NETWORK_TITLES = {
    "small_cnn": "small CNN",
    "lenet": "LeNet-5",
    "vgg11": "VGG11",
    "vgg13": "VGG13",
    "vgg16": "VGG16",
    "vgg19": "VGG19",
    "resnet18": "ResNet18",
    "resnet34": "ResNet34",
    "resnet50": "ResNet50",
    "resnet101": "ResNet101",
    "mobilenetv2": "MobileNetV2",
    "fixup_resnet20": "FixupResNet20",
    "fixup_resnet32": "FixupResNet32",
    "fixup_resnet44": "FixupResNet44",
    "fixup_resnet56": "FixupResNet56",
    "fixup_resnet110": "FixupResNet110",
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


# --- offsets --------------------------------------------------------------------------------------------------------

TRANSFORM_TITLES = {"dct": "DCT", "dst": "DST", "hartley": "Hartley", "hadamard": "Hadamard"}
ORDERS, ROWS = {"channel": "channel order"}, {"random": "random rows"}
SIGNS = {"channel": "signs", "position": "position signs"}


def offset_title(offset: str) -> str:
    """Return an offset in words: its transform, and what differs from the published one; other names stay as they are.

    >>> offset_title("dct"), offset_title("srht"), offset_title("dct/channel/position/random/3")
    ('DCT', 'Hadamard, signs, random rows', 'DCT, channel order, position signs, random rows, seed 3')
    """
    try:
        recipe = TransformOffset.parse(offset)
    except ValueError:
        return offset
    parts = ORDERS.get(recipe.order), SIGNS.get(recipe.signs), ROWS.get(recipe.rows)
    seed = f"seed {recipe.seed}" if recipe.seed else None
    return ", ".join(filter(None, (TRANSFORM_TITLES.get(recipe.transform, recipe.transform), *parts, seed)))


# --- settings -------------------------------------------------------------------------------------------------------

Words = Callable[[Any], str]


def _counted(word: str) -> Words:
    """Return the words of a number of things; None is the usual number."""
    return lambda n: f"the usual {word}s" if n is None else f"{n:,} {word}{'' if n == 1 else 's'}"


def _chosen(choices: Mapping[Any, str]) -> Words:
    return lambda value: choices.get(value, str(value))


def _after(words: str) -> Words:
    return lambda value: f"{words} {_number(value)}"


def _number(value: Any) -> str:
    """Return a number without an idle ".0", in all its digits, so that numbers that differ are told apart."""
    return str(value).removesuffix(".0")


def _share(value: float) -> str:
    return f"{_number(round(100 * value, 10))} %"


# The words of a setting of `dctps.train.settings.Settings`, where its name and value alone would be no words.
SETTING_WORDS: dict[str, Words] = {
    "model": network_title,
    "data": data_title,
    "hidden": _counted("hidden unit"),
    "images": _counted("image"),
    "epochs": _counted("epoch"),
    "method_steps": _counted("pruning step"),
    "method_batches": lambda n: f"{_counted('batch')(n).replace('batchs', 'batches')} in each pruning step",
    "imp_rewind": lambda n: f"rewound to step {n:,}",
    "rewire_every": lambda n: f"rewired every {n:,} steps",
    "rewire_until": lambda share: f"rewired for {_share(share)} of the training",
    "drop_fraction": lambda share: f"{_share(share)} moved at first",
    "optimizer": _chosen({"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}),
    "lr": _after("learning rate"),
    "alpha_lr": lambda rate: "no own learning rate of alpha" if rate is None else f"learning rate {rate} of alpha",
    "values_lr": lambda rate: "no own learning rate of the values" if rate is None else f"learning rate {rate} of S",
    "schedule": _chosen({"constant": "constant rate", "multistep": "rate in steps", "cosine": "cosine schedule"}),
    "milestones": lambda epochs: f"steps at epochs {', '.join(map(str, epochs))}",
    "gamma": _after("rate in steps times"),
    "legacy_lr_order": _chosen({True: "steps an epoch early, as published", False: "steps at the milestones"}),
    "batch_size": _after("batches of"),
    "augment": _chosen({True: "with augmentation", False: "without augmentation"}),
    "split": _chosen({"exact": "exact split", "paper": "published split"}),
    "bf16": _chosen({True: "bfloat16", False: "float32"}),
    "channels_last": _chosen({True: "channels last", False: "channels first"}),
    "compile": _chosen({True: "compiled", False: "not compiled"}),
}


def setting_words(name: str, value: Any) -> str:
    """Return a setting of a run in words.

    >>> setting_words("batch_size", 64), setting_words("optimizer", "sgd"), setting_words("weight_decay", 5e-4)
    ('batches of 64', 'SGD', 'weight decay 0.0005')
    """
    words = SETTING_WORDS.get(name, _after(name.replace("_", " ")))
    return words(value)
