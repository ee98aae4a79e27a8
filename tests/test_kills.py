"""Runs that are killed, at any moment and by any signal, and go on: they end bit-equal to an undisturbed run."""

import contextlib
import dataclasses
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from dctps import cli
from dctps.base import command_start, files
from dctps.train import Interrupted, fit
from dctps.train.loop import Trainer
from dctps.train.runs import Run
from dctps.train.settings import Settings, run_id
from helpers.kills import (
    CODES,
    LAST,
    PHASES,
    SAVING,
    SETUP,
    TRAINING,
    Kill,
    Process,
    Siege,
    assert_same_runs,
    draw_kills,
)
from helpers.marks import needs_digits
from helpers.runs import runtime

pytestmark = needs_digits
starts_processes = [
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes in /proc"),
]

PLAIN = Settings(model="small_cnn", data="digits", density=0.05, epochs=15, lr=3e-3, batch_size=64)
CLASSICAL = dataclasses.replace(PLAIN, offset=None)
KINDS = {
    "plain": PLAIN,
    "rigl": dataclasses.replace(PLAIN, rewire="rigl", rewire_every=7),
    "set": dataclasses.replace(CLASSICAL, rewire="set", rewire_every=7),
    "dsr": dataclasses.replace(CLASSICAL, rewire="dsr", rewire_every=7),
    "synflow": dataclasses.replace(CLASSICAL, method="synflow"),
    "imp": dataclasses.replace(CLASSICAL, method="imp", method_steps=2, imp_rewind=5, epochs=5),
    "projection": dataclasses.replace(PLAIN, projection="fastfood", epochs=10),
    "norms": dataclasses.replace(PLAIN, model="resnet18", width=4, norm_density=0.2, epochs=6),
}
FEW_KILLS = {
    "imp": [Kill(signal.SIGTERM, TRAINING, 0.5), Kill(signal.SIGKILL, SAVING)],
    "rigl": [  # two in a row while the run goes on
        Kill(signal.SIGTERM, TRAINING, 0.3),
        Kill(signal.SIGKILL, SETUP, 0.5),
        Kill(signal.SIGINT, SAVING, file="metrics.jsonl"),
    ],
}
SHORT = dataclasses.replace(PLAIN, epochs=2)


# --- processes ------------------------------------------------------------------------------------------------------


class TestProcesses:
    pytestmark = starts_processes

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", KINDS)
    def test_thirty_kills_change_nothing(self, kind, tmp_path):
        siege = Siege(KINDS[kind], tmp_path)
        for kill in draw_kills(kind):
            siege.suffer(kill)
        siege.finish()
        print(siege.report(kind))
        assert Counter(death.kill.number.name for death in siege.deaths) == {"SIGKILL": 10, "SIGTERM": 10, "SIGINT": 10}
        assert {death.phase for death in siege.deaths} == PHASES
        assert siege.in_a_row() >= 2  # also while the run goes on after a kill

    @pytest.mark.parametrize("kind", FEW_KILLS)
    def test_few_kills_change_nothing(self, kind, tmp_path):
        siege = Siege(KINDS[kind], tmp_path)
        for kill in FEW_KILLS[kind]:
            siege.suffer(kill)
        siege.finish()
        assert len(siege.deaths) == len(FEW_KILLS[kind])
        if siege.finished == 1:  # on a busy machine a run may end before the moment of its kill is seen; another begins
            assert [death.resumed for death in siege.deaths] == [index > 0 for index in range(len(FEW_KILLS[kind]))]

    def test_ctrl_c_twice_ends_a_run_at_once(self, tmp_path):
        process = Process(PLAIN, tmp_path / "twice")
        process.runs_until(process.trains)
        process.process.send_signal(signal.SIGINT)
        process.saves(LAST)
        assert process.send(signal.SIGINT) in CODES[signal.SIGINT]
        assert "Traceback" not in process.errors.read_text()
        assert not process.temporary()
        assert Process(PLAIN, tmp_path / "twice").end() == 0
        assert Process(PLAIN, tmp_path / "once").end() == 0
        assert_same_runs(tmp_path / "twice", tmp_path / "once")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_during_the_imports_ends_the_command_without_a_traceback(self, number, tmp_path):
        process = Process(PLAIN, tmp_path / "runs")
        process.runs_until(lambda: "libtorch" in process.maps())
        assert not process.has_imported()
        assert process.send(number) in CODES[number]
        assert process.errors.read_text() in ("", "dctps: interrupted\n")
        assert process.output.read_text() == ""
        assert not list((tmp_path / "runs").iterdir())


# --- moments that a process outside cannot meet ---------------------------------------------------------------------


def test_ctrl_c_while_the_state_is_saved_after_ctrl_c_keeps_the_state_before(tmp_path, monkeypatch):
    step, replace = Trainer._step, os.replace

    def interrupted_step(self, *arguments):
        if (self.progress.epoch, self.progress.step) == (1, 3):
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    def interrupted_replace(source, target):
        if Path(target).name == LAST and Run(Path(target).parent).last.exists():
            os.kill(os.getpid(), signal.SIGINT)
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted_step)
        patch.setattr(files.os, "replace", interrupted_replace)
        with pytest.raises(KeyboardInterrupt):
            fit(SHORT, runtime(tmp_path / "twice"))
    run = Run.at(SHORT, tmp_path / "twice")
    progress = run.load_state().progress
    assert (progress.epoch, progress.step) == (1, 0)
    assert not list(run.folder.glob(".*.tmp"))
    for name in ("twice", "once"):
        fit(SHORT, runtime(tmp_path / name))
    assert_same_runs(tmp_path / "twice", tmp_path / "once")


def test_a_signal_in_the_last_step_of_a_round_ends_the_rounds_behind_it_too(tmp_path, monkeypatch):
    settings = dataclasses.replace(KINDS["imp"], epochs=1)
    finish = Trainer._finish_epoch

    def interrupted_finish(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish_epoch", interrupted_finish)
        with pytest.raises(Interrupted, match="finished; the result is in") as caught:
            fit(settings, runtime(tmp_path / "two"))
    assert caught.value.code == 143
    assert [path.name for path in (tmp_path / "two").iterdir()] == [run_id(dataclasses.replace(settings, imp_round=0))]
    for name in ("two", "one"):
        fit(settings, runtime(tmp_path / name))
    assert_same_runs(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("machine", [socket.gethostname(), "another"])
def test_what_a_killed_process_has_left_is_gone_even_if_its_number_is_in_use(machine, tmp_path):
    settings = dataclasses.replace(SHORT, epochs=1)
    run = Run.at(settings, tmp_path)
    run.folder.mkdir()
    for path in (run.metrics, run.best, run.last, run.rewind, run.result):
        (run.folder / f".{path.name}.{machine}.{os.getpid()}.x.tmp").touch()
    fit(settings, runtime(tmp_path))
    assert not list(run.folder.glob(".*.tmp"))


@pytest.mark.parametrize("rewire", ["rigl", "dsr"])
def test_a_run_that_goes_on_asks_for_as_many_weights_and_writes_the_same_file(rewire, tmp_path, monkeypatch):
    settings = dataclasses.replace(SHORT, offset=None, allocation="epl_paper", rewire=rewire, rewire_every=5)
    finish = Trainer._finish_epoch

    def interrupted_finish(self):
        finish(self)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish_epoch", interrupted_finish)
        with pytest.raises(Interrupted, match="stopped at epoch 2, step 1"):
            fit(settings, runtime(tmp_path / "two"))
    one, two = (fit(settings, runtime(tmp_path / name)) for name in ("one", "two"))
    assert one["weights"]["asked"] != one["weights"]["got"]
    assert one["weights"] == two["weights"]
    assert_same_runs(tmp_path / "two", tmp_path / "one")


# --- the beginning and the end of the command -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "command", "is_it"),
    [
        ("-m", "python -m dctps train", True),  # while the package is imported
        ("/lib/dctps/__main__.py", "python -X dev -m dctps train", True),
        ("/bin/dctps", "python /bin/dctps train", True),
        ("/lib/pytest/__main__.py", "python -m pytest -m dctps", False),
        ("train.py", "python train.py -m dctps", False),
        ("-c", "python -c pass", False),
        ("", "python", False),
    ],
)
def test_only_the_command_dies_of_ctrl_c_while_it_imports(program, command, is_it, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setattr(sys, "orig_argv", command.split())
    assert command_start.is_command() == is_it


@pytest.mark.parametrize("given", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}])
def test_idle_threads_of_the_command_sleep_soon_unless_the_user_says_otherwise(given, monkeypatch):
    monkeypatch.setattr(command_start.os, "environ", dict(given))
    command_start.limit_spinning()
    assert command_start.os.environ == (given or {"GOMP_SPINCOUNT": command_start.SPINS})


@pytest.mark.parametrize("outside", [signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler])
def test_ctrl_c_is_ignored_inside_the_command_only_if_it_is_outside(outside):
    before = signal.signal(signal.SIGINT, outside)
    try:
        with command_start.interruptible():
            inside = signal.getsignal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == outside
    finally:
        signal.signal(signal.SIGINT, before)
    if outside == signal.SIG_IGN:
        assert inside == signal.SIG_IGN
    else:
        with pytest.raises(KeyboardInterrupt):
            inside(signal.SIGINT, None)


def test_ctrl_c_of_which_an_import_makes_another_error_is_ctrl_c():
    def imports(interrupted):
        with contextlib.suppress(KeyboardInterrupt):
            if interrupted:
                signal.raise_signal(signal.SIGINT)
        raise ImportError("numpy's extensions failed")

    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), command_start.interruptible():
            imports(interrupted=True)
        with pytest.raises(ImportError), command_start.interruptible():
            imports(interrupted=False)
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_later_imports_of_the_command_is_no_traceback(monkeypatch, capsys):
    def interrupted_imports(name, arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted_imports)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "dctps: interrupted\n"
