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
from dctps import train
from dctps.config import Runtime, Settings, run_id
from dctps.distributed import Processes, wire_bytes
from dctps.guards import first_bad_layer
from dctps.models import build
from dctps.runs import Run, RunError
from dctps.train import Trainer, fit

pytest.importorskip("sklearn", reason="needs the demo extra for the digits")

SMALL = Settings(model="small_cnn", data="digits", density=0.02, epochs=2, lr=3e-3, batch_size=64)
TIMING = {"seconds", "images_per_second"}


def quiet(folder: Path) -> Runtime:
    return Runtime(runs=folder, quiet=True, threads=1)


def metrics(run: Run) -> list[dict]:
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMING} for row in rows]


def state(run: Run) -> dict:
    content = run.load_state()
    content["progress"].pop("seconds")
    return content


def assert_identical(run: Run, other: Run):
    """Bit-equal weights, optimiser, progress and metrics."""
    mine, theirs = state(run), state(other)
    for a, b in zip(flat(mine), flat(theirs), strict=True):
        assert a[0] == b[0]
        assert torch.equal(a[1], b[1]) if isinstance(a[1], torch.Tensor) else a[1] == b[1], a[0]
    assert metrics(run) == metrics(other)


def flat(tree, path=""):
    """The leaves of nested dicts and lists, with their paths."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        return [(path, tree)]
    return [leaf for key, value in items for leaf in flat(value, f"{path}/{key}")]


def test_a_run_learns_and_is_a_folder(tmp_path):
    settings = dataclasses.replace(SMALL, epochs=8)
    result = fit(settings, quiet(tmp_path))
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
    trainer = Trainer(
        settings, quiet(tmp_path / "other"), Run.of(settings, tmp_path / "other"), Processes(), torch.device("cpu")
    )
    trainer.model = best
    assert trainer.accuracy(trainer.test) == result["accuracy"]["test_at_best"]
    assert trainer.accuracy(trainer.validation) == result["accuracy"]["best_validation"]


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    first = fit(SMALL, quiet(tmp_path))
    monkeypatch.setattr(train, "Trainer", None)
    assert fit(SMALL, quiet(tmp_path)) == first


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
    result = fit(dataclasses.replace(SMALL, epochs=1, **changes), quiet(tmp_path))
    assert 0 <= result["accuracy"]["final_test"] <= 1


@pytest.mark.process
def test_compiled_networks_train(tmp_path):
    fit(dataclasses.replace(SMALL, epochs=1, compile=True), quiet(tmp_path))


def test_the_same_settings_give_the_same_run_and_leave_the_generator_alone(tmp_path):
    before = torch.get_rng_state()
    for name in "ab":
        fit(SMALL, quiet(tmp_path / name))
    assert torch.equal(before, torch.get_rng_state())
    assert_identical(*(Run(tmp_path / name / run_id(SMALL)) for name in "ab"))


# --- interruptions --------------------------------------------------------------------------------------------------

KILLED = """
    import os, random, signal, sys, time
    import torch
    torch.set_num_threads(1)
    from test_train import LONG, quiet
    from dctps.train import fit
    from pathlib import Path
    folder = Path(sys.argv[1])
    random.seed(0)
    kills = 0
    while kills < 10:
        child = os.fork()
        if not child:
            fit(LONG, quiet(folder))
            os._exit(0)
        time.sleep(random.uniform(0.1, 1.0))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit("finished before the tenth kill")
        kills += 1
    fit(LONG, quiet(folder))
"""
LONG = dataclasses.replace(SMALL, epochs=40, density=0.01)


@pytest.mark.process
def test_ten_kills_change_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path / "killed")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    whole = [
        *command[:1],
        "-c",
        "import sys, test_train as t, pathlib; t.fit(t.LONG, t.quiet(pathlib.Path(sys.argv[1])))",
    ]
    subprocess.run([*whole, str(tmp_path / "whole")], env=environment, check=True)
    assert_identical(Run(tmp_path / "killed" / run_id(LONG)), Run(tmp_path / "whole" / run_id(LONG)))


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
    fit(settings, quiet(tmp_path / "a"))
    fit(settings, quiet(tmp_path / "b"))
    assert_identical(run, Run(tmp_path / "b" / run_id(settings)))


def test_metrics_cut_short_or_ahead_of_the_checkpoint_are_mended(tmp_path):
    run = Run.of(SMALL, tmp_path)
    run.metrics.write_text('{"epoch": 0, "x": 1}\n{"epoch": 1, "x": 2}\n{"epoch": 2, "x"')
    run.keep_metrics_before(1)
    assert metrics(run) == [{"epoch": 0, "x": 1}]


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_full_disk_is_a_clear_error_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    settings = dataclasses.replace(SMALL, epochs=3)
    whole, saves = torch.save, []

    def fail_the_second_time(content, file):
        saves.append(1)
        if len(saves) == 2:
            Path(file).write_bytes(b"half of a checkpoint")
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(content, file)

    monkeypatch.setattr(torch, "save", fail_the_second_time)
    run = Run(tmp_path / run_id(settings))
    with pytest.raises(RunError, match=r"cannot write .*last.pt: No space left on device; the last good checkpoint is"):
        fit(settings, quiet(tmp_path))
    monkeypatch.undo()
    assert state(run)["progress"]["epoch"] == 1
    assert not list(run.folder.glob("*.tmp"))
    fit(settings, quiet(tmp_path))
    fit(settings, quiet(tmp_path / "whole"))
    assert_identical(run, Run(tmp_path / "whole" / run_id(settings)))


def test_folders_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"cannot make the run folder .* choose another with --runs"):
        fit(SMALL, quiet(tmp_path / "file"))


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with Run.of(SMALL, tmp_path).locked(), pytest.raises(RunError, match="another process is training in"):
        fit(SMALL, quiet(tmp_path))


def test_damaged_checkpoints_and_results_are_named(tmp_path):
    fit(SMALL, quiet(tmp_path))
    run = Run(tmp_path / run_id(SMALL))
    run.result.write_text("{")
    with pytest.raises(RunError, match=r"result.json is damaged"):
        fit(SMALL, quiet(tmp_path))
    run.result.unlink()
    run.last.write_bytes(run.last.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"last.pt is damaged .* delete it to start this run again"):
        fit(SMALL, quiet(tmp_path))
    whole = torch.load(tmp_path / "other") if (tmp_path / "other").exists() else {"model": {}}
    torch.save(whole, run.last)
    with pytest.raises(RunError, match=r"last.pt does not fit this run"):
        fit(SMALL, quiet(tmp_path))


def test_checkpoints_run_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    run = Run.of(SMALL, tmp_path)
    torch.save({"model": Evil()}, run.last)
    with pytest.raises(RunError, match="damaged"):
        fit(SMALL, quiet(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_loss_that_is_not_finite_stops_the_run_before_the_step(tmp_path):
    settings = dataclasses.replace(SMALL, optimizer="sgd", lr=1e18, epochs=3)
    with pytest.raises(RunError) as error:
        fit(settings, quiet(tmp_path))
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

PARALLEL = """
    import sys, torch, pathlib, dataclasses
    import test_train as t
    from dctps.distributed import processes
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    with processes(torch.device("cpu")) as group:
        run = t.Run.of(t.PAIR, folder)
        trainer = t.Trainer(t.PAIR, t.quiet(folder), run, group, torch.device("cpu"))
        trainer.train()
        torch.save(trainer.model.state_dict(), folder / f"rank{group.rank}")
"""
PAIR = dataclasses.replace(
    SMALL, optimizer="sgd", lr=0.05, epochs=3, batch_size=50
)  # 1293 images: 25 whole batches and 43


@pytest.mark.process
def test_two_processes_follow_one(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "OMP_NUM_THREADS": "1"}
    (tmp_path / "script.py").write_text(textwrap.dedent(PARALLEL))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(tmp_path / "script.py"), str(tmp_path / "two")]
    (tmp_path / "two").mkdir()
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = (torch.load(tmp_path / "two" / f"rank{rank}") for rank in (0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)  # supports and values alike
    fit(PAIR, quiet(tmp_path / "one"))
    alone = state(Run(tmp_path / "one" / run_id(PAIR)))["model"]
    for key, tensor in alone.items():
        # 78 steps of SGD on sums in another order: float32 rounding, grown to 1e-5 of weights of order 1
        torch.testing.assert_close(first[key], tensor, rtol=1e-3, atol=1e-4)
    mine, theirs = (metrics(Run(tmp_path / name / run_id(PAIR))) for name in ("one", "two"))
    assert [row["loss"] for row in theirs] == pytest.approx([row["loss"] for row in mine], rel=1e-4)


def test_what_crosses_the_wire():
    net = build("lenet")
    dense = 4 * 61_510
    assert wire_bytes(net) == (dense, dense)
    dctps.sparsify(net, 0.01)
    assert wire_bytes(net) == (4 * (615 + 5), dense)  # 615 values and five alphas
