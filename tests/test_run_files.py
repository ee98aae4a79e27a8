"""Files of a run that are valid JSON and hold wrong things: every command names the file, the field and what to do."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from dctps.cli import main
from dctps.experiments.board import Board
from dctps.experiments.cells import Cell
from dctps.experiments.grids import read_grid
from dctps.experiments.results import failure_of, read
from dctps.experiments.sheet import read_sheet, sheet_rows, write_sheet
from dctps.experiments.sweep import sweep
from dctps.experiments.tasks.training import EpochRow
from dctps.train import RunError, fit
from dctps.train.runs import Run
from helpers.marks import needs_digits
from helpers.pages import training_result, write_run
from helpers.runs import METRICS, runtime
from helpers.sweeps import TINY, Inline, cell

pytestmark = needs_digits
DEEP = "[" * 100_000
HUGE = "9" * 400


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runs = tmp_path_factory.mktemp("trained")
    fit(dataclasses.replace(TINY, epochs=2), runtime(runs))
    return Run.at(dataclasses.replace(TINY, epochs=2), runs)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a finished run, to be damaged."""
    return Run(Path(shutil.copytree(trained.folder, tmp_path / "runs" / trained.id)))


def changed(path, *keys, to):
    """Change a value inside a JSON file."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    path.write_text(json.dumps(content))


def go_on(run):
    """Launch the run again."""
    return fit(dataclasses.replace(TINY, epochs=2), runtime(run.folder.parent))


@pytest.mark.parametrize("text", ["[]", "5", "{}", "null", '"x"', DEEP, HUGE, "NaN", "", "\udcff"])
def test_a_result_that_is_no_result(run, text, capsys):
    run.result.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"result\.json is damaged \(.*\); delete it to finish the run again"):
        go_on(run)
    assert "result.json: " in failure_of(run).reason
    assert main(["inspect", str(run.folder)]) == 2
    assert "result.json: " in capsys.readouterr().err
    run.result.unlink()
    go_on(run)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("accuracy", "test_at_best"), float("nan")),
        (("accuracy", "best_epoch"), 2),
        (("accuracy", "best_epoch"), "1"),
        (("seconds",), -1),
        (("threads",), 0),
        (("pruning",), {"seconds": 1}),
        (("settings", "lr"), 10**400),
        (("settings", "epochs"), 10**30),
        (("settings", "milestones"), [[[]]]),
    ],
)
def test_a_wrong_value_in_a_result_is_named(run, keys, value):
    changed(run.result, *keys, to=value)
    with pytest.raises(RunError, match=rf"result\.json is damaged \(.*{keys[-1]}"):
        go_on(run)
    outcome = sweep([Cell(dataclasses.replace(TINY, epochs=2))], runtime(run.folder.parent), Inline())
    assert [failure.status for failure in outcome.failed] == ["failed"]
    assert "result.json" in outcome.failed[0].reason


@pytest.mark.parametrize(
    ("text", "field"),
    [("5", "it is 5"), ("{}", "is missing"), ("[]", "it is a list"), (DEEP, "nests"), ("\udcff", "UTF-8")],
)
def test_metrics_that_are_none_are_named_with_their_line(run, text, field):
    row = json.dumps({"epoch": 0, **METRICS})
    run.metrics.write_bytes(f"{row}\n{text}\n".encode("utf-8", "surrogateescape"))
    run.result.unlink()
    with pytest.raises(RunError, match=rf"metrics\.jsonl is damaged \(.*{field}.*; delete it to go on"):
        go_on(run)
    run.metrics.unlink()
    go_on(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": "1"}, "line 2: epoch is '1', not an integer from 0 on"),
        ({"epoch": 0}, "line 2: epoch is 0, after 0"),
        ({"epoch": -1}, "line 2: epoch is -1"),
        ({"epoch": 1.5}, "line 2: epoch is 1.5"),
        ({"loss": float("nan")}, "line 2: loss is nan, not a number"),
        ({"validation": 2}, "line 2: validation is 2, not a number from 0 to 1"),
        ({"extra": 2}, "line 2: extra is unknown"),
    ],
)
def test_a_wrong_value_in_the_metrics_is_named(run, changes, message):
    rows = [{"epoch": 0, **METRICS}, {"epoch": 1, **METRICS} | changes]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunError, match=message):
        run.read_metrics()


def test_a_table_of_epochs_says_which_metrics_are_damaged(run):
    run.metrics.write_text("5\n")
    found, one = read(run.folder.parent), Cell(dataclasses.replace(TINY, epochs=2))
    (row,) = sheet_rows("x", "y", [one], found, EpochRow)
    assert (row.status, row.epoch) == ("broken", None)
    assert "metrics.jsonl is damaged (line 1: it is 5" in row.reason


@pytest.mark.parametrize("text", [DEEP, "[]", "null", '{"lr": 1' + "0" * 400 + "}", '{"images": 1e400}', "\udcff", ""])
def test_a_config_that_is_none_is_named(run, text, capsys):
    run.config.write_bytes(text.encode("utf-8", "surrogateescape"))
    run.result.unlink()
    with pytest.raises(RunError, match=r"config\.json is damaged \(.*\); delete .* to start this run again"):
        go_on(run)
    assert main(["train", "--config", str(run.config)]) == 2
    assert "config.json: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", -1),
        ("epoch", 1.5),
        ("epoch", "1"),
        ("epoch", 3),
        ("epoch", True),
        ("epoch", 10**40),
        ("step", 10**6),
        ("step", 1),  # at the end of the last epoch there is no step
        ("images", float("inf")),
        ("images", 0.5),
        ("correct", 5),
        ("seconds", "long"),
        ("seconds", float("nan")),
        ("loss", None),
        ("best_epoch", 2),
        ("best_epoch", -1),
        ("best_validation", 2.0),
        ("test_at_best", float("nan")),
        ("pruning", {"seconds": -1.0}),
        ("extra", 1),
    ],
)
def test_wrong_progress_is_named(run, name, value):
    content = torch.load(run.last, weights_only=True)
    content["progress"][name] = value
    torch.save(content, run.last)
    run.result.unlink()
    with pytest.raises(RunError, match=r"last\.pt (is damaged|does not fit this run) \(.*\); delete it to start"):
        go_on(run)
    run.last.unlink()
    go_on(run)


def spoil_learning_rates(content):
    content["optimiser"]["param_groups"][0]["factor"] = "x"


def spoil_options(content):
    content["optimiser"]["param_groups"][0]["weight_decay"] = 0.5


def spoil_moments(content):
    content["optimiser"]["state"][0]["exp_avg"] = torch.zeros(3)


def spoil_moments_by_nan(content):
    content["optimiser"]["state"][0]["exp_avg"].fill_(float("nan"))


def no_optimiser(content):
    content["optimiser"] = {}


def no_tensors(content):
    content["model"] = dict.fromkeys(content["model"], 5)


def no_tuning(content):
    content["tuning"] = {"case": {"native": "fast"}}


@pytest.mark.parametrize(
    "spoil",
    [spoil_learning_rates, spoil_options, spoil_moments, spoil_moments_by_nan, no_optimiser, no_tensors, no_tuning],
)
def test_a_wrong_state_is_named(run, spoil):
    content = torch.load(run.last, weights_only=True)
    spoil(content)
    torch.save(content, run.last)
    run.result.unlink()
    with pytest.raises(RunError, match=r"last\.pt (is damaged|does not fit this run) \("):
        go_on(run)


# --- text that no encoding can write --------------------------------------------------------------------------------

LOST = "lost \udcff"


def test_names_and_errors_that_cannot_be_encoded_do_not_end_a_sweep(tmp_path, capsys):
    odd = dataclasses.replace(cell(model=f"no_such_{LOST}"), line=LOST)
    grid = [odd, cell(seed=1)]
    with Board(grid, tmp_path) as board:
        outcome = sweep(grid, runtime(tmp_path), Inline(), board)
    capsys.readouterr().out.encode("utf-8")
    assert outcome.done == 1
    assert r"lost \udcff" in outcome.failed[0].reason
    outcome.failed[0].reason.encode("utf-8")


def test_names_and_errors_that_cannot_be_encoded_are_in_tables(tmp_path):
    odd = dataclasses.replace(cell(model=f"no_such_{LOST}"), line=LOST)
    sweep([odd], runtime(tmp_path / "runs"), Inline())
    rows = sheet_rows("x", "y", [odd], read(tmp_path / "runs"))
    write_sheet(rows, tmp_path / "sheet.csv")
    (row,) = read_sheet(tmp_path / "sheet.csv")
    assert row.line == r"lost \udcff"


def test_a_grid_is_listed_whatever_its_names_are(tmp_path, capsys):
    (tmp_path / "grid.json").write_text(json.dumps({"settings": {"epochs": 1}, "lines": [{"name": LOST}]}))
    assert main(["sweep", str(tmp_path / "grid.json"), "--list"]) == 0
    assert r"lost \udcff" in capsys.readouterr().out


# --- grids, sheets, pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("grid.json", DEEP, "nests more than 40"),
        ("grid.toml", "a = " + "[" * 5000 + "]" * 5000, "nests more than 40"),
        ("grid.json", '{"settings": {"lr": ' + HUGE + "}}", "setting lr cannot be"),
        ("grid.json", '{"settings": {"seed": ' + HUGE + "}}", "setting seed cannot be"),
        ("grid.json", '{"settings": {"seed": [' + ",".join(map(str, range(400))) + "]}}", None),
        ("grid.json", '{"lines": [{"name": 5}]}', "the name of a line is text, not 5"),
        ("grid.json", "\udcff", "is not text in UTF-8"),
    ],
)
def test_grids(tmp_path, name, text, message):
    file = tmp_path / name
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    if message is None:
        assert len(read_grid(file)) == 400
        return
    with pytest.raises(ValueError, match=rf"{name}: .*{message}"):
        read_grid(file)


def test_a_grid_of_too_many_runs_is_refused_before_it_is_built(tmp_path):
    many = list(range(1, 1000))
    content = {"settings": {"seed": many, "epochs": many, "batch_size": many}}
    (tmp_path / "grid.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"the lists make 997,002,999 runs; a grid has at most 100,000"):
        read_grid(tmp_path / "grid.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "UTF-8"), (b"a" * 200_000, "field larger"), (b"experiment\n\xff", "UTF-8")],
)
def test_sheets_that_are_no_text(tmp_path, content, message):
    (tmp_path / "sheet.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"sheet\.csv is not a sheet of results.*{message}"):
        read_sheet(tmp_path / "sheet.csv")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_sheets_hold_finite_numbers(tmp_path, number):
    one = Cell(TINY)
    write_run(tmp_path / "runs", training_result(TINY, test=0.125))
    write_sheet(sheet_rows("x", "y", [one], read(tmp_path / "runs")), tmp_path / "sheet.csv")
    text = (tmp_path / "sheet.csv").read_text()
    (tmp_path / "sheet.csv").write_text(text.replace("0.125", number))
    with pytest.raises(ValueError, match=rf"line 2: {number} is not a finite number"):
        read_sheet(tmp_path / "sheet.csv")


@pytest.mark.parametrize("folders", [[], ["photos", "letters"]])
def test_a_folder_without_runs_has_no_page_and_an_old_page_stays(tmp_path, capsys, folders):
    for name in ("runs", *(f"runs/{folder}" for folder in folders)):
        (tmp_path / name).mkdir()
    page = tmp_path / "page.html"
    page.write_text("an old page")
    assert main(["report", str(tmp_path / "runs"), "--out", str(page)]) == 2
    assert "has no folders of runs; " in capsys.readouterr().err
    assert page.read_text() == "an old page"


def test_the_folder_of_one_run_has_no_page(run, tmp_path, capsys):
    assert main(["report", str(run.folder), "--out", str(tmp_path / "page.html")]) == 2
    assert "it is one run, which dctps inspect shows" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
