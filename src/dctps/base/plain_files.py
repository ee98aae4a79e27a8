"""Files of plain values, in JSON or another language: text of a limited size with a limited nesting.

What nests deeper than DEPTH, or is larger than LARGEST_FILE, is no file of ours and is refused. `records.py` makes
dataclasses of the values.
"""

import contextlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGEST_FILE = 64_000_000  # bytes
DEPTH = 40  # objects and lists inside one another


class RecordError(ValueError):
    """The error of a value that is not what its field holds; it names the field by its path in the file."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path.removeprefix('.') or 'it'} {problem}")
        self.problem, self.path = problem, path  # the path is like .accuracy.best_epoch or .layers[2].nnz

    def inside(self, name: str) -> "RecordError":
        """The same error as the value that holds this one has it; name: ".field" or "[index]"."""
        return RecordError(self.problem, f"{name}{self.path}")


def read_text(path: Path) -> str:
    """The text of a file; RecordError if it is too large or no text, OSError as the system raises it."""
    return _decoded(_content(path))


def read_lines(path: Path) -> list[str]:
    """The lines of a file of JSON lines; a last line that a kill or a power cut has cut short is left out."""
    whole, end, rest = _content(path).rpartition(b"\n")
    lines = _decoded(whole + end).split("\n")[:-1]
    with contextlib.suppress(RecordError):
        parse_text(_decoded(rest))
        lines.append(rest.decode())
    return lines


def read_table(path: Path, what: str) -> Any:
    """The plain values in a file of JSON or, if its name ends in .toml, of TOML; ValueError if there are none.

    what: what is read, for the error, such as "a grid".
    """
    toml = path.suffix == ".toml"
    try:
        return parse_text(read_text(path), tomllib.loads if toml else json.loads)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path} to read {what} from") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a folder, not a file to read {what} from") from None
    except RecordError as error:
        kind = "TOML" if toml else "JSON (the name of a TOML file ends in .toml)"
        raise ValueError(f"{path}: this is not {kind}: {error}") from error


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise RecordError(f"is larger than {LARGEST_FILE:,} bytes")
    return content


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"is not text in UTF-8 (byte {error.start})") from None


def parse_text(text: str, parser: Callable[[str], Any] = json.loads) -> Any:
    """The plain values in a text of JSON, or of another language by its `parser`; RecordError if there are none."""
    try:
        value = parser(text)
    except RecursionError:
        raise RecordError(f"nests more than {DEPTH} lists and objects") from None
    except ValueError as error:  # of the parser, or a number with thousands of digits
        raise RecordError(f"cannot be read: {error}") from None
    _check_depth(value, DEPTH)
    return value


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, dict | list):
        return
    if not left:
        raise RecordError(f"nests more than {DEPTH} lists and objects")
    for part in value.values() if isinstance(value, dict) else value:
        _check_depth(part, left - 1)
