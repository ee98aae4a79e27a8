"""Settings of a line in the messages of Flower."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Message

from federation.line import Line


def line_from(config: Mapping[str, Any]) -> Line:
    """Return the line that a configuration of Flower describes; names have hyphens there."""
    given = {name.replace("-", "_"): value for name, value in config.items()}
    fields = {field.name: field.type for field in dataclasses.fields(Line)}
    return Line(**{name: fields[name](value) for name, value in given.items() if name in fields})


def config_of(line: Line, number: int) -> ConfigRecord:
    """Return the record that tells a client the line and the round."""
    return ConfigRecord({**dataclasses.asdict(line), "round": number})


def line_of(message: Message) -> tuple[Line, int]:
    """Return the line and the round of a message."""
    config = message.content["config"]
    return line_from(config), int(config["round"])
