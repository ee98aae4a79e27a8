"""The data of fine-tunings: tables and folders, their splits and classes, and batches of tokens."""

import csv
import random

import numpy as np
import pytest
import torch

from dctps.data.archives import opened
from dctps.data.dataset import DataError
from dctps.data.folder import labelled_images
from dctps.data.images import decoded
from dctps.data.labelled import Labelled, class_names, with_all_parts
from dctps.data.tables import load_table
from dctps.data.texts import TextBatches
from helpers.finetune_runs import write_images

# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", "so good\t1\nso bad\t0\n", [("so good", "1"), ("so bad", "0")]),
        ("a.tsv", "\ufeffso good\t1\r\n\r\nso bad\t0", [("so good", "1"), ("so bad", "0")]),
        ("a.tsv", 'he said "no\t1\n', [('he said "no', "1")]),  # quotes stand for themselves
        ("a.csv", '"well, well\nno",1\n', [("well, well\nno", "1")]),
        ("a.csv", "label,id,text\nx,1,hello\n", [("hello", "x")]),
        ("a.CSV", "text,label\nhello, x \n", [("hello", "x")]),
        ("a.txt", "label\ttext\n0\tno\n", [("no", "0")]),
        ("a.tsv", "\t1\n", [("", "1")]),
    ],
)
def test_tables_are_read(name, content, expected, tmp_path):
    (tmp_path / name).write_text(content, newline="")
    found = load_table(tmp_path / name)
    assert list(zip(found.items, found.labels, strict=True)) == expected


def test_columns_have_other_names(tmp_path):
    (tmp_path / "a.tsv").write_text("sentence\tkind\tlabel\nno\tx\t0\n")
    found = load_table(tmp_path / "a.tsv", "sentence", "kind")
    assert (found.items, found.labels) == (["no"], ["x"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"", "has no row"),
        ("a.tsv", b"text\tlabel\n", "has a header and no other row"),
        ("a.tsv", b"sentence\tlabel\nno\t0\n", "no column 'text'; its first row is: sentence, label; .* --text-column"),
        ("a.tsv", b"text\tclass\nno\t0\n", "no column 'label'; .* --label-column"),
        ("a.tsv", b"no,0\n", "has one column .no,0.; a text and a label are needed, separated by tabs"),
        ("a.csv", b"no\t0\n", "separated by commas"),
        ("a.tsv", b"no\t0\nyes\n", "line 2: 1 columns, but the first row has 2"),
        ("a.csv", b'no,0\n"yes,1\n', "line 2: this cannot be read"),
        ("a.tsv", b"no\t0\nyes\t \n", "line 2: the label is empty"),
        ("a.tsv", b"n\xff\t0\n", r"is not text in UTF-8 \(byte 1\)"),
        ("a.json", b"[]", "is no table: its name has to end in .csv, .tsv, .txt"),
        ("a.tsv", b"text\ttext\tlabel\nno\tyes\t0\n", "has several columns 'text'; rename all but the one"),
        ("a.tsv", b"text\tlabel\tlabel \nno\t0\t1\n", "has several columns 'label'"),
        ("b.tsv", None, "there is no table"),
    ],
)
def test_tables_that_are_none(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_table(tmp_path / name)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_texts_have_any_length(name, tmp_path):
    limit, long = csv.field_size_limit(), "word " * 40_000
    (tmp_path / name).write_text(f"no,0\n{long},1\n".replace(",", "," if name == "a.csv" else "\t"))
    assert load_table(tmp_path / name).items == ["no", long]
    assert csv.field_size_limit() == limit


def test_damaged_tables_are_read_or_refused(tmp_path):
    rng, refused = random.Random(0), 0
    for ending in (".csv", ".tsv"):
        content = 'text,label\n"a, b",1\nc,0\n'.replace(",", "," if ending == ".csv" else "\t").encode()
        for _ in range(200):
            damaged = bytearray(content)
            for _ in range(rng.choice([1, 3])):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            (path := tmp_path / f"a{ending}").write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(30)])])
            try:
                assert load_table(path).items
            except DataError:
                refused += 1
    assert refused > 50


# --- parts and classes ------------------------------------------------------------------------------------------------


def numbered(count):
    return Labelled([str(n) for n in range(count)], [f"class {n % 2}" for n in range(count)])


def test_missing_parts_are_taken_from_the_training_examples():
    parts = with_all_parts({"training": numbered(100)}, 0.1, seed=3)
    assert [len(parts[name]) for name in ("training", "validation", "test")] == [81, 9, 10]
    assert sorted(item for part in parts.values() for item in part.items) == sorted(numbered(100).items)
    assert parts == with_all_parts({"training": numbered(100)}, 0.1, seed=3)
    assert parts != with_all_parts({"training": numbered(100)}, 0.1, seed=4)
    given = with_all_parts({"training": numbered(100), "test": numbered(7)}, 0.1, seed=3)
    assert [len(given[name]) for name in ("training", "validation", "test")] == [90, 10, 7]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(["10", "9", "-1"], ["-1", "9", "10"]), (["10", "9", "x"], ["10", "9", "x"]), (["1", "01"], ["01", "1"])],
)
def test_classes_have_an_order(labels, expected):
    examples = Labelled(labels, labels)
    assert class_names({"training": examples}) == expected
    assert examples.numbers(expected).tolist() == [expected.index(label) for label in labels]


def test_labels_of_nothing_that_trains_are_refused():
    with pytest.raises(DataError, match="the class 'class 1'; the training examples have: class 0"):
        class_names({"training": Labelled(["a"], ["class 0"]), "test": numbered(2)})
    with pytest.raises(DataError, match="all training examples are of one class, 'class 0'"):
        class_names({"training": numbered(1)})
    with pytest.raises(DataError, match=r"4 examples are too few to keep a fraction of 0\.1 for test"):
        with_all_parts({"training": numbered(4)}, 0.1, 0)


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (("",), {"training": 6}),
        (("train",), {"training": 6}),
        (("train", "validation"), {"training": 6, "validation": 6}),
        (("train", "val", "test"), {"training": 6, "validation": 6, "test": 6}),
    ],
)
def test_images_have_the_class_of_their_folder(folders, expected, tmp_path):
    pytest.importorskip("PIL")
    with opened(write_images(tmp_path / "photos", 2, parts=folders)) as source:
        found = labelled_images(source)
    assert {part: len(examples) for part, examples in found.items()} == expected
    for examples in found.values():
        assert all(name.split("/")[-2] == label for name, label in zip(examples.items, examples.labels, strict=True))


def test_other_parts_without_training_images_are_no_classes(tmp_path):
    pytest.importorskip("PIL")
    with (
        opened(write_images(tmp_path / "photos", 2, parts=("Train", "test"))) as source,
        pytest.raises(DataError, match=r"a folder of test images and no folder train/"),
    ):
        labelled_images(source)


def test_a_header_with_other_names_is_no_example(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("sentence,sentiment\n" + "good,1\nbad,0\n" * 2)
    with pytest.raises(DataError, match="seems to be a header, because no other row has its label 'sentiment'"):
        load_table(table)
    assert len(load_table(table, "sentence", "sentiment")) == 4
    table.write_text("good,1\nbad,0\n" * 2)
    assert len(load_table(table)) == 4


def test_images_are_cropped_around_their_middle_and_resized(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.zeros((8, 16, 3), dtype=np.uint8)
    pixels[:, 4:12] = 200  # the middle square
    (tmp_path / "photos").mkdir()
    for name, image in (("a.png", pixels), ("b.png", np.full((5, 5, 3), 90, dtype=np.uint8))):
        pillow.fromarray(image).save(tmp_path / "photos" / name)
    with opened(tmp_path / "photos") as source:
        small = decoded(source, {"x": ["a.png", "b.png"]}, (4, 4), resize=True)["x"]
        first = decoded(source, {"x": ["a.png", "b.png"]}, resize=True)["x"]
        with pytest.raises(DataError, match="all must be the same"):
            decoded(source, {"x": ["a.png", "b.png"]})
    assert small.shape == (2, 3, 4, 4)
    assert small[0].min() > 180  # the filter reaches a little over the edge of the square, where all is 0
    assert torch.equal(small[0, :, :, 1:3], small[0, :, :, 1:2].expand(3, 4, 2))
    assert torch.equal(small[1], torch.full((3, 4, 4), 90, dtype=torch.uint8))
    assert first.shape == (2, 3, 8, 16)
    assert torch.equal(first[0], torch.from_numpy(pixels).permute(2, 0, 1))


# --- batches of tokens ------------------------------------------------------------------------------------------------


def tokens(count=23):
    rng = np.random.default_rng(0)
    return [{"ids": rng.integers(1, 9, rng.integers(1, 7)).tolist()} for _ in range(count)]


@pytest.mark.parametrize("left", [True, False])
def test_batches_are_texts_filled_up(left):
    texts, labels = tokens(), torch.arange(23)
    batches = TextBatches(texts, labels, 5, padding={"ids": 99}, left=left, shuffle=True, seed=4)
    assert len(batches) == 5
    seen = []
    for x, y in batches.epoch(2):
        wanted = [texts[label]["ids"] for label in y.tolist()]
        longest = max(map(len, wanted))
        for row, text in zip(x["ids"].tolist(), wanted, strict=True):
            assert row == ([99] * (longest - len(text)) + text if left else text + [99] * (longest - len(text)))
        seen += y.tolist()
    assert sorted(seen) == list(range(23))
    assert seen != sorted(seen)


def test_an_epoch_of_texts_can_be_entered_at_any_batch():
    batches = TextBatches(tokens(), torch.arange(23), 5, padding={}, shuffle=True)
    whole = [(x["ids"].tolist(), y.tolist()) for x, y in batches.epoch(1)]
    for start in range(6):
        assert [(x["ids"].tolist(), y.tolist()) for x, y in batches.epoch(1, start)] == whole[start:]
    assert whole != [(x["ids"].tolist(), y.tolist()) for x, y in batches.epoch(2)]
