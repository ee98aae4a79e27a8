"""`dctps reproduce` and `dctps sweep` as a user calls them."""

import json

import pytest

from dctps.cli import main
from dctps.cli.reproduce import Arguments, _asked_cells
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.sheet import read_sheet, results_of

GRID = {
    "settings": {"model": "small_cnn", "data": "digits", "images": 60, "epochs": 1, "batch_size": 30},
    "lines": [{"name": "dense"}, {"name": "DCTpS", "density": [0.1, 0.05]}],
}


@pytest.fixture
def grid(tmp_path):
    file = tmp_path / "grid.json"
    file.write_text(json.dumps(GRID))
    return file


@pytest.mark.process
def test_a_sweep_from_file_to_rows(grid, tmp_path, capsys):
    command = ["sweep", str(grid), "--runs", str(tmp_path / "runs"), "--processes", "1", "--device", "cpu"]
    assert main([*command, "--list"]) == 0
    assert "3 runs, 0 done" in capsys.readouterr().out
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "3 runs done, 0 failed" in out
    assert "3/3  DCTpS, 5 %, seed 0: done" in out
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 3
    assert main([*command, "--list"]) == 0
    assert "3 runs, 3 done" in capsys.readouterr().out


@pytest.mark.process
def test_what_fails_is_told_and_the_rest_goes_on(grid, tmp_path, capsys):
    grid.write_text(json.dumps({**GRID, "lines": [{"name": "gone", "data": "folder:gone"}, {"name": "dense"}]}))
    with pytest.raises(SystemExit, match="1"):
        main(["sweep", str(grid), "--runs", str(tmp_path / "runs"), "--processes", "1", "--device", "cpu"])
    told = capsys.readouterr()
    assert "1 runs done, 1 failed" in told.out
    assert "gone" in told.out
    assert told.err.startswith("dctps: 1 of 2 runs failed; ")
    assert "the same command with --retry" in told.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "nowhere.toml"], "nowhere.toml"),
        (["sweep", "GRID", "--processes", "0"], "processes must be at least 1"),
        (["reproduce", "lenet", "--densities", "0.3"], "densities [0.3] are not in this experiment; there are: [0.05"),
        (["reproduce", "lenet", "--seeds", "7"], "seeds [7] are not in this experiment; there are: [0, 1]"),
        (["reproduce", "lenet", "--lines", "Magic"], "lines ['Magic'] are not in this experiment"),
        (
            ["reproduce", "offsets", "--panels", "LeNet"],
            "panels ['LeNet'] are not in this experiment; there are: ['LeN",
        ),
        (["reproduce", "table9"], "unknown experiment 'table9'; choose one of: params"),
    ],
)
def test_bad_input_is_one_line(grid, tmp_path, capsys, arguments, words):
    arguments = [str(grid) if word == "GRID" else word for word in arguments]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


@pytest.mark.process
def test_an_experiment_from_runs_to_picture(tmp_path, capsys):
    out = tmp_path / "results"
    command = ["reproduce", "epl-epf-counts", "--scale", "smoke", "--out", str(out), "--runs", str(tmp_path / "runs")]
    assert main([*command, "--processes", "1", "--lines", "EPL"]) == 0
    assert "EPF" not in capsys.readouterr().out
    assert main([*command, "--processes", "1"]) == 0
    names = {path.name for path in out.iterdir()}
    assert {"epl-epf-counts-smoke.csv", "epl-epf-counts-smoke.png", "epl-epf-counts-smoke.pdf"} <= names
    assert main([*command, "--only-draw"]) == 0
    places = ["--out", str(out), "--runs", str(tmp_path / "runs")]
    assert main(["reproduce", "epl-epf-counts-smoke", "--only-draw", *places]) == 0  # as the files are named


@pytest.mark.process
def test_a_table_from_elsewhere_goes_on_without_its_runs(tmp_path, capsys):
    out, options = tmp_path / "results", ["--processes", "1", "--device", "cpu"]
    command = ["reproduce", "epl-epf-counts", "--scale", "smoke", "--out", str(out), *options]
    assert main([*command, "--lines", "EPL", "--runs", str(tmp_path / "there")]) == 0
    table = out / "epl-epf-counts-smoke.csv"
    first = results_of(table)
    capsys.readouterr()
    assert main([*command, "--keep", "--runs", str(tmp_path / "here")]) == 0
    here = list((tmp_path / "here").glob("*/result.json"))
    runs = {row.id for row in first}
    assert f"kept, not executed: {len(runs)} runs of the tables in {out}" in capsys.readouterr().out
    assert here
    assert not runs & {path.parent.name for path in here}
    now = read_sheet(table)
    assert [row for row in now if row.id in runs] == first
    assert {row.status for row in now} == {"done"}
    assert main([*command, "--only-draw", "--runs", str(tmp_path / "here")]) == 0
    assert "missing" in {
        row.status for row in read_sheet(table)
    }  # without the flag the table has the folder's results alone


def test_flags_together_name_a_part_of_the_runs():
    cells = EXPERIMENTS["vgg19"].cells(EXPERIMENTS["vgg19"].scale("laptop"))
    given = Arguments("vgg19", seeds=(1, 2), densities=(0.001,), lines=("DCTpS", "FORCE"))
    asked = [(cell.line, cell.settings.density, cell.settings.seed) for cell in _asked_cells(cells, given)]
    assert asked == [("DCTpS", 0.001, 1), ("DCTpS", 0.001, 2)]  # FORCE has one seed


def test_the_list_says_what_is_done(tmp_path, capsys):
    assert main(["reproduce", "--list", "--scale", "paper", "--runs", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS)
    assert "0/768" in out  # Figure 2


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_at_smoke_scale(name, tmp_path, capsys):
    out = tmp_path / "results"
    assert main(["reproduce", name, "--scale", "smoke", "--out", str(out), "--runs", str(tmp_path / "runs")]) == 0
    assert " 0 failed" in capsys.readouterr().out
    assert list(out.glob(f"{name}-*.csv"))
    assert (out / f"{name}-smoke-epochs.png").exists() == EXPERIMENTS[name].learning
