"""`dctps train`: train a network by the paper's protocol, resumably. Flags are generated from the settings."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from dctps.base.plain_files import read_table
from dctps.base.registry import lookup
from dctps.cli.flags import parse
from dctps.train.settings import PRESETS, Runtime, Settings, from_json


@dataclasses.dataclass(frozen=True)
class Start:
    """What the settings start from; other flags change them."""

    preset: str | None = None
    """Preset that the settings start from: paper-adam (the defaults), paper-sgd or paper-lenet."""
    config: Path | None = None
    """File that the settings start from, in JSON or TOML, such as the config.json of another run."""
    continue_from: Path | None = None
    """Folder of a finished run to go on from, with its settings and more --epochs."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train a network, or go on where it stopped. A finished run is not trained again.

    Without a density the network is dense. Every run has a folder of its own in runs/, which is named
    after its settings; the same command finds it again.

      dctps train --model small_cnn --data digits --density 0.01 --epochs 5
      dctps train --model lenet --data digits32 --density 0.01 --offset none --epochs 5
      dctps train --preset paper-lenet --density 0.01
    """

    start: Annotated[Start, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Start)
    settings: Annotated[Settings, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Settings)
    runtime: Annotated[Runtime, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Runtime)


def train(arguments: list[str]) -> None:
    """Train a network by the paper's protocol, or go on where it stopped."""
    first = _parse(arguments, Settings())
    chosen = _parse(arguments, _base(first.start))
    from dctps.train.session import fit

    fit(chosen.settings, chosen.runtime, continue_from=chosen.start.continue_from)


def _parse(arguments: list[str], base: Settings) -> Arguments:
    return parse(Arguments, "train", arguments, default=Arguments(settings=base))


def _base(start: Start) -> Settings:
    """The settings that flags start from."""
    given = {f"--{name.replace('_', '-')}": value for name, value in vars(start).items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"settings start from one thing: say one of {', '.join(given)}")
    if start.preset is not None:
        return lookup(PRESETS, start.preset, "preset")
    if start.continue_from is not None:
        from dctps.train.runs import Run

        return Run(start.continue_from).settings()
    if start.config is None:
        return Settings()
    content = read_table(start.config, "settings")
    try:
        return from_json(content)
    except ValueError as error:
        raise ValueError(f"{start.config}: {error}") from error
