"""Five thousand run folders, grids and files whose structure is damaged: each is read or refused by our own error.

What is read must be right: `Valid` says, apart from the code, what the fields of a file may hold.
"""

import contextlib
import functools
import itertools
import json
import math
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import dctps
from dctps import data
from dctps.analysis.page import render
from dctps.checkpoint.contents import digest_of
from dctps.checkpoint.contents import read as read_network
from dctps.cli import main
from dctps.experiments.cells import Cell
from dctps.experiments.grids import read_grid
from dctps.experiments.results import Broken, Row, Unfinished, read_run
from dctps.train import images
from dctps.train.runs import Run, RunError
from dctps.train.settings import from_json, to_json
from helpers.checkpoints import positions_in, trained
from helpers.marks import needs_digits
from helpers.mutations import JUNK, as_bytes, mutated
from helpers.networks import cnn
from helpers.runs import alone

GOLDEN = Path(__file__).with_name("golden") / "folder-v1"
TRAIN, FAILURE, COUNTS, JACOBIAN = "dc6bb6422ce9", "c7ad6a081bef", "counts-dc6bb6422ce9", "jacobian-dc6bb6422ce9"
ALL = {"results": 1500, "metrics": 700, "configs": 800, "states": 400, "grids": 800, "networks": 500, "commands": 300}
assert sum(ALL.values()) == 5000


def numbers(name):
    """The numbers of the cases of a kind."""
    return pytest.mark.parametrize("cases", [range(ALL[name])], ids=[f"{ALL[name]} cases"])


# --- what may be accepted -------------------------------------------------------------------------------------------


class Valid:
    """Whether values are what the fields of files hold."""

    @staticmethod
    def number(value, low=-1e200, high=1e200):
        return type(value) in (int, float) and math.isfinite(value) and low <= value <= high

    @staticmethod
    def count(value, low=0):
        return type(value) is int and low <= value < 2**63

    @classmethod
    def settings(cls, content):
        """The settings are those of the content, with defaults for what is left out."""
        made = json.loads(json.dumps(to_json(from_json(content))))
        content = {k: None if v in ("none", "None") and made[k] is None else v for k, v in content.items()}
        return all(made[key] == value and type(made[key]) in (type(value), float) for key, value in content.items())

    @classmethod
    def cost(cls, cost):
        return cost is None or (
            cls.number(cost["seconds"], 0) and cls.count(cost["forward_passes"]) and cls.count(cost["backward_passes"])
        )

    @classmethod
    def result(cls, content, name):
        common = content["id"] == name and cls.settings(content["settings"]) and cls.count(content["threads"], 1)
        words = [content["cpu"], content["finished"], *content["versions"].values(), content["commit"] or ""]
        return common and all(type(word) is str for word in words) and cls._own(content)

    @classmethod
    def _own(cls, content):
        if "status" in content:
            words = [content["task"], content["reason"], content["details"]]
            return content["status"] in ("collapsed", "failed") and all(type(word) is str for word in words)
        if "layers" in content:
            layers = [layer for layer in content["layers"] if type(layer["name"]) is str and len(layer) == 3]
            right = all(cls.count(layer["nnz"]) and cls.count(layer["size"]) for layer in layers)
            return right and len(layers) == len(content["layers"]) and cls.count(content["others"])
        if "singular_values" in content:
            lengths = {len(values) for values in content["singular_values"]}
            return len(lengths) == 1 and all(cls.number(v, 0) for row in content["singular_values"] for v in row)
        accuracy, sizes, weights = content["accuracy"], content["bytes"], content["weights"]
        best = cls.count(accuracy["best_epoch"]) and accuracy["best_epoch"] < content["settings"].get("epochs", 200)
        shares = [cls.number(value, 0, 1) for key, value in accuracy.items() if key != "best_epoch"]
        counts = [sizes["per_step"], sizes["dense_per_step"], weights["got"]]
        maybe = [weights.get("asked"), weights.get("size"), sizes["file"], content["rewirings"]]
        counts += [value for value in maybe if value is not None]
        rest = cls.number(content["seconds"], 0) and cls.count(content["processes"], 1) and cls.cost(content["pruning"])
        return best and len(shares) == 4 and all(shares) and all(map(cls.count, counts)) and rest

    @classmethod
    def metrics(cls, rows):
        ascending = all(a.epoch < b.epoch for a, b in itertools.pairwise(rows))
        return ascending and all(
            cls.count(row.epoch)
            and cls.number(row.loss)
            and cls.number(row.train, 0, 1)
            and cls.number(row.validation, 0, 1)
            and all(cls.number(value, 0) for value in (row.lr, row.seconds, row.images_per_second))
            for row in rows
        )

    @classmethod
    def progress(cls, p, settings):
        place = cls.count(p.epoch) and cls.count(p.step) and p.epoch <= settings.epochs
        sums = cls.number(p.loss) and cls.number(p.correct, 0) and cls.number(p.images, p.correct)
        best = type(p.best_epoch) is int and -1 <= p.best_epoch < p.epoch and cls.number(p.best_validation, -1, 1)
        return place and sums and best and cls.number(p.seconds, 0) and cls.cost(p.pruning)


@contextlib.contextmanager
def case(number, tree):
    """Say which case it was if something goes wrong in it."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"case {number}: {error!a} of {ascii(tree)[:600]}") from None


def outcome(call, kind):
    """What a call returns, and None; or None, and its error, which must be of this kind."""
    try:
        return call(), None
    except kind as error:
        str(error).encode("utf-8")
        return None, str(error)


def golden(name, file="result.json"):
    return json.loads((GOLDEN / name / file).read_text())


# --- files of runs --------------------------------------------------------------------------------------------------


@numbers("results")
def test_results_and_failures(cases, tmp_path):
    whole = {name: golden(name) for name in (TRAIN, COUNTS, JACOBIAN)} | {FAILURE: golden(FAILURE, "failure.json")}
    rows = 0
    for number in cases:
        rng = random.Random(number)
        name = rng.choice([TRAIN, TRAIN, *whole])
        run, tree = Run(tmp_path / name), mutated(rng, whole[name])
        run.folder.mkdir(exist_ok=True)
        (run.failure if name == FAILURE else run.result).write_bytes(as_bytes(rng, tree))
        with case(number, tree):
            found = read_run(run.folder)
            assert isinstance(found, Row | Broken)
            if isinstance(found, Row):
                rows += 1
                assert Valid.result(found.content, name)
                assert found.settings == from_json(found.content["settings"])
            else:
                found.reason.encode("utf-8")
            if name == TRAIN:
                check_finished(run, found)
    assert 0 < rows < len(cases) / 2


def check_finished(run, found):
    """`dctps train` and `dctps report` agree on what is a result."""
    result, error = outcome(run.finished, RunError)
    if error is not None:
        assert "result.json is damaged (" in error
        assert isinstance(found, Broken)
    else:
        assert isinstance(found, Row)
        assert json.dumps(result) == json.dumps(found.content)


@numbers("metrics")
def test_metrics(cases, tmp_path):
    run = Run(tmp_path)
    whole = [vars(row) for row in Run(GOLDEN / TRAIN).read_metrics()]
    read = 0
    for number in cases:
        rng = random.Random(number)
        tree = mutated(rng, whole)
        lines = tree if isinstance(tree, list) else [tree]
        run.metrics.write_bytes(
            b"".join(as_bytes(rng, line, line=True) + rng.choice([b"\n"] * 9 + [b""]) for line in lines)
        )
        with case(number, tree):
            rows, error = outcome(run.read_metrics, RunError)
            if error is not None:
                assert "metrics.jsonl is damaged (" in error
                continue
            read += 1
            assert Valid.metrics(rows)
            run.keep_metrics_before(1)
            assert [row.epoch for row in run.read_metrics()] == [row.epoch for row in rows if row.epoch < 1]
    assert 0 < read < len(cases) / 2


@numbers("configs")
def test_configs(cases, tmp_path):
    run, whole, read = Run(tmp_path), golden(TRAIN, "config.json"), 0
    for number in cases:
        rng = random.Random(number)
        tree = mutated(rng, whole)
        run.config.write_bytes(as_bytes(rng, tree))
        with case(number, tree):
            settings, error = outcome(run.settings, RunError)
            if error is not None:
                assert "config.json is damaged (" in error
                continue
            read += 1
            assert Valid.settings(json.loads(run.config.read_text()))
            assert from_json(to_json(settings)) == settings
            assert isinstance(read_run(run.folder), Unfinished)
    assert 0 < read < len(cases) / 2


def same_tensors(now, before):
    """The tensors of a network and those of a state that an earlier version wrote, in pairs."""
    for key, tensor in before.items():
        layer, _, last = key.rpartition(".")
        yield (positions_in(now, layer), tensor) if last == "positions" else (now[key].reshape(tensor.shape), tensor)


# --- states ---------------------------------------------------------------------------------------------------------


@needs_digits
@numbers("states")
def test_states(cases, tmp_path, monkeypatch):
    settings, whole = Run(GOLDEN / TRAIN).settings(), torch.load(GOLDEN / TRAIN / "last.pt", weights_only=True)
    dataset = images.load(settings)
    monkeypatch.setattr(data, "load", lambda name: dataset)
    trainer, restored = alone(settings, tmp_path), 0
    initial = trainer.progress
    for number in cases:
        rng = random.Random(number)
        part = rng.choice(["progress", "progress", "optimiser", "model", "tuning", None])
        tree = mutated_state(rng, whole, part)
        torch.save(tree, trainer.run.last)
        with case(number, tree.get(part, list(tree))):
            _, error = outcome(lambda: trainer.restore(trainer.run.load_state()), RunError)
            if error is not None:
                assert str(trainer.run.last) in error
            else:
                restored += 1
                assert Valid.progress(trainer.progress, settings)
                assert all(torch.equal(*pair) for pair in same_tensors(trainer.model.state_dict(), tree["model"]))
        trainer.state.progress = initial
    assert 0 < restored < len(cases) / 2


def mutated_state(rng, whole, part):
    """A checkpoint with wrong values in one part, or a wrong part in place of another."""
    junk = [value for value in JUNK if value != "\udcff"]  # which torch's restricted loader cannot read
    junk += [torch.zeros(3), torch.tensor(float("nan"))]
    if part is not None:
        return whole | {part: mutated(rng, dict(whole[part]), junk)}
    kept = {name: whole[name] for name in rng.sample(sorted(whole), len(whole) - rng.randrange(2))}
    return kept | {rng.choice([*whole, "new"]): rng.choice(junk)}


# --- grids and networks ---------------------------------------------------------------------------------------------

GRID = {
    "settings": {"model": "lenet", "density": [0.05, 0.01], "seed": [0, 1], "milestones": [3, 4], "epochs": 3},
    "lines": [{"name": "DCTpS"}, {"name": "Random", "offset": "none"}, {"lr": [0.1, 0.2]}],
}


@numbers("grids")
def test_grids(cases, tmp_path):
    read = 0
    for number in cases:
        rng = random.Random(number)
        tree, file = mutated(rng, GRID), tmp_path / rng.choice(["grid.json", "grid.json", "grid.toml"])
        content = as_bytes(rng, tree) if file.suffix == ".json" else toml(rng, tree)
        file.write_bytes(content)
        with case(number, content):
            cells, error = outcome(functools.partial(read_grid, file), ValueError)
            if error is not None:
                assert str(file) in error
                continue
            read += 1
            assert cells
            for one in cells:
                assert isinstance(one, Cell)
                assert isinstance(one.line, str)
                assert Valid.settings(json.loads(json.dumps(to_json(one.settings))))
    assert 0 < read < len(cases) * 0.75


def toml(rng, tree):
    """Something like TOML of a tree, which is JSON's values under the keys."""
    if not isinstance(tree, dict):
        return as_bytes(rng, tree)
    return b"\n".join(
        f"{key} = ".encode("utf-8", "replace") + as_bytes(rng, value, True) for key, value in tree.items()
    )


@numbers("networks")
def test_networks(cases, tmp_path):
    path, net = tmp_path / "net.safetensors", dctps.sparsify(cnn(), 0.1, offset="dct_signed")
    net[0].seed = None
    dctps.save(trained(net), path)
    with safe_open(path, "pt") as file:
        manifest, tensors = json.loads(file.metadata()["dctps"]), {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    loaded = 0
    for number in cases:
        rng = random.Random(number)
        text = as_bytes(rng, mutated(rng, manifest)).decode("utf-8", "replace")
        save_file(tensors, path, {"dctps": text, "digest": digest_of(text, tensors)})  # as a careful forger would
        with case(number, text):
            contents, error = outcome(lambda: read_network(path), dctps.CheckpointError)
            if error is not None:
                assert str(path) in error
                continue
            loaded += 1
            assert all(contents.supports[e.name].nnz == len(contents.values[e.name]) for e in contents.entries)
            assert all(0 <= s.nnz <= math.prod(s.shape) for s in contents.supports.values())
    assert 0 < loaded < len(cases) / 2


# --- commands -------------------------------------------------------------------------------------------------------


@needs_digits
@numbers("commands")
def test_commands_end_with_a_message_and_a_code(cases, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(render, "_plotly", lambda: "")
    runs, codes = tmp_path / "runs", set()
    flags = "--model=small_cnn --data=digits --images=1000 --density=0.02 --lr=0.01 --epochs=3 --batch-size=20 --quiet"
    shutil.copytree(GOLDEN / TRAIN, runs / TRAIN)
    run = Run(runs / TRAIN)
    grid = tmp_path / "grid.json"
    for number in cases:
        rng = random.Random(number)
        whole, file = rng.choice(
            [(golden(TRAIN), run.result), (golden(TRAIN, "config.json"), run.config), (GRID, grid), ([], run.metrics)]
        )
        tree = mutated(rng, whole) if whole else mutated(rng, [vars(row) for row in Run(GOLDEN / TRAIN).read_metrics()])
        lines = tree if isinstance(tree, list) else [tree]
        many = b"".join(as_bytes(rng, line, line=True) + b"\n" for line in lines)
        file.write_bytes(many if file == run.metrics else as_bytes(rng, tree))
        commands = [["inspect", str(run.folder)], ["report", str(runs), "--out", str(tmp_path / "page.html")]]
        commands += [["sweep", str(grid), "--list", "--runs", str(runs)]] if file == grid else []
        commands += [["train", *flags.split(), "--runs", str(runs), "--no-keep-memory"]] if file == run.result else []
        for command in commands:
            with case(number, tree):
                codes.add(code := main(command))
                said = capsys.readouterr()
                assert code in (0, 2)
                assert (code == 0) == (not said.err)
                assert "Traceback" not in said.err
        for name in ("result.json", "config.json", "metrics.jsonl"):
            shutil.copy(GOLDEN / TRAIN / name, run.folder / name)
    assert codes == {0, 2}
