"""The registry of tasks: a task that stands in it is performed, read, written as CSV and listed."""

import dataclasses

import pytest

from dctps.analysis.page.render import write_page
from dctps.experiments.cells import Cell
from dctps.experiments.perform import perform
from dctps.experiments.results import read
from dctps.experiments.sheet import read_sheet, sheet_rows, write_sheet
from dctps.experiments.tasks import TASKS
from dctps.experiments.tasks.task import SheetRow, Task, save_result
from dctps.train.records import Outcome
from dctps.train.settings import Settings
from helpers import runs

SETTINGS = Settings(model="small_cnn", data="digits", density=0.05)


@dataclasses.dataclass(frozen=True)
class DreamRow(SheetRow):
    """A sheep that was counted."""

    sheep: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DreamResult(Outcome):
    """A night's result.json."""

    task: str
    sheep: tuple[int, ...]

    def __post_init__(self):
        if not self.sheep:
            raise ValueError("the sheep are gone")


def count_sheep(settings, runtime, run, on_epoch):
    save_result(run, settings, "dream", {"sheep": [settings.seed, 7]})


DREAM = Task(
    name="dream",
    perform=f"{__name__}:count_sheep",
    result=DreamResult,
    sheets={DreamRow: lambda content, run: [{"sheep": sheep} for sheep in content["sheep"]]},
)


@pytest.fixture
def dream(monkeypatch, tmp_path):
    """A run of a task that a user has registered."""
    monkeypatch.setitem(TASKS, "dream", DREAM)
    cell = Cell(dataclasses.replace(SETTINGS, seed=3), "dream", "night", "sleep")
    perform(cell, runs.runtime(tmp_path / "runs"))
    return cell


def test_a_task_that_is_registered_is_performed_and_read(dream, tmp_path):
    results = read(tmp_path / "runs")
    assert not results.broken
    assert [(row.id, row.task, row.status, row.content["sheep"]) for row in results.rows] == [
        (f"dream-{Cell(dream.settings).id}", "dream", "done", [3, 7])
    ]


def test_its_rows_are_written_as_csv(dream, tmp_path):
    rows = sheet_rows("nights", "paper", [dream], read(tmp_path / "runs"))
    assert [(type(row), row.panel, row.status, row.sheep) for row in rows] == [
        (DreamRow, "night", "done", 3),
        (DreamRow, "night", "done", 7),
    ]
    write_sheet(rows, tmp_path / "nights.csv")
    assert read_sheet(tmp_path / "nights.csv") == rows


@pytest.mark.parametrize("sheep", [[1], []])
def test_a_page_lists_it_or_says_what_is_damaged(dream, tmp_path, monkeypatch, sheep):
    monkeypatch.setattr("dctps.analysis.page.render._plotly", lambda: "")
    run = dream.run(tmp_path / "runs")
    save_result(run, dream.settings, "dream", {"sheep": sheep})
    page = write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    assert [row.id for row in page.rows] == [run.id] * len(sheep)
    assert [broken.reason for broken in page.broken] == ["result.json: it cannot be: the sheep are gone"] * (
        1 - len(sheep)
    )


def test_a_task_that_nobody_registered_is_a_failure(tmp_path):
    cell = Cell(SETTINGS, "dream")
    perform(cell, runs.runtime(tmp_path))
    assert [row.reason for row in read(tmp_path).rows] == [
        "ValueError: unknown task 'dream'; choose one of: train, counts, jacobian"
    ]
