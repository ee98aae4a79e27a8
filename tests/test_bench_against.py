"""`dctps bench step --against`: two versions take their steps in turn, and nothing of the other one is left behind."""

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dctps.bench import against, versions
from dctps.bench.stopwatch import Times
from dctps.bench.subjects import StepCell, Steps
from dctps.cli import main, measure
from helpers.processes import environment


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Where temporary folders are made."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(measure, "keep_memory", lambda: False)
    monkeypatch.setenv("DCTPS_TUNE", "0")
    return place


def run(out, *arguments):
    code = main(["bench", "step", "--out", str(out), *arguments])
    paths = list(out.glob("*.csv"))
    return code, [row for path in paths for row in csv.DictReader(path.open(newline=""))]


@pytest.mark.process
@pytest.mark.slow  # it installs two versions, and compiles the kernels of one
def test_a_commit_against_itself(folders, tmp_path, record_property, capsys):
    flags = "--model lenet --density 0.05 --batch 2 --steps 3 --warmup 1 --against HEAD"
    code, rows = run(tmp_path / "out", *flags.split())
    assert code == 0
    assert [row["contender"] for row in rows] == ["dense", "ours"]
    for row in rows:
        assert float(row["ratio"]) == pytest.approx(float(row["other_ms"]) / float(row["median_ms"]), rel=1e-3)
        assert 0 < float(row["least_ratio"]) <= float(row["largest_ratio"])
        record_property(f"ratio_{row['contender']}", row["ratio"])
    assert f"{rows[0]['other_version']} ms" in capsys.readouterr().out
    assert not list(folders.iterdir())


def repository(folder, pyproject):
    """A package in a git repository of its own, which cannot be built; returns the folder of the package."""
    package = folder / "src" / "dctps"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(pyproject)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "one"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return package


@pytest.mark.process
def test_a_commit_that_cannot_be_built_is_one_line(folders, tmp_path, monkeypatch, capsys):
    broken = '[build-system]\nrequires = []\nbuild-backend = "nothing"\nbackend-path = ["."]\n'
    monkeypatch.setattr(versions, "PACKAGE", repository(tmp_path / "repository", broken))
    assert run(tmp_path / "out", "--model", "lenet", "--against", "HEAD") == (2, [])
    error = capsys.readouterr().err
    assert error.startswith("dctps: cannot install HEAD: ")
    assert error.count("\n") == 1
    assert not list(folders.iterdir())


@pytest.mark.process
def test_outside_of_a_repository_only_wheels_can_be_had(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(versions, "PACKAGE", tmp_path)
    assert run(tmp_path / "out", "--model", "lenet", "--against", "HEAD") == (2, [])
    assert "does not lie in a git repository of its own" in capsys.readouterr().err


@pytest.mark.process
def test_a_version_that_fails_is_named_with_its_last_words():
    worker = against.Worker(sys.executable, "that version", environment())
    task = {"model": "no_such_module:f", "batch": 2, "input_shape": [3, 8, 8], "classes": 10, "width": None}
    with pytest.raises(ValueError, match="that version cannot be measured: ModuleNotFoundError: No module named"):
        worker.ask(json.dumps(task | {"threads": 1, "keep_memory": False}))
    worker.close()
    assert worker.process.returncode is not None


def test_each_version_counts_in_its_faster_memory_format():
    times = {
        ("this", "ours/contiguous"): Times((10.0, 12.0, 11.0)),
        ("this", "ours/channels_last"): Times((20.0, 20.0, 20.0)),
        ("other", "ours/contiguous"): Times((40.0, 40.0, 40.0)),
        ("other", "ours/channels_last"): Times((20.0, 36.0, 22.0)),
    }
    (row,) = against.rows(Steps(width=8), StepCell("resnet18", 0.1, "dct"), "abc", times)
    assert (row.median_ms, row.other_ms, row.ratio, row.least_ratio, row.largest_ratio) == (11, 22, 2, 2, 3)
    assert (row.contender, row.other_version) == ("ours", "abc")
    assert row.cell == "resnet18 of width 8, 10 %, dct"


def test_the_other_process_finds_its_own_dctps(monkeypatch, tmp_path):
    (tmp_path / "dctps").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{tmp_path / 'elsewhere'}")
    assert versions.variables()["PYTHONPATH"] == str(tmp_path / "elsewhere")


def test_an_environment_borrows_the_packages_of_this_one(tmp_path):
    python = Path(versions._environment(tmp_path / "environment"))
    assert python.exists()
    (borrowed,) = (tmp_path / "environment").rglob("borrowed.pth")
    import torch

    assert str(Path(torch.__file__).parents[1]) in borrowed.read_text().splitlines()
