"""Files of plain values (JSON) as dataclasses: every value is checked against the declared type of its field.

A field may be declared as int, float, str, bool, None, a Literal, another dataclass, tuple[X, ...], list[X],
dict[str, X], any other class, or a union of these. `Annotated[int, Range(0, 9)]` bounds a number and
`Annotated[X, Via(f)]` lets the function f read the value. Numbers are finite. Keys that a dataclass does not have, and
fields without a default that are missing, are errors. Every error names the field.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, Union

from dctps.base.plain_files import RecordError
from dctps.base.words import printable, shown

T = TypeVar("T")
LARGEST_INT = 2**63 - 1  # torch, numpy and other languages hold no larger ones
LARGEST = 1e200  # sums of many such numbers, and hundred times as many, are still finite


@dataclasses.dataclass(frozen=True)
class Range:
    """The least and the largest number that a field may hold."""

    low: float = -LARGEST
    high: float = LARGEST

    def __str__(self) -> str:
        unbounded = (-LARGEST, LARGEST, -LARGEST_INT, LARGEST_INT)
        low = "" if self.low in unbounded else f" from {self.low:g}"
        return low + (low and " on" if self.high in unbounded else f" to {self.high:g}")


@dataclasses.dataclass(frozen=True)
class Via:
    """The function that reads a field; it raises ValueError if the value is wrong."""

    function: Callable[[Any], Any]


Count = Annotated[int, Range(0, LARGEST_INT)]
Amount = Annotated[float, Range(0, LARGEST)]
Fraction = Annotated[float, Range(0, 1)]


def parse(kind: type[T], value: Any) -> T:
    """The plain value as an instance of a class, usually a dataclass; RecordError, with the field, if it is none."""
    return typing.cast(T, _reader(typing.cast(Any, kind)).read(value))


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads the values of one declared type; `words` say what they are."""

    words: str
    read: Callable[[Any], Any]


@functools.cache
def _reader(hint: Any) -> _Reader:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _annotated(*arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (list, tuple):
        return _sequence(origin, _reader(arguments[0]))
    if origin is dict:
        return _mapping(_reader(arguments[1]))
    if dataclasses.is_dataclass(hint):
        return _record(hint)
    return _plain(hint)


def _annotated(hint: Any, *notes: Any) -> _Reader:
    note = next((note for note in notes if isinstance(note, Range | Via)), None)
    if note is None:  # the notes are for others, such as a parser of flags
        return _reader(hint)
    if isinstance(note, Range):
        return _number(hint, note)

    def read(value: Any) -> Any:
        try:
            return note.function(value)
        except RecordError:
            raise
        except ValueError as error:
            raise RecordError(f"cannot be used: {error}") from None

    return _Reader(_reader(hint).words, read)


def _plain(hint: Any) -> _Reader:
    """Readers of values that are taken as they are."""
    if hint is Any:
        return _Reader("anything", lambda value: value)
    if hint in (int, float):
        return _number(hint, Range(-LARGEST_INT, LARGEST_INT) if hint is int else Range())
    words = {str: "text", bool: "true or false", dict: "an object", types.NoneType: "null"}
    said = words.get(hint, f"a {hint.__name__}")

    def read(value: Any) -> Any:
        if isinstance(value, hint):
            return value
        raise _mismatch(value, said)

    return _Reader(said, read)


def _mismatch(value: Any, words: str) -> RecordError:
    return RecordError(f"is {shown(value)}, not {words}")


def _number(kind: type, limits: Range) -> _Reader:
    """Numbers in a range; an integer may stand for a real number, but true and false are no numbers."""
    allowed, words = (
        (int,) if kind is int else (int, float),
        ("an integer" if kind is int else "a number") + str(limits),
    )

    def read(value: Any) -> Any:
        if type(value) not in allowed or not limits.low <= value <= limits.high:  # false for NaN
            raise _mismatch(value, words)
        return kind(value)

    return _Reader(words, read)


def _one_of(words: tuple[str, ...]) -> _Reader:
    said = " or ".join(map(repr, words))

    def read(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return value
        raise _mismatch(value, said)

    return _Reader(said, read)


def _union(hints: tuple[Any, ...]) -> _Reader:
    readers = [_reader(hint) for hint in hints]
    said = " or ".join(reader.words for reader in readers)

    def read(value: Any) -> Any:
        for reader in readers:
            try:
                return reader.read(value)
            except RecordError as error:
                if error.path:  # it is this kind of value, with something wrong in it
                    raise
        raise _mismatch(value, said)

    return _Reader(said, read)


def _sequence(kind: type, entry: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _mismatch(value, "a list")
        read_entries = []
        for index, part in enumerate(value):
            try:
                read_entries.append(entry.read(part))
            except RecordError as error:
                raise error.inside(f"[{index}]") from None
        return kind(read_entries)

    return _Reader("a list", read)


def _mapping(entry: _Reader) -> _Reader:
    def read(value: Any) -> dict[str, Any]:
        fields = _object(value)
        return {name: _field(entry, name, part) for name, part in fields.items()}

    return _Reader("an object", read)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch(value, "an object")
    for name in value:
        if not isinstance(name, str):
            raise RecordError(f"has the key {shown(name)}, which is no text")
    return value


def _field(reader: _Reader, name: str, value: Any) -> Any:
    try:
        return reader.read(value)
    except RecordError as error:
        raise error.inside(f".{printable(name[:60])}") from None


def _record(kind: Any) -> _Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind)}
    empty = (dataclasses.MISSING, dataclasses.MISSING)
    needed = [field.name for field in dataclasses.fields(kind) if (field.default, field.default_factory) == empty]

    def read(value: Any) -> Any:
        fields = _object(value)
        if unknown := [name for name in fields if name not in readers]:
            raise RecordError("is unknown; a newer version may know it", f".{printable(unknown[0][:60])}")
        if missing := [name for name in needed if name not in fields]:
            raise RecordError("is missing", f".{missing[0]}")
        try:
            return kind(**{name: _field(readers[name], name, part) for name, part in fields.items()})
        except RecordError:
            raise
        except ValueError as error:  # of the checks of the dataclass itself
            raise RecordError(f"cannot be: {error}") from None

    return _Reader("an object", read)
