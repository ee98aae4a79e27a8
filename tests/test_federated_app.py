"""The example of federated learning: its lines; Flower's simulation gives the same rows as a loop in Python."""

import csv
import dataclasses
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest
import torch

from helpers.processes import environment

ROOT = Path(__file__).parents[1]
APP = ROOT / "examples" / "federated"
FLOWER = ROOT / "build" / "flower" / "bin" / "python"  # `make build/flower`
SMALL = {"dataset": "digits32", "clients": 3, "sampled": 2, "rounds": 2, "measured_every": 1, "batch": 16, "steps": 3}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))


def line(**options):
    from federation.line import Line

    return Line(**{**SMALL, "density": 0.05, **options})


def rows_of(path):
    with path.open(newline="") as file:
        return [{**row, "seconds": None} for row in csv.DictReader(file)]


def local(own, folder):
    from federation.rounds import local_exchange, perform

    return perform(own, local_exchange(own), folder)


@pytest.mark.parametrize("method", ["dctps", "random", "dense"])
def test_a_line_sends_what_the_network_holds_and_writes_a_row_for_each_round(method, tmp_path):
    from federation.line import network

    own = line(method=method)
    rows = rows_of(local(own, tmp_path))
    whole = 17 + 4 * sum(p.numel() for p in network(own).parameters())
    assert [row["round"] for row in rows] == ["1", "2"]
    assert {row[key] for row in rows for key in ("bytes_down", "bytes_up")} == {str(whole)}
    assert [int(row["bytes_total"]) for row in rows] == [2 * 2 * whole, 2 * 2 * 2 * whole]
    assert all(0 <= float(row["accuracy"]) <= 100 for row in rows)


def test_a_finished_line_is_not_repeated_and_one_with_other_settings_is_refused(tmp_path, capsys):
    path = local(line(), tmp_path)
    before = path.stat().st_mtime_ns
    assert local(line(), tmp_path) == path
    assert path.stat().st_mtime_ns == before
    assert "not repeated" in capsys.readouterr().out
    with pytest.raises(ValueError, match=rf"other settings, {{'lr': '{line().lr}'}}"):
        local(line(lr=0.1), tmp_path)


def test_the_images_are_dealt_to_clients_once_unevenly_and_by_the_seed():
    from federation.line import dataset, measured, shares

    own = line(clients=5, concentration=0.3)
    dealt = torch.cat(shares(own))
    held_out = measured(line(clients=5, measured_on="validation")).indices
    assert sorted([*dealt.tolist(), *held_out.tolist()]) == list(range(len(dataset("digits32").train_labels)))
    labels = [dataset("digits32").train_labels[share].bincount(minlength=10) for share in shares(own)]
    largest = torch.stack([counts.max() / counts.sum() for counts in labels])
    assert largest.mean() > 0.25  # 0.1 if each client had all classes alike
    assert all(torch.equal(a, b) for a, b in zip(shares(own), shares(dataclasses.replace(own, lr=1.0)), strict=True))
    assert not torch.equal(dealt, torch.cat(shares(dataclasses.replace(own, seed=1))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sparse"}, "method is 'sparse'; choose one of: dctps, random, dense"),
        ({"updates": "int4"}, "choose one of: whole, float16, int8"),
        ({"sampled": 4}, "4 of 3 clients"),
        ({"rounds": 3, "measured_every": 2}, "do not end with a measurement"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        line(**options)


def test_the_configuration_of_the_app_has_the_settings_of_a_line():
    from federation.line import Line

    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config.pop("folder")
    assert {name.replace("-", "_"): value for name, value in config.items()} == dataclasses.asdict(Line())


@pytest.mark.process
@pytest.mark.skipif(not FLOWER.exists(), reason="Flower is not installed; `make build/flower` does it")
def test_flowers_simulation_gives_the_same_rows_as_a_loop_in_python(tmp_path):
    """Two rounds of two of three clients; the residuals of updates of 8 bits are in the state of Flower's clients."""
    own, short = line(updates="int8"), tempfile.mkdtemp()  # sockets of Ray have names of at most 107 characters
    code = (
        f"import sys; sys.path.insert(0, {str(APP)!r}); from pathlib import Path; from federation.line import Line; "
        f"from federation.simulation import simulate; simulate(Line(**{dataclasses.asdict(own)}), "
        f"Path({str(tmp_path / 'flower')!r}), Path({short!r}))"
    )
    variables = {**environment(), "FLWR_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([FLOWER, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    shutil.rmtree(short, ignore_errors=True)
    assert run.returncode == 0, run.stderr
    ours = local(own, tmp_path / "local")
    assert rows_of(tmp_path / "flower" / ours.name) == rows_of(ours)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ({3e-3: 20.0, 1e-2: 25.0}, 3e-2),  # the best is the largest
        ({3e-3: 25.0, 1e-2: 20.0}, 1e-3),  # the best is the smallest
        ({3e-3: 20.0, 1e-2: 25.0, 3e-2: 10.0}, None),  # the best lies between two others
        ({10.0**-n: n for n in range(6)}, None),  # six were tried
    ],
)
def test_the_next_learning_rate_lies_beyond_the_best_one(tried, expected):
    from rates import next_rate

    assert next_rate(tried) == expected


def test_the_table_has_means_of_seeds_and_accuracies_after_equal_bytes():
    from figure import points, table

    def row(seed, number, accuracy):
        same = {"method": "dctps", "density": "0.01", "updates": "whole", "bytes_down": "2000", "bytes_up": "2000"}
        return {**same, "seed": seed, "round": str(number), "bytes_total": str(20_000 * number), "accuracy": accuracy}

    rows = [row(0, 10, "20"), row(0, 11, ""), row(0, 100, "40"), row(1, 10, "22"), row(1, 11, ""), row(1, 100, "30")]
    assert [(point.size, point.mean) for point in points(rows)] == [(200_000, 21), (2_000_000, 35)]
    cells = table(rows).splitlines()[2].strip("| ").split(" | ")
    assert cells[:2] == ["DCTpS, 1 %", "2"]
    assert cells[4:] == ["21.0 ± 1.4", "21.0 ± 1.4", "", "", "", "35.0 ± 7.1"]
