"""Tables of runs in the pages: what docs/tables.py makes of the tables in results/."""

import dataclasses
import importlib.util
import runpy
from pathlib import Path

import pytest

from dctps.experiments.sheet import write_sheet
from dctps.experiments.tasks.training import EpochRow, TrainingRow

FILE = Path(__file__).parents[1] / "docs" / "tables.py"
HEAD = "|  | 1 % | 0.1 % |\n|---|--:|--:|"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("tables", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    return module


def row(line, density, seed, accuracy, status="done", size=1000, kind=TrainingRow, **more):
    values = {field.name: None for field in dataclasses.fields(kind)}
    values |= {"experiment": "e", "scale": "laptop", "panel": "net, data", "line": line, "density": density}
    values |= {
        "seed": seed,
        "status": status,
        "reason": "",
        "commit": "c",
        "id": f"{line}{density}{seed}",
        "task": "train",
    }
    values |= {"model": "net", "data": "data", "epochs": 1, **more}
    values |= {"test_at_best": accuracy, "file_bytes": size} if kind is TrainingRow else {}
    return kind(**values)


ROWS = [
    *(row(line, 0.1, 0, None, status="missing") for line in ("prune", "force", "base")),  # lines keep this order
    row("prune", 0.01, 0, None, status="collapsed"),
    row("force", 0.01, 0, 0.2),
    row("force", 0.01, 1, None, status="collapsed"),
    row("force", 0.01, 2, 0.2),
    *(row("base", 0.01, seed, accuracy) for seed, accuracy in enumerate((0.2, 0.3, 0.4))),
    *(row("ours", 0.01, seed, accuracy, size=2000) for seed, accuracy in enumerate((0.3, 0.5, 0.7))),
    row("base", 0.001, 0, 0.1, size=10),
    row("ours", 0.001, 1, 0.15, size=20),
    row("ours", 0.001, 0, 0.25, size=20),
    row("other", 0.01, 0, None, status="missing"),
]


def test_accuracies_are_means_over_seeds(tables, tmp_path):
    write_sheet(ROWS, tmp_path / "runs.csv")
    assert tables.table("runs: accuracies of net, data").splitlines() == [
        *HEAD.splitlines(),
        "| prune | collapsed (1 seed) |  |",
        "| force | 20.0 ± 0.0 (1 collapsed) |  |",
        "| base | 30.0 ± 10.0 | 10.0 (1 seed) |",
        "| ours | 50.0 ± 20.0 | 20.0 ± 7.1 (2 seeds) |",
    ]


def test_differences_are_between_runs_of_the_same_seed(tables, tmp_path):
    write_sheet(ROWS, tmp_path / "runs.csv")
    assert tables.table("runs: differences to base of net, data").splitlines() == [
        *HEAD.splitlines(),
        "| force | -10.0 ± 14.1 (2 seeds) |  |",
        "| ours | +20.0 ± 10.0 | +15.0 (1 seed) |",
    ]


def test_files_come_from_the_largest_down(tables, tmp_path):
    write_sheet(ROWS, tmp_path / "runs.csv")
    assert [line.split(" | ")[:3] for line in tables.table("runs: bytes of net, data").splitlines()[2:]] == [
        ["| ours", "1 %", "2,000"],
        ["| force", "1 %", "1,000"],
        ["| base", "1 %", "1,000"],
        ["| ours", "0.1 %", "20"],
        ["| base", "0.1 %", "10"],
    ]


def test_epochs_are_columns(tables, tmp_path):
    rows = [
        row("ours", density, 0, None, kind=EpochRow, epoch=epoch, validation=epoch * density)
        for density in (0.01, 0.001)
        for epoch in (1, 2, 10)
    ]
    write_sheet(rows, tmp_path / "runs-epochs.csv")
    head = ["|  | epoch 1 | epoch 10 |", "|---|--:|--:|"]
    one, all_of_them = (tables.table(f"runs: epochs 1 10{at} of net, data").splitlines() for at in (" at 0.01", ""))
    assert one == [*head, "| ours | 1.0 (1 seed) | 10.0 (1 seed) |"]
    assert all_of_them == [
        *head,
        "| ours, 1 % | 1.0 (1 seed) | 10.0 (1 seed) |",
        "| ours, 0.1 % | 0.1 (1 seed) | 1.0 (1 seed) |",
    ]


@pytest.mark.parametrize("request_", ["runs: means of net, data", "runs", "runs: epochs of net, data"])
def test_a_table_that_does_not_exist_is_an_error(tables, tmp_path, request_):
    write_sheet(ROWS, tmp_path / "runs.csv")
    with pytest.raises(ValueError, match="no table is called"):
        tables.table(request_)


EMPTY = {
    "runs: accuracies of nets": r"results/runs\.csv has no results of nets",
    "none: accuracies of net, data": r"none\.csv",
    "runs: differences to bases of net, data": "no seed has a difference; there are the lines prune, force, base, ours",
    "runs: epochs 1 99 at 0.01 of net, data": "there are no results of epoch 99 at this density",
    "runs: epochs 1 at 0.5 of net, data": "there are no results of epoch 1 at this density",
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_table_is_an_error(tables, tmp_path, name):
    write_sheet(ROWS, tmp_path / "runs.csv")
    write_sheet([row("ours", 0.01, 0, None, kind=EpochRow, epoch=1, validation=0.5)], tmp_path / "runs-epochs.csv")
    with pytest.raises(ValueError, match=EMPTY[name]):
        tables.table(name)


def test_a_comment_without_its_end_is_an_error(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    filled = runpy.run_path(str(FILE.with_name("hooks.py")))["filled"]
    request = "<!-- table scale-laptop: accuracies of LeNet-5, CIFAR-10 -->\n"
    with pytest.raises(ValueError, match="1 comments of a page stand alone"):
        filled(f"{request}prose\n\n{request}<!-- end of table -->\n")
    assert "| no offset |" in filled(f"{request}<!-- end of table -->\n")
