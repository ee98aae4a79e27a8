"""The typed reader of plain files: every field by its type and range, and errors that name the field."""

import dataclasses
import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dctps.base import plain_files
from dctps.base.plain_files import DEPTH, RecordError, parse_text, read_lines, read_text
from dctps.base.records import Amount, Count, Fraction, Range, Via, parse
from dctps.base.words import printable, shown


@dataclasses.dataclass(frozen=True)
class Leaf:
    name: str
    size: Count = 3


def even(value):
    if parse(int, value) % 2:
        raise ValueError(f"{value} is odd")
    return value


@dataclasses.dataclass(frozen=True)
class Tree:
    kind: Literal["oak", "elm"]
    leaves: tuple[Leaf, ...]
    share: Fraction
    weight: float
    years: Annotated[int, Range(-5, 5)] | None = None
    wet: bool = False
    notes: dict[str, Amount] = dataclasses.field(default_factory=dict)
    ends: Annotated[int, Via(even)] = 0
    other: float | str = 0.0

    def __post_init__(self):
        if self.wet and self.kind == "oak":
            raise ValueError("no oak is wet")


GOOD: dict[str, Any] = {"kind": "oak", "leaves": [{"name": "a"}, {"name": "b", "size": 1}], "share": 1, "weight": 2}


def test_plain_values_become_a_dataclass():
    tree = parse(Tree, GOOD | {"notes": {"x": 1}, "years": -5, "other": "text"})
    assert tree == Tree("oak", (Leaf("a"), Leaf("b", 1)), 1.0, 2.0, -5, notes={"x": 1.0}, other="text")
    assert type(tree.share) is type(tree.notes["x"]) is float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "ash"}, "kind is 'ash', not 'oak' or 'elm'"),
        ({"kind": ["oak"]}, "kind is a list, not 'oak' or 'elm'"),
        ({"leaves": 3}, "leaves is 3, not a list"),
        ({"leaves": [{"name": "a"}, {}]}, r"leaves\[1\].name is missing"),
        ({"leaves": [{"name": "a", "size": 1.0}]}, r"leaves\[0\].size is 1.0, not an integer from 0 on"),
        (
            {"leaves": [{"name": "a", "size": 2**63}]},
            r"leaves\[0\].size is 9223372036854775808, not an integer from 0 on",
        ),
        ({"leaves": [{"name": "a", "size": True}]}, r"leaves\[0\].size is True, not an integer"),
        ({"share": float("nan")}, "share is nan, not a number from 0 to 1"),
        ({"share": "0.5"}, "share is '0.5', not a number from 0 to 1"),
        ({"weight": float("inf")}, "weight is inf, not a number"),
        ({"weight": 10**400}, "weight is an integer of 1329 bits, not a number"),
        ({"weight": None}, "weight is null, not a number"),
        ({"years": 6}, "years is 6, not an integer from -5 to 5 or null"),
        ({"wet": 1}, "wet is 1, not true or false"),
        ({"wet": True}, "it cannot be: no oak is wet"),
        ({"notes": {"x": -1}}, "notes.x is -1, not a number from 0 on"),
        ({"notes": {1: 1}}, "notes has the key 1, which is no text"),
        ({"ends": 3}, "ends cannot be used: 3 is odd"),
        ({"other": []}, "other is a list, not a number or text"),
        ({"bark\udcff": 1}, r"bark\\udcff is unknown; a newer version may know it"),
    ],
)
def test_the_error_names_the_field_and_what_it_should_be(changes, message):
    with pytest.raises(RecordError, match=f"^{message}"):
        parse(Tree, GOOD | changes)


@pytest.mark.parametrize("value", [[], 5, None, "x", True])
def test_what_is_no_object_is_said(value):
    with pytest.raises(RecordError, match=r"^it is .*, not an object"):
        parse(Tree, value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(Tree)]), JSON))
def test_any_value_in_any_field_is_read_or_refused(changes):
    try:
        tree = parse(Tree, GOOD | changes)
    except RecordError as error:
        str(error).encode("utf-8")
        return
    plain = dataclasses.asdict(tree)
    assert parse(Tree, plain) == tree
    assert 0 <= tree.share <= 1
    assert all(type(leaf.size) is int and leaf.size >= 0 for leaf in tree.leaves)


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nests more than 40"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), "nests more than 40"),
        ('{"a":' * 900 + "1" + "}" * 900, "nests more than 40"),
        ("9" * 5000, "cannot be read"),
        ("{", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_text_that_is_no_plain_value(text, message):
    with pytest.raises(RecordError, match=message):
        parse_text(text)


def test_as_deep_as_allowed():
    assert parse_text("[" * DEPTH + "]" * DEPTH)


def test_files_that_are_no_text_or_too_large(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"abc\xff")
    with pytest.raises(RecordError, match=r"it is not text in UTF-8 \(byte 3\)"):
        read_text(file)
    monkeypatch.setattr(plain_files, "LARGEST_FILE", 3)
    with pytest.raises(RecordError, match="larger than 3 bytes"):
        read_text(file)


@pytest.mark.parametrize("rest", [b"", b'{"a": ', b"\0\0\0", b"\xff\xfe", b"[" * 100_000])
def test_a_line_that_was_cut_short_is_left_out(rest, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b'{"a": 1}\n{"a": 2}\n' + rest)
    assert [json.loads(line) for line in read_lines(file)] == [{"a": 1}, {"a": 2}]


def test_a_last_line_without_an_end_is_a_line(tmp_path):
    (tmp_path / "file").write_bytes(b"1\n2")
    assert read_lines(tmp_path / "file") == ["1", "2"]


@given(st.text() | st.integers() | st.floats() | st.binary() | st.lists(st.integers()))
def test_a_wrong_value_is_shown_in_one_short_line(value):
    text = shown(value)
    assert len(text) < 1000
    assert "\n" not in text
    text.encode("utf-8")


@given(st.text(st.characters(codec=None)))
def test_printable_text_can_be_written(text):
    written = printable(text).encode("utf-8").decode()
    assert written == printable(text)
    assert printable(written) == written
