"""`dctps finetune DATA`: fine-tune a pretrained network, resumably. Flags are generated from the settings."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from dctps.cli.flags import parse
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.settings import Runtime


@dataclasses.dataclass(frozen=True)
class Execution(Runtime):
    """Where and with what a fine-tuning is executed; it needs no folder of data sets."""

    data_root: tyro.conf.Suppress[Path | None] = None


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Fine-tune a pretrained network on images or texts, or go on where it stopped.

    Every weight becomes W0 + S: W0 is frozen, and the few values of S train. The run has a folder of its own in runs/,
    which is named after its settings; the same command finds it again. At the end the folder holds an adapter of some
    kilobytes, which dctps.load or dctps.from_pretrained attaches to the network.

      dctps finetune photos/ --model mynets:pretrained --density 0.001
      dctps finetune train.tsv --model path/to/minilm --density 0.001 --test-data test.tsv
      dctps finetune train.csv --model path/to/minilm --support snip --train classifier norms
    """

    settings: Annotated[FinetuneSettings, tyro.conf.arg(name="")]
    runtime: Annotated[Execution, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Execution)


def finetune(arguments: list[str]) -> None:
    """Fine-tune a pretrained network on images or texts, or go on where it stopped."""
    chosen = parse(Arguments, "finetune", arguments)
    from dctps.train.finetuning.session import finetune

    finetune(chosen.settings, chosen.runtime)
