"""Small fine-tunings: images in folders, texts in tables, and the networks that they start from."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from dctps.train.finetuning.settings import FinetuneSettings

COLOURS = {"blue": 2, "green": 1, "red": 0}
WORDS = {"0": ["bad", "dull", "poor"], "1": ["fine", "good", "nice"]}
FILLERS = ["a", "film", "is", "so", "the", "this", "very"]
NETWORK = "helpers.finetune_runs:network"


def write_images(folder: Path, count: int = 16, size: int = 12, parts: tuple[str, ...] = ("",)) -> Path:
    """Write so many noisy images of each colour, in a folder for each; parts: folders above these, such as train."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part in parts:
        for name, channel in COLOURS.items():
            (folder / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 160, (size, size, 3), dtype=np.uint8)
                pixels[:, :, channel] += 60
                Image.fromarray(pixels).save(folder / part / name / f"{index}.png")
    return folder


def texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """So many texts of different lengths, each with its label."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        label = str(index % 2)
        words = [*rng.choice(FILLERS, rng.integers(1, 6)), *rng.choice(WORDS[label], 2)]
        rows.append((" ".join(words), label))
    return rows


def write_table(path: Path, count: int = 60, seed: int = 0, header: str = "") -> Path:
    """Write a table of texts, with tabs; header: its first line."""
    lines = [header] if header else []
    path.write_text("\n".join([*lines, *("\t".join(row) for row in texts(count, seed))]) + "\n")
    return path


def write_bert(folder: Path, seed: int = 1) -> Path:
    """Write a tiny BERT without a head, and its tokenizer, as a folder of transformers."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *FILLERS, *WORDS["0"], *WORDS["1"]]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(words), "max_position_embeddings": 32}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return folder


def network(num_classes: int = 3, seed: int = 1) -> nn.Module:
    """A small convolutional network whose weights are always the same; its last layer is called classifier."""
    import sqlite3  # noqa: F401  # a library that shows from outside that all imports are over

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        net.append(nn.Flatten())
        net.append(nn.Dropout(0.1))
        net.add_module("classifier", nn.Linear(8, num_classes))
    return net


def other_network(num_classes: int = 3) -> nn.Module:
    """A network of the same shapes with other weights."""
    return network(num_classes, seed=2)


class TwoNames(nn.Module):
    """The small network with a second name for one of its layers."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        *body, self.classifier = network(num_classes)
        self.body = nn.Sequential(*body)
        self.second = self.body[3]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number for each class."""
        return self.classifier(self.body(x))


def image_settings(folder: Path, **changes: object) -> FinetuneSettings:
    """The fine-tuning of the small network on a folder of images."""
    usual = {"model": NETWORK, "density": 0.2, "lr": 0.02, "batch_size": 8, "warmup": 0.2, "epochs": 2}
    return FinetuneSettings(str(folder), **usual | changes)


def text_settings(table: Path, folder: Path, **changes: object) -> FinetuneSettings:
    """The fine-tuning of a tiny BERT on a table."""
    usual = {"density": 0.1, "lr": 0.01, "batch_size": 8, "epochs": 2}
    return FinetuneSettings(str(table), str(folder), **usual | changes)
