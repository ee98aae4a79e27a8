"""`dctps train`: train a network by the paper's protocol, resumably. Flags are generated from the settings."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import tyro

from dctps.base.registry import lookup
from dctps.train.session import fit
from dctps.train.settings import PRESETS, Runtime, Settings, from_json


@dataclasses.dataclass(frozen=True)
class Start:
    """What the settings start from; other flags change them."""

    preset: str | None = None
    """Preset that the settings start from: paper-adam (the defaults), paper-sgd or paper-lenet."""
    config: Path | None = None
    """JSON file that the settings start from, such as the config.json of another run."""


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train a network, or go on where it stopped. A finished run is not trained again."""

    start: Annotated[Start, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Start)
    settings: Annotated[Settings, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Settings)
    runtime: Annotated[Runtime, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Runtime)


def train(arguments: list[str]) -> None:
    """Train a network by the paper's protocol, or go on where it stopped."""
    first = _parse(arguments, Settings())
    chosen = _parse(arguments, _base(first.start))
    fit(chosen.settings, chosen.runtime)


def _parse(arguments: list[str], base: Settings) -> Arguments:
    return tyro.cli(Arguments, prog="dctps train", args=arguments, default=Arguments(settings=base))


def _base(start: Start) -> Settings:
    """The settings that flags start from."""
    if start.preset is not None and start.config is not None:
        raise ValueError("settings cannot start from a preset and from a file: say --preset or --config, not both")
    if start.preset is not None:
        return lookup(PRESETS, start.preset, "preset")
    if start.config is None:
        return Settings()
    try:
        return from_json(json.loads(start.config.read_text()))
    except ValueError as error:
        raise ValueError(f"{start.config}: {error}") from error
