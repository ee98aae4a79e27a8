"""Folders of runs: every run is a row, or is named with the reason why it is not."""

import json

import pytest

from dctps.experiments.cells import Cell
from dctps.experiments.perform import perform
from dctps.experiments.results import read, read_cells
from helpers.runs import runtime
from helpers.sweeps import TINY


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    runs = tmp_path_factory.mktemp("finished")
    perform(Cell(TINY), runtime(runs))
    return runs / Cell(TINY).id


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of a finished run, to be broken."""
    copy = tmp_path / finished.name
    copy.mkdir()
    for name in ("result.json", "best.safetensors", "metrics.jsonl", "config.json"):
        (copy / name).write_bytes((finished / name).read_bytes())
    return copy


def changed(folder, **changes):
    content = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**content, **changes}))


def test_a_finished_run_is_a_row(folder):
    results = read(folder.parent)
    assert [(row.id, row.status, row.settings) for row in results.rows] == [(folder.name, "done", TINY)]
    assert not results.broken
    assert results.unfinished == 0


def test_a_run_under_way_is_counted(folder):
    (folder / "result.json").unlink()
    assert read(folder.parent).unfinished == 1


def half(folder):
    text = (folder / "result.json").read_text()
    (folder / "result.json").write_text(text[: len(text) // 2])


def newer(folder):
    changed(folder, hologram=3)


def newer_setting(folder):
    changed(folder, settings={"model": "small_cnn", "quantum": True})


def no_network(folder):
    (folder / "best.safetensors").unlink()


def renamed(folder):
    changed(folder, id="0123456789ab")


def without_accuracy(folder):
    changed(folder, accuracy={})


def nested(folder):
    (folder / "result.json").write_text("[" * 100_000)


def enormous(folder):
    accuracy = json.loads((folder / "result.json").read_text())["accuracy"]
    changed(folder, accuracy={**accuracy, "test_at_best": 10**400})


def a_list(folder):
    (folder / "result.json").write_text("[1, 2]")


def another_task(folder):
    changed(folder, task="dream")


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (half, "result.json: it cannot be read"),
        (newer, "result.json: hologram is unknown; a newer version"),
        (newer_setting, "unknown settings quantum"),
        (no_network, "best.safetensors, is gone"),
        (renamed, "id is '0123456789ab', not that of this folder"),
        (without_accuracy, "accuracy.best_validation is missing"),
        (nested, "nests more than 40"),
        (enormous, "accuracy.test_at_best is an integer of 1329 bits, not a number from 0 to 1"),
        (a_list, "it is a list, not an object"),
        (another_task, "task is 'dream', an unknown task"),
    ],
)
def test_what_is_broken_is_named(folder, break_it, words):
    break_it(folder)
    results = read(folder.parent)
    assert not results.rows
    assert [broken.name for broken in results.broken] == [folder.name]
    assert words in results.broken[0].reason
    assert [broken.name for broken in read_cells([Cell(TINY)], folder.parent).broken] == [folder.name]


def test_no_folder_is_said(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        read(tmp_path / "nothing")
