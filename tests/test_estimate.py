"""The estimate of an experiment's hours: from a stored measurement of this machine, this version and no other."""

import json
import math
import subprocess
import sys

import pytest

from dctps.cli import main
from dctps.cli.experiment_list import BUSY
from dctps.experiments import step_times
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.cells import Cell, distinct
from dctps.experiments.engines import default_local
from dctps.experiments.estimate import (
    Measurement,
    cell_seconds,
    identity_of,
    key_of,
    measured_settings,
    measurement_file,
    needed_settings,
    read_measurement,
    total_seconds,
)
from dctps.train.settings import Settings
from helpers.processes import environment

SMALL = Settings(model="small_cnn", data="digits", batch_size=16)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DCTPS_CACHE", str(tmp_path / "cache"))


def cells(name, scale="laptop"):
    return distinct(EXPERIMENTS[name].cells(EXPERIMENTS[name].scale(scale)))


def own_identity():
    engine = default_local()
    return identity_of(engine.processes, engine.threads)


def stored(identity=None, seconds=0.02, spread=1.1):
    needed = needed_settings(cell for name in EXPERIMENTS for cell in cells(name))
    times = {key_of(settings): seconds for settings in needed}
    measurement = Measurement(identity or own_identity(), "2025-01-02", 90.0, spread, times)
    measurement.store()
    return measurement


def listed(capsys, tmp_path, *flags):
    """What the list says: the hours by experiment, and the line below the table."""
    assert main(["reproduce", "--list", "--runs", str(tmp_path / "runs"), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    return {row[0]: row[4] for row in rows}, lines[-1]


# --- the list -------------------------------------------------------------------------------------------------------


def test_without_a_measurement_there_are_counts_and_no_hours(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(step_times, "step_seconds", lambda settings: pytest.fail("the list measures"))
    hours, words = listed(capsys, tmp_path)
    assert hours == dict.fromkeys(EXPERIMENTS, "-")
    assert words.startswith("no hours: this machine has not been measured")
    assert "dctps reproduce --list --measure --scale laptop" in words
    assert not measurement_file().exists()


def test_hours_are_those_of_the_stored_measurement_each_time(capsys, tmp_path):
    measurement, processes = stored(), default_local().processes
    first, second = listed(capsys, tmp_path), listed(capsys, tmp_path)
    assert first == second
    hours, words = first
    expected = total_seconds(cells("lenet"), measurement.seconds) / processes / 3600
    assert hours["lenet"] == f"{expected:,.1f}" != "0.0"
    assert hours["params"] == "< 0.1"  # nothing is trained
    assert "-" not in hours.values()
    assert "the measurement of 2025-01-02 (its rounds differ by a factor of 1.1)" in words


def test_a_measurement_on_a_busy_machine_says_so(capsys, tmp_path):
    stored(spread=BUSY)
    assert "the machine was busy" in listed(capsys, tmp_path)[1]


@pytest.mark.parametrize("key", ["machine", "processor", "cores", "processes", "threads", "dctps", "torch", "commit"])
def test_a_measurement_of_something_else_is_not_used(capsys, tmp_path, key):
    stored({**own_identity(), key: "other"})
    hours, words = listed(capsys, tmp_path)
    assert set(hours.values()) == {"-"}
    assert f"no hours: the stored measurement has {key} other instead of {own_identity()[key]}; " in words


def test_networks_that_were_not_measured_have_no_hours(capsys, tmp_path):
    stored()
    hours, _ = listed(capsys, tmp_path, "--scale", "paper")
    assert hours["resnet50-vgg19"] == "-"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"seconds": 3}', '{"identity": {}, "seconds": {"a": "b"}}'])
def test_a_damaged_file_is_no_measurement(capsys, tmp_path, text):
    stored()
    measurement_file().write_text(text)
    assert read_measurement() is None
    assert "has not been measured" in listed(capsys, tmp_path)[1]


@pytest.mark.process
def test_the_list_imports_neither_the_measurement_nor_the_figures(tmp_path):
    code = (
        "import sys; from dctps.cli import main; code = main(['reproduce', '--list'])\n"
        "assert code == 0\n"
        "assert not {'dctps.experiments.step_times', 'dctps.analysis.figures.draw', 'matplotlib'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


# --- the measurement ------------------------------------------------------------------------------------------------


def test_measuring_stores_and_lists(capsys, tmp_path, monkeypatch):
    def in_rounds(needed, processes, threads):
        assert (processes, threads) == (3, 1)
        for _ in range(step_times.ROUNDS):
            yield from ((settings, 0.02) for settings in needed)

    monkeypatch.setattr(step_times, "_in_rounds", in_rounds)
    flags = ("--processes", "3", "--threads", "1")
    hours, _ = listed(capsys, tmp_path, "--measure", *flags)
    assert "-" not in hours.values()
    assert (hours, True) == (listed(capsys, tmp_path, *flags)[0], measurement_file().exists())
    assert set(listed(capsys, tmp_path, "--processes", "1")[0].values()) == {"-"}


def test_the_median_of_the_rounds_counts(monkeypatch):
    times = [(SMALL, 1.0), (SMALL, 50.0), (SMALL, 2.0)]
    monkeypatch.setattr(step_times, "_in_rounds", lambda *given: iter(times))
    ticks = []
    measured = step_times.measure([SMALL], 1, 1, lambda: ticks.append(1))
    assert measured.seconds == {key_of(SMALL): 2.0}
    assert (measured.spread, len(ticks)) == (50.0, 3)


@pytest.mark.parametrize(("seconds", "expected"), [(0.2, 8 * 0.2 + 0.3), (0.1, 0.1 + 0.3)])
def test_a_long_step_is_measured_on_a_few_images(monkeypatch, seconds, expected):
    settings = Settings(model="small_cnn", data="digits", batch_size=8 * step_times.FEW_IMAGES)
    monkeypatch.setattr(step_times, "_steps", lambda *given: [(9.0, 9.0), (seconds, 0.3), (0.0, 0.0)])
    assert step_times.step_seconds(settings) == pytest.approx(expected)


def test_the_first_step_does_not_count(monkeypatch):
    monkeypatch.setattr(step_times, "ENOUGH", 0.0)
    assert len(list(step_times._steps(SMALL, 4))) == step_times.FEWEST_STEPS
    monkeypatch.setattr(step_times, "ENOUGH", math.inf)
    assert len(list(step_times._steps(SMALL, 4))) == step_times.MOST_STEPS


@pytest.mark.process
def test_processes_measure_what_is_asked():
    settings = [SMALL, measured_settings(Settings(model="small_cnn", data="digits", density=0.1, batch_size=16))]
    measured = step_times.measure(settings, 2, 1)
    assert measured.identity == identity_of(2, 1)
    assert set(measured.seconds) == set(map(key_of, settings))
    assert all(0 < seconds < 60 for seconds in measured.seconds.values())


def test_a_measurement_keeps_the_other_networks_of_the_same_machine():
    Measurement(own_identity(), seconds={"a": 1.0, "b": 2.0}).store()
    Measurement(own_identity(), seconds={"b": 3.0}).store()
    assert read_measurement().seconds == {"a": 1.0, "b": 3.0}
    Measurement({**own_identity(), "commit": "later"}, seconds={"c": 4.0}).store()
    assert json.loads(measurement_file().read_text())["seconds"] == {"c": 4.0}


# --- what is measured, and what follows from it ---------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["paper", "laptop", "smoke"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_needed_is_enough(name, scale):
    needed = needed_settings(cells(name, scale))
    assert math.isfinite(total_seconds(cells(name, scale), {key_of(settings): 1.0 for settings in needed}))


def test_each_network_and_method_is_measured_by_itself():
    needed = needed_settings(cells("lenet"))
    methods = {(s.density, s.offset, s.projection) for s in needed}
    assert methods == {(None, "dct", None), (0.01, None, None), (0.01, "dct", None), (0.01, "dct", "sparse")}
    assert len(needed) == len(methods)


def test_a_run_takes_its_steps_its_evaluation_and_its_scoring():
    settings = Settings(model="lenet", images=1000, epochs=3, batch_size=50, density=0.01, offset=None)
    seconds = {key_of(measured_settings(settings)): 5.0}
    images = 900 + (100 + 5000) / 3  # the ten thousand test images of CIFAR-10 in every second epoch
    assert cell_seconds(Cell(settings), seconds) == pytest.approx(3 * images / 50 * 5.0)
    pruned = Settings(**{**vars(settings), "method": "synflow", "method_steps": 20})
    assert math.isnan(cell_seconds(Cell(pruned), seconds))  # the dense network, which is scored, was not measured
    seconds[key_of(measured_settings(Settings(model="lenet", batch_size=50)))] = 7.0
    assert cell_seconds(Cell(pruned), seconds) == pytest.approx(3 * images / 50 * 5.0 + 40 * 7.0 / 50)
    assert cell_seconds(Cell(pruned, "counts"), seconds) == pytest.approx(40 * 7.0 / 50)


def test_lottery_tickets_are_trained_in_every_round():
    once = Settings(model="lenet", epochs=2)
    seconds = {key_of(measured_settings(once)): 1.0}
    tickets = Settings(model="lenet", epochs=2, density=0.01, offset=None, method="imp")
    assert cell_seconds(Cell(tickets), seconds) == pytest.approx(22 * cell_seconds(Cell(once), seconds))
