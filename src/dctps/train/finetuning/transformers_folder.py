"""Networks of transformers in a local folder: nothing is fetched, and no code of the folder is run."""

import contextlib
import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dctps.base.extras import needed, require
from dctps.base.plain_files import parse_text, read_text
from dctps.data.texts import Tokens
from dctps.train.finetuning.network import IMAGENET, Look, Network, Tokenizer

PURPOSE = "a network of transformers"
OPTIONS = {"local_files_only": True, "trust_remote_code": False}
WEIGHTS = ("*.safetensors", "*.bin")
VOCABULARIES = ("tokenizer.*", "*.model", "tekken.json")  # beside those that the class of a tokenizer names


def check_folder(folder: Path) -> None:
    """Raise ValueError unless a folder has a configuration and weights; ModuleNotFoundError without transformers."""
    require("transformers", PURPOSE)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not the folder of {PURPOSE}: it has no config.json")
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        raise ValueError(f"{folder} has no weights: no file in it is called {' or '.join(WEIGHTS)}")


def text_network(folder: Path, classes: list[str], max_length: int) -> Network:
    """Load a network that classifies texts, and its tokenizer."""
    model, new = _classifier(folder, classes, "AutoModelForSequenceClassification", "texts")
    with _offline() as transformers:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **OPTIONS)
        except Exception as error:  # a damaged file can raise nearly anything
            raise ValueError(f"the tokenizer of {folder} cannot be loaded: {_first_line(error)}") from error
    _check_vocabulary(folder, set(tokenizer.vocab_files_names.values()))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ValueError(f"the tokenizer of {folder} has no token that fills up short texts; give it a pad_token")
    config: Any = model.config
    if config.pad_token_id is None:  # a network without a token of its own for it finds the end of a text by this
        config.pad_token_id = tokenizer.pad_token_id
    longest = min(max_length, tokenizer.model_max_length, getattr(config, "max_position_embeddings", max_length))
    padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    accepted = set(inspect.signature(model.forward).parameters)

    def encode(texts: Sequence[str]) -> list[Tokens]:
        columns = tokenizer(list(texts), truncation=True, max_length=longest)
        names = [name for name in columns if name in accepted]
        return [{name: columns[name][index] for name in names} for index in range(len(texts))]

    special, left = frozenset(tokenizer.all_special_ids), tokenizer.padding_side == "left"
    return Network(model, Tokenizer(encode, padding, left, special, _embeddings(model)), new)


def _check_vocabulary(folder: Path, files: set[str]) -> None:
    """Raise ValueError if a folder has none of the files of a vocabulary: transformers makes an empty one of nothing.

    files: the names that the class of the tokenizer has for them; one without such files needs none.
    """
    if files and not any(path.is_file() for name in (*files, *VOCABULARIES) for path in folder.glob(name)):
        raise ValueError(f"{folder} has no tokenizer: copy that of the network into it ({' or '.join(sorted(files))})")


def _embeddings(model: Any) -> int | None:
    """Return the number of tokens that a network has an embedding for, or None where it has no table of them."""
    with contextlib.suppress(NotImplementedError):
        table = model.get_input_embeddings()
        return table.num_embeddings if isinstance(table, nn.Embedding) else None
    return None


def image_network(folder: Path, classes: list[str]) -> Network:
    """Load a network that classifies images, and the size, mean and deviation that its folder states."""
    model, new = _classifier(folder, classes, "AutoModelForImageClassification", "images")
    return Network(model, _look(folder / "preprocessor_config.json", getattr(model.config, "image_size", None)), new)


def _classifier(folder: Path, classes: list[str], auto: str, noun: str) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a network with an output for each class, and the names of its parameters that the folder does not have."""
    names = dict(enumerate(classes))
    with _offline() as transformers:
        try:
            config = transformers.AutoConfig.from_pretrained(folder, id2label=names, **OPTIONS)
            config.label2id = {name: number for number, name in names.items()}
            options = {"ignore_mismatched_sizes": True, "output_loading_info": True, **OPTIONS}
            load = getattr(transformers, auto).from_pretrained
            model, found = load(folder, config=config, dtype="float32", **options)
        except Exception as error:  # a damaged file can raise nearly anything
            if "Unrecognized configuration class" in str(error):
                kind = f"{folder} is a network of the kind {config.model_type!r}"
                raise ValueError(f"{kind}, which transformers has no classifier of {noun} for") from None
            raise ValueError(f"{folder} cannot be loaded: {_first_line(error)}") from error
    missing = {*found["missing_keys"], *(entry[0] for entry in found["mismatched_keys"])}
    new = tuple(name for name, _ in model.named_parameters() if name in missing)
    if len(new) == len(list(model.parameters())):
        raise ValueError(f"the weights in {folder} are of another network than its config.json: none has its name here")
    return model, new


@contextlib.contextmanager
def _offline() -> Iterator[Any]:
    """Import transformers so that it fetches nothing, and keep it from talking meanwhile."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        transformers = needed("transformers", PURPOSE)
        logging = transformers.utils.logging
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
    finally:
        os.environ.pop("HF_HUB_OFFLINE")
        if before is not None:
            os.environ["HF_HUB_OFFLINE"] = before


def _look(file: Path, size: Any) -> Look:
    """Return what the file of an image processor states; size: what the network itself states."""
    stated = {}
    if file.is_file():
        try:
            stated = parse_text(read_text(file))
        except ValueError as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
    sides = [_side(stated.get(name)) for name in ("crop_size", "size")]
    mean, std = _three(stated.get("image_mean"), IMAGENET[0]), _three(stated.get("image_std"), IMAGENET[1])
    return Look(_side(size) or sides[0] or sides[1], mean, std)


def _side(size: Any) -> int | None:
    """Return the height in a size: a number, or an object of heights, widths or edges."""
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge"))
    if isinstance(size, list | tuple) and size:
        size = size[0]
    return size if type(size) is int and size > 0 else None


def _three(numbers: Any, usual: tuple[float, ...]) -> tuple[float, ...]:
    good = isinstance(numbers, list) and len(numbers) == len(usual)
    return tuple(float(n) for n in numbers) if good and all(isinstance(n, int | float) for n in numbers) else usual


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
