"""Training: it learns, a run is a folder, and no interruption leaves a trace in what it computes."""

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import dctps
from dctps.models import build
from dctps.nn.diagnose import first_bad_layer
from dctps.train import plan, session
from dctps.train.processes import wire_bytes
from dctps.train.runs import Run, RunError
from dctps.train.session import fit
from dctps.train.settings import Runtime, Settings, run_id
from helpers.marks import needs_digits
from helpers.processes import environment, torchrun
from helpers.runs import METRICS, PAIR, SMALL, alone, assert_identical, metrics, runtime, state, train_in_two

pytestmark = needs_digits


def test_a_run_learns_and_is_a_folder(tmp_path):
    settings = dataclasses.replace(SMALL, epochs=8)
    result = fit(settings, runtime(tmp_path))
    run = Run(tmp_path / run_id(settings))
    assert sorted(p.name for p in run.folder.iterdir()) == [
        "best.safetensors",
        "config.json",
        "last.pt",
        "lock",
        "metrics.jsonl",
        "result.json",
    ]
    assert result["accuracy"]["test_at_best"] > 0.6
    assert result["weights"] == {"asked": 1875, "got": 1875, "size": 93728}
    assert [row["epoch"] for row in metrics(run)] == list(range(8))
    best = dctps.load(run.best, build("small_cnn", in_channels=1))
    trainer = alone(settings, tmp_path / "other")
    trainer.model = best
    assert trainer.accuracy(trainer.test) == result["accuracy"]["test_at_best"]
    assert trainer.accuracy(trainer.validation) == result["accuracy"]["best_validation"]


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    first = fit(SMALL, runtime(tmp_path))
    monkeypatch.setattr(session, "Trainer", None)
    assert fit(SMALL, runtime(tmp_path)) == first


@pytest.mark.parametrize(
    "changes",
    [
        {"density": None},
        {"offset": None},
        {"optimizer": "sgd", "schedule": "multistep", "milestones": (1,), "lr": 0.05},
        {"optimizer": "adamw", "schedule": "cosine"},
        {"bf16": True},
        {"channels_last": True},
        {"split": "paper", "train_alpha": False, "alpha": 0.5},
    ],
    ids=str,
)
def test_settings_train(changes, tmp_path):
    settings = dataclasses.replace(SMALL, **changes)
    fit(SMALL, runtime(tmp_path))
    fit(settings, runtime(tmp_path))
    plain, changed = (metrics(Run(tmp_path / run_id(s))) for s in (SMALL, settings))
    assert len(changed) == 2
    if changes != {"channels_last": True}:  # which is another order of the same sums
        assert [row["loss"] for row in changed] != [row["loss"] for row in plain]


@pytest.mark.process
def test_compiled_networks_train(tmp_path):
    fit(dataclasses.replace(SMALL, epochs=1, compile=True), runtime(tmp_path))


def test_the_same_settings_give_the_same_run_and_leave_the_generator_alone(tmp_path):
    before = torch.get_rng_state()
    for name in "ab":
        fit(SMALL, runtime(tmp_path / name))
    assert torch.equal(before, torch.get_rng_state())
    assert_identical(*(Run(tmp_path / name / run_id(SMALL)) for name in "ab"))


# --- interruptions --------------------------------------------------------------------------------------------------

KILLED = """
    import os, random, signal, sys, time
    import torch
    torch.set_num_threads(1)
    from dctps import data
    from dctps.train.runs import Run
    from dctps.train.settings import run_id
    from helpers.runs import runtime, state
    from test_train import LONG
    from dctps.train.session import fit
    from pathlib import Path
    folder = Path(sys.argv[1])
    run = Run(folder / run_id(LONG))
    data.load(LONG.data)  # imports, before the children need them
    random.seed(0)

    def checkpoint():  # each is a new file in the place of the last
        return run.last.stat().st_mtime_ns if run.last.exists() else None

    def next_checkpoint():  # seconds until there is one
        start, known = time.perf_counter(), checkpoint()
        while checkpoint() == known:
            time.sleep(0.001)
        return time.perf_counter() - start

    epochs = []
    while len(epochs) < 10:
        child = os.fork()
        if not child:
            fit(LONG, runtime(folder))
            os._exit(0)
        # after one or two new checkpoints, and then anywhere in the next epoch: never by the clock alone, for a
        # machine may be slow at one moment and fast at the next
        waits = [next_checkpoint() for _ in range(random.randint(1, 2))]
        time.sleep(random.random() * waits[-1] if len(waits) > 1 else 0)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "finished before the tenth kill"
        epochs.append(state(run)["progress"]["epoch"])
    print(*epochs)
    fit(LONG, runtime(folder))
"""
LONG = dataclasses.replace(SMALL, epochs=36, density=0.01)


@pytest.mark.process
@pytest.mark.slow  # tests/test_kills.py kills runs of rigl and imp a few times
def test_ten_kills_change_nothing(tmp_path):
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(killed)]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    epochs = [int(epoch) for epoch in run.stdout.split()]
    assert len(epochs) == 10
    assert epochs[-1] > epochs[0] >= 1  # it did go on from checkpoints
    whole = "import sys, test_train as t, pathlib; t.fit(t.LONG, t.runtime(pathlib.Path(sys.argv[1])))"
    subprocess.run([sys.executable, "-c", whole, str(tmp_path / "whole")], env=environment(), check=True)
    assert_identical(Run(killed / run_id(LONG)), Run(tmp_path / "whole" / run_id(LONG)))


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_run_in_the_middle_with_its_state_saved(number, tmp_path):
    command = [sys.executable, "-m", "dctps", "train", "--model", "small_cnn", "--data", "digits", "--density", "0.02"]
    command += ["--lr", "0.003", "--batch-size", "4", "--epochs", "2", "--threads", "1", "--runs", str(tmp_path / "a")]
    settings = dataclasses.replace(SMALL, batch_size=4, epochs=2)
    run = Run(tmp_path / "a" / run_id(settings))
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while not run.last.exists() and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.2)  # into the second epoch, of 324 steps
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert "dctps: stopped at epoch 2, step" in error
    assert state(run)["progress"]["step"] > 0
    fit(settings, runtime(tmp_path / "a"))
    fit(settings, runtime(tmp_path / "b"))
    assert_identical(run, Run(tmp_path / "b" / run_id(settings)))


def test_metrics_cut_short_or_ahead_of_the_checkpoint_are_mended(tmp_path):
    run = Run.open(SMALL, tmp_path)
    whole = [json.dumps({"epoch": epoch, **METRICS}) for epoch in (0, 1)]
    for end in ("", "\n", '\n{"epoch": 2, "lo', "\n\0\0\0", "\n\udcff"):  # as kills and power cuts leave it
        run.metrics.write_text("\n".join(whole) + end, encoding="utf-8", errors="surrogateescape")
        assert [row.epoch for row in run.read_metrics()] == [0, 1]
        run.keep_metrics_before(1)
        assert run.metrics.read_text() == whole[0] + "\n"


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    settings = dataclasses.replace(SMALL, epochs=3)
    whole, saves = Path.write_bytes, []

    def fail_the_second_time(path, content):
        if ".last.pt." in path.name:
            saves.append(1)
            if len(saves) == 2:
                whole(path, bytes(content)[:1000])
                raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", fail_the_second_time)
    run = Run(tmp_path / run_id(settings))
    with pytest.raises(RunError, match=r"cannot write .*last.pt: No space left on device; the last good checkpoint is"):
        fit(settings, runtime(tmp_path))
    monkeypatch.undo()
    assert state(run)["progress"]["epoch"] == 1
    assert not list(run.folder.glob("*.tmp"))
    fit(settings, runtime(tmp_path))
    fit(settings, runtime(tmp_path / "whole"))
    assert_identical(run, Run(tmp_path / "whole" / run_id(settings)))


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"cannot make the run folder .* choose another with --runs"):
        fit(SMALL, runtime(tmp_path / "file"))


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with Run.open(SMALL, tmp_path).locked(), pytest.raises(RunError, match="another process is training in"):
        fit(SMALL, runtime(tmp_path))


def test_damaged_checkpoints_and_results_are_named(tmp_path):
    fit(SMALL, runtime(tmp_path))
    run = Run(tmp_path / run_id(SMALL))
    run.result.write_text("{")
    with pytest.raises(RunError, match=r"result.json is damaged"):
        fit(SMALL, runtime(tmp_path))
    run.result.unlink()
    run.last.write_bytes(run.last.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"last.pt is damaged .* delete it to start this run again"):
        fit(SMALL, runtime(tmp_path))
    torch.save({"model": {}}, run.last)
    with pytest.raises(RunError, match=r"last.pt is damaged \(id is missing\)"):
        fit(SMALL, runtime(tmp_path))


def test_checkpoints_run_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    run = Run.open(SMALL, tmp_path)
    torch.save({"model": Evil()}, run.last)
    with pytest.raises(RunError, match="damaged"):
        fit(SMALL, runtime(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_infinities_never_reach_a_checkpoint(tmp_path):
    """The last step of an epoch overflows: no loss will show it before the next epoch, which may never come."""
    run = Run(tmp_path / run_id(SMALL))
    trainer = alone(SMALL, tmp_path)
    finish = trainer._finish_epoch

    def overflow():
        if trainer.progress.epoch == 1:
            with torch.no_grad():
                trainer.model.classifier.values[0] = float("inf")
        finish()

    trainer._finish_epoch = overflow
    with pytest.raises(
        RunError, match=r"weights are not finite at epoch 2.*'classifier.values'; the last good checkpoint"
    ):
        trainer.train()
    assert state(run)["progress"]["epoch"] == 1
    assert all(t.isfinite().all() for t in state(run)["model"].values())


def test_outputs_that_are_not_finite_are_no_accuracy(tmp_path):
    trainer = alone(SMALL, tmp_path)
    with torch.no_grad():
        trainer.model.classifier.bias.fill_(3e38)
        trainer.model.classifier.alpha.fill_(3e38)
    with pytest.raises(RunError, match="outputs are not finite"):
        trainer.accuracy(trainer.test)


def test_a_folder_of_other_settings_or_data_is_refused(tmp_path, monkeypatch):
    fit(SMALL, runtime(tmp_path))
    other = dataclasses.replace(SMALL, seed=1)
    (tmp_path / run_id(SMALL)).rename(tmp_path / run_id(other))
    run = Run(tmp_path / run_id(other))
    run.result.unlink()
    with pytest.raises(RunError, match="holds the run of other settings"):
        fit(other, runtime(tmp_path))
    (run.folder / "config.json").unlink()
    with pytest.raises(RunError, match="it is of other settings"):
        fit(other, runtime(tmp_path))
    run.folder.rename(tmp_path / run_id(SMALL))
    (tmp_path / run_id(SMALL) / "config.json").unlink()
    monkeypatch.setattr(plan, "fingerprint", lambda dataset: "of other data")
    with pytest.raises(RunError, match="trained on other data"):
        fit(SMALL, runtime(tmp_path))


@pytest.mark.parametrize(
    ("changes", "runtime", "message"),
    [
        ({"model": "lenet"}, {}, "lenet does not take the 1 x 8 x 8 images of digits"),
        ({"hidden": 5}, {}, "small_cnn has no setting hidden"),
        ({"model": "alexnet"}, {}, "unknown model 'alexnet'"),
        ({"data": "svhn"}, {}, "unknown data set 'svhn'"),
        ({"backend": "fast"}, {}, "unknown backend"),
        ({}, {"device": "banana"}, "cannot use the device 'banana'"),
        ({}, {"threads": 0}, "threads must be at least 1"),
    ],
)
def test_bad_requests_leave_no_folder(changes, runtime, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(dataclasses.replace(SMALL, **changes), Runtime(runs=tmp_path / "runs", quiet=True, **runtime))
    assert not (tmp_path / "runs").exists()


def test_a_loss_that_is_not_finite_stops_the_run_before_the_step(tmp_path):
    settings = dataclasses.replace(SMALL, optimizer="sgd", lr=1e18, epochs=3)
    with pytest.raises(RunError) as error:
        fit(settings, runtime(tmp_path))
    text = str(error.value)
    assert "the loss is" in text
    assert "at epoch 1, step" in text
    assert "the first" in text
    assert "there is no checkpoint yet" in text


def test_the_first_layer_that_is_not_finite():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), nn.Linear(2, 2))
    with torch.no_grad():
        net[1][1].weight.fill_(3e38)
        net[0].bias.fill_(10.0)
    assert first_bad_layer(net, torch.ones(1, 2)) == "the first output that is not finite is that of '1.1'"
    with torch.no_grad():
        net[2].bias.fill_(float("nan"))
    assert first_bad_layer(net, torch.ones(1, 2)) == "the first parameter that is not finite is '2.bias'"


# --- several processes ----------------------------------------------------------------------------------------------


NORMED = Settings(model="resnet18", width=8, data="digits", density=0.05, epochs=1, batch_size=64)


@pytest.mark.process
def test_two_processes_with_batch_norm_report_the_network_they_save(tmp_path):
    train_in_two(NORMED, tmp_path / "two")
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    trainer = alone(NORMED, tmp_path / "other")
    dctps.load(tmp_path / "two" / run_id(NORMED) / "best.safetensors", trainer.model)
    assert trainer.accuracy(trainer.test) == result["accuracy"]["test_at_best"]
    assert trainer.accuracy(trainer.validation) == result["accuracy"]["best_validation"]


@pytest.mark.process
def test_torchrun_runs_the_command_and_says_what_crosses_the_wire(tmp_path):
    command = ["-m", "dctps", "train", "--model", "small_cnn", "--data", "digits", "--density", "0.02", "--epochs", "1"]
    run = torchrun(*command, "--runs", str(tmp_path))
    assert run.returncode == 0, run.stderr[-3000:]
    # 1,875 values, 4 alphas and 234 biases of four bytes
    assert "2 processes; gradients per step: 8,452 bytes each (dense network: 375,848)" in run.stdout
    small = torchrun(*command, "--batch-size", "3", "--runs", str(tmp_path))
    assert "batch_size 3: less than two images for each of 2 processes" in small.stderr


@pytest.mark.process
def test_two_processes_follow_one(tmp_path):
    first, _ = train_in_two(PAIR, tmp_path / "two")
    fit(PAIR, runtime(tmp_path / "one"))
    alone = state(Run(tmp_path / "one" / run_id(PAIR)))["model"]
    for key, tensor in alone.items():
        # 78 steps of SGD on sums in another order: float32 rounding, grown to 1e-5 of weights of order 1, and in single
        # weights, behind a ReLU or a maximum that tips over, to 1.2e-4
        torch.testing.assert_close(first[key], tensor, rtol=1e-3, atol=5e-4)
    mine, theirs = (metrics(Run(tmp_path / name / run_id(PAIR))) for name in ("one", "two"))
    assert [row["loss"] for row in theirs] == pytest.approx([row["loss"] for row in mine], rel=1e-4)


def test_what_crosses_the_wire():
    net = build("lenet")
    dense = 4 * 61_510
    assert wire_bytes(net) == (dense, dense)
    dctps.sparsify(net, 0.01)
    assert wire_bytes(net) == (4 * (615 + 5), dense)  # 615 values and five alphas
