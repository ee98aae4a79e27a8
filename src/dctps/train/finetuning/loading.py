"""The pretrained network of a fine-tuning, from a function of the user or a folder of transformers."""

from pathlib import Path

from torch import nn

from dctps.base import user_code
from dctps.nn.diagnose import check_input
from dctps.nn.logits import Inputs, logits_of
from dctps.train.finetuning.network import Look, Network
from dctps.train.finetuning.transformers_folder import check_folder, image_network, text_network
from dctps.train.trained import build

CHANNELS = 3  # images are read as RGB


def check_model(name: str) -> None:
    """Raise ValueError unless this is the name of a function, or the folder of a network of transformers."""
    if user_code.names_function(name) and not Path(name).exists():
        return
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"there is no folder {name!r} of a network of transformers; a function of your own is named "
            "package.module:function, and nothing is fetched from the Hugging Face hub"
        )
    check_folder(folder)


def load_network(name: str, classes: list[str], *, texts: bool, max_length: int) -> Network:
    """Load a network with as many outputs as there are classes.

    texts: whether it is to take texts of at most `max_length` tokens, in place of images.
    """
    if user_code.names_function(name) and not Path(name).exists():
        if texts:
            raise ValueError(
                f"{name} is a network for images, because it has no tokenizer; a table of texts needs a folder of a "
                "network of transformers"
            )
        return Network(build(name, len(classes), CHANNELS), Look())
    folder = Path(name).expanduser()
    return text_network(folder, classes, max_length) if texts else image_network(folder, classes)


def check_outputs(model: nn.Module, x: Inputs, count: int, name: str, noun: str) -> None:
    """Raise ValueError unless a network takes a batch and has an output for each of `count` classes."""
    output = check_input(model, x, lambda reason: f"{name} does not take these {noun}: {reason}")
    logits = logits_of(output)
    shape = tuple(getattr(logits, "shape", ()))
    if len(shape) != 2 or shape[1] != count:
        found = f"outputs of shape {shape}" if shape else f"a {type(output).__name__}"
        raise ValueError(
            f"{name} returns {found}, but the data have {count} classes, so (batch, {count}) is needed; a function of "
            "your own is told the number as num_classes if it has such a parameter"
        )
