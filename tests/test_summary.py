"""Means over seeds by hand, what is missing from them, and sheets that are read back as they were written."""

import dataclasses
from pathlib import Path

import pytest

from dctps.data import DATASETS
from dctps.experiments.cells import Cell
from dctps.experiments.perform import perform
from dctps.experiments.results import Broken, Results, Row, read_cells
from dctps.experiments.sheet import read_sheet, results_of, sheet_rows, write_sheet
from dctps.experiments.summary import chance, points
from dctps.experiments.tasks.counts import LayerRow
from dctps.experiments.tasks.jacobian import SingularValueRow
from dctps.experiments.tasks.training import TrainingRow
from dctps.train.settings import Settings, to_json
from helpers.runs import runtime
from helpers.sheets import training

BASE = Settings(model="lenet", data="cifar10")


def result(cell, test=0.5, validation=0.6):
    """The row of a finished training, as `results.read` would have it."""
    accuracy = {"best_validation": validation, "best_epoch": 3, "test_at_best": test}
    accuracy |= {"final_validation": 0.4, "final_test": 0.3}
    content = {"settings": to_json(cell.settings), "accuracy": accuracy, "commit": "abc", "seconds": 2.5}
    content |= {"weights": {"asked": 10, "got": 9, "size": 1000}, "bytes": {"file": 80, "per_step": 1}}
    content |= {"pruning": {"seconds": 0.5, "forward_passes": 7, "backward_passes": 7}}
    return Row(cell.id, Path(), "train", "done", cell.settings, content)


def failure(cell, status):
    return Row(cell.id, Path(), cell.task, status, cell.settings, {"reason": 'why, and "how"\nat length'})


def accuracies(*tests, **changes):
    return [training(test_at_best=test, best_validation=test + 0.1, seed=i, **changes) for i, test in enumerate(tests)]


# --- points ---------------------------------------------------------------------------------------------------------


def test_mean_and_deviation_by_hand():
    (point,) = points(accuracies(0.5, 0.6, 0.8, weights_got=9))
    assert point.mean == pytest.approx(1.9 / 3)
    assert point.std == pytest.approx(
        (0.07 / 3) ** 0.5
    )  # squares 0.16, 0.01, 0.25 over nine, in all 0.14 / 3; n - 1 = 2
    assert (point.n, point.asked, point.collapsed, point.missing, point.weights) == (3, 3, 0, 0, 9)


def test_validation_accuracy_where_it_is_asked_for():
    lines = accuracies(0.5, 0.7)
    assert points(lines)[0].mean == pytest.approx(0.6)
    assert points(lines, validation=True)[0].mean == pytest.approx(0.7)


def test_one_seed_has_no_deviation():
    (point,) = points(accuracies(0.5))
    assert (point.mean, point.std, point.n) == (0.5, None, 1)


def test_points_are_apart_by_panel_line_and_density():
    changes = [{}, {"density": 0.1}, {"line": "B"}, {"panel": "B"}, {"density": None, "line": "dense"}]
    found = points([line for change in changes for line in accuracies(0.5, 0.6, **change)])
    assert [(p.panel, p.line, p.density, p.n) for p in found] == [
        ("A", "DCTpS", 0.01, 2),
        ("A", "DCTpS", 0.1, 2),
        ("A", "B", 0.01, 2),
        ("B", "DCTpS", 0.01, 2),
        ("A", "dense", None, 2),
    ]


@pytest.mark.parametrize("status", ["missing", "failed", "broken"])
def test_seeds_without_a_result_are_counted_and_not_averaged(status):
    (point,) = points([*accuracies(0.5, 0.7), training(seed=2, status=status)])
    assert point.mean == pytest.approx(0.6)
    assert (point.n, point.asked, point.collapsed, point.missing) == (2, 3, 0, 1)


def test_nothing_at_all_has_no_mean():
    (point,) = points([training(status="missing"), training(seed=1, status="failed")])
    assert (point.mean, point.std, point.n, point.missing, point.is_chance) == (None, None, 0, 2, False)


def test_some_collapses_are_left_out_of_the_mean():
    (point,) = points([*accuracies(0.5, 0.7), training(seed=2, status="collapsed")])
    assert point.mean == pytest.approx(0.6)
    assert (point.n, point.collapsed, point.missing, point.is_chance) == (2, 1, 0, False)


@pytest.mark.parametrize(("data", "expected"), [("cifar10", 0.1), ("cifar100", 0.01), ("tiny_imagenet", 0.005)])
def test_all_collapsed_is_guessing(data, expected):
    (point,) = points([training(seed=i, data=data, status="collapsed") for i in range(3)])
    assert (point.mean, point.std, point.n, point.collapsed) == (expected, None, 0, 3)
    assert point.is_chance


def test_collapsed_with_the_rest_missing_is_guessing_and_incomplete():
    (point,) = points([training(status="collapsed"), training(seed=1, status="missing")])
    assert (point.mean, point.is_chance, point.missing) == (0.1, True, 1)


def test_chance_of_unknown_data_is_not_known():
    assert chance("folder:/somewhere") is None
    (point,) = points([training(data="folder:/somewhere", status="collapsed")])
    assert point.mean is None


def test_chance_of_every_data_set_is_known():
    assert all(chance(name) == 1 / info.classes for name, info in DATASETS.items())


def test_weights_of_a_collapse_are_those_asked_for():
    lines = [*accuracies(0.5, density=0.1, weights_got=97, weights_size=1000), training(status="collapsed")]
    assert [point.weights for point in points(lines)] == [97, 10]
    assert points([training(status="collapsed")])[0].weights is None


# --- lines of cells -------------------------------------------------------------------------------------------------

CELLS = [Cell(dataclasses.replace(BASE, density=0.01, seed=seed), "train", "A", "DCTpS") for seed in range(5)]


def five_lines():
    """A result, a collapse, a failure, a broken file, and a run that is not there."""
    rows = [result(CELLS[0]), failure(CELLS[1], "collapsed"), failure(CELLS[2], "failed")]
    return sheet_rows("lenet", "paper", CELLS, Results(rows, [Broken(CELLS[3].id, "it is damaged")]))


def test_every_cell_has_a_line_with_its_status():
    lines = five_lines()
    assert [line.status for line in lines] == ["done", "collapsed", "failed", "broken", "missing"]
    assert [line.id for line in lines] == [cell.id for cell in CELLS]
    assert lines[3].reason == "it is damaged"
    first = lines[0]
    assert (first.test_at_best, first.best_validation, first.weights_got, first.file_bytes) == (0.5, 0.6, 9, 80)
    assert (first.pruning_seconds, first.pruning_passes, first.seconds, first.rewire_every) == (0.5, 7, 2.5, None)


def test_a_run_named_twice_for_a_line_is_there_once():
    assert len(sheet_rows("lenet", "paper", [CELLS[0], CELLS[0]], Results([], []))) == 1
    elsewhere = dataclasses.replace(CELLS[0], panel="B")
    assert len(sheet_rows("lenet", "paper", [CELLS[0], elsewhere], Results([], []))) == 2


def test_rows_of_an_earlier_table_stand_for_runs_that_are_not_here(tmp_path):
    write_sheet(five_lines(), tmp_path / "lenet-paper.csv")
    kept = results_of(tmp_path / "lenet-paper.csv")
    assert [(row.id, row.status) for row in kept] == [(CELLS[0].id, "done"), (CELLS[1].id, "collapsed")]
    here = Results([result(CELLS[0], test=0.9), result(CELLS[4])], [Broken(CELLS[1].id, "it is damaged")])
    lines = sheet_rows("lenet", "paper", CELLS, here, kept=kept)
    assert [line.status for line in lines] == [
        "done",
        "collapsed",
        "missing",
        "missing",
        "done",
    ]  # a result from there before what failed here
    lines = sheet_rows("lenet", "paper", CELLS, Results([result(CELLS[4])], []), kept=kept)
    assert [line.status for line in lines] == ["done", "collapsed", "missing", "missing", "done"]
    assert lines[:2] == kept
    assert sheet_rows("lenet", "paper", CELLS[2:3], Results([], []), kept=kept)[0].status == "missing"
    assert results_of(tmp_path / "nothing.csv") == []


def test_a_row_of_another_experiment_stands_for_the_run_that_it_shares():
    kept = [row for row in five_lines() if row.status == "done"]
    again = [dataclasses.replace(row, experiment="longer", line="other", test_at_best=0.1) for row in kept]
    (row,) = sheet_rows(
        "sgd", "paper", [dataclasses.replace(CELLS[0], panel="B", line="b")], Results([], []), kept=kept + again
    )
    assert row == dataclasses.replace(kept[0], experiment="sgd", panel="B", line="b")  # once, and of the first table


def test_steps_between_rewirings_are_kept():
    cell = Cell(dataclasses.replace(BASE, density=0.01, rewire="rigl", rewire_every=20), "train", "A", "RigL")
    (line,) = sheet_rows("lenet", "paper", [cell], Results([result(cell)], []))
    assert line.rewire_every == 20


def test_layers_and_singular_values_have_a_line_each():
    settings = dataclasses.replace(BASE, density=0.01)
    counts, jacobian = Cell(settings, "counts", "A", "DCTpS"), Cell(settings, "jacobian", "A", "DCTpS")
    layers = [{"name": "conv", "nnz": 3, "size": 30}, {"name": "fc", "nnz": 0, "size": 40}]
    content = {"layers": layers, "others": 5, "pruning": None, "commit": None}
    lines = sheet_rows(
        "x", "paper", [counts], Results([Row(counts.id, Path(), "counts", "done", settings, content)], [])
    )
    assert [(o.index, o.name, o.nnz, o.size, o.others) for o in lines] == [(1, "conv", 3, 30, 5), (2, "fc", 0, 40, 5)]
    content = {"singular_values": [[4.0, 1.0], [2.0, 0.0]], "pruning": None}
    rows = [Row(jacobian.id, Path(), "jacobian", "done", settings, content)]
    lines = sheet_rows("x", "paper", [jacobian], Results(rows, []))
    assert [(o.index, o.mean, o.low, o.high, o.examples) for o in lines] == [
        (1, 3.0, 2.0, 4.0, 2),
        (2, 0.5, 0.0, 1.0, 2),
    ]
    (line,) = sheet_rows("x", "paper", [counts], Results([failure(counts, "collapsed")], []))
    assert (type(line), line.status, line.index) == (LayerRow, "collapsed", None)


def test_lines_of_real_runs(tmp_path):
    settings = Settings(model="small_cnn", data="digits", epochs=1, images=100, batch_size=50, density=0.05)
    cells = [Cell(settings, task, "A", "DCTpS") for task in ("train", "counts", "jacobian")]
    for cell in cells:
        perform(cell, runtime(tmp_path))
    lines = sheet_rows("x", "smoke", cells, read_cells(cells, tmp_path))
    assert {type(line) for line in lines} == {TrainingRow, LayerRow, SingularValueRow}
    assert {line.status for line in lines} == {"done"}
    trained, weights = lines[0], sum(line.nnz for line in lines if isinstance(line, LayerRow))
    assert 0 <= trained.test_at_best <= 1
    assert trained.weights_got == weights
    assert sum(isinstance(line, SingularValueRow) for line in lines) == 10
    for kind in (TrainingRow, LayerRow, SingularValueRow):
        own = [line for line in lines if type(line) is kind]
        write_sheet(own, tmp_path / "sheet.csv")
        assert read_sheet(tmp_path / "sheet.csv") == own


# --- files ----------------------------------------------------------------------------------------------------------


def test_round_trip(tmp_path):
    lines = [*five_lines(), training(test_at_best=0.1 + 0.2, density=1e-4, panel='a, "b"', line="é; x"), training()]
    write_sheet(lines, tmp_path / "sheet.csv")
    assert read_sheet(tmp_path / "sheet.csv") == lines


def test_round_trip_of_tiny_and_huge_numbers(tmp_path):
    plain = dataclasses.asdict(training(density=1 / 3))
    plain = {field.name: plain[field.name] for field in dataclasses.fields(SingularValueRow) if field.name in plain}
    lines = [SingularValueRow(**plain, index=1, mean=value, low=0.0, high=1e300) for value in (0.0, 5e-324, 1e-13 / 3)]
    write_sheet(lines, tmp_path / "sheet.csv")
    assert read_sheet(tmp_path / "sheet.csv") == lines


def test_sheets_of_several_kinds_or_none_are_refused(tmp_path):
    plain = {f.name: getattr(training(), f.name) for f in dataclasses.fields(LayerRow) if hasattr(training(), f.name)}
    with pytest.raises(ValueError, match="several kinds"):
        write_sheet([training(), LayerRow(**plain)], tmp_path / "sheet.csv")
    with pytest.raises(ValueError, match="no lines"):
        write_sheet([], tmp_path / "sheet.csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "its columns are none"),
        (lambda text: text.replace("density", "sparsity", 1), "not a sheet of results"),
        (lambda text: text.replace(",160,", ",many,", 1), "line 2: .*many"),
        (lambda text: text + "a,b\n", r"line 4: 2 cells for \d+ columns"),
        (lambda text: text.replace(",160,", ",,", 1), "line 2"),
    ],
)
def test_what_is_no_sheet_is_refused_with_its_place(tmp_path, change, message):
    path = tmp_path / "sheet.csv"
    write_sheet([training(), training(seed=1)], path)
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        read_sheet(path)
