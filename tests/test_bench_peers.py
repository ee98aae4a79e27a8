"""`dctps bench step --peers`: other packages get the same network; one that is not there is left out with a word."""

import csv

import pytest
import torch
from torch import nn

from dctps.bench import exported, figures, foreign, sparselab, steps
from dctps.bench.contenders import CONTENDERS, Maker, matched
from dctps.bench.stopwatch import SETTLE, Times
from dctps.cli import main, measure
from helpers.marks import needs_package
from helpers.tolerances import assert_close


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("DCTPS_TUNE", "0")
    monkeypatch.setattr(measure, "keep_memory", lambda: True)
    monkeypatch.setattr(figures, "available", lambda: False)


def linear_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10))


def match(net, inference, offset=None, density=0.3):
    torch.manual_seed(0)
    return matched(net, density, offset, (2, 3, 4, 4), inference)


def run(out, *more):
    tiny = "--model test_bench_peers:linear_net --input-shape 3 4 4 --density 0.3 --batch 2 --steps 2 --warmup 1"
    assert main(["bench", "step", *tiny.split(), "--out", str(out), *more]) == 0
    (path,) = out.glob("*.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- the mechanism, with peers that are made here -------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch):
    """Enter a peer; returns it by name and its options."""

    def enter(name, make=lambda match: linear_net(), **options):
        monkeypatch.setitem(CONTENDERS, name, Maker(make, **options))

    return enter


def test_a_peer_is_one_entry(fake, tmp_path):
    seen = []
    fake("mine", lambda match: seen.append(match) or linear_net(), formats=("contiguous",), counted=False)
    rows = run(tmp_path, "--peers", "mine")
    assert [row["contender"] for row in rows] == ["dense", "dense_fused", "ours", "mine"]
    assert (seen[0].offset, seen[0].input_shape, seen[0].inference) == ("dct", (2, 3, 4, 4), False)
    assert len(seen) == 1  # in one memory format
    assert rows[-1]["memory_bytes"] == ""
    assert {row["ratio_to_published"] for row in rows} == {""}


def test_a_peer_that_cannot_take_part_is_left_out_with_one_word(fake, tmp_path, capsys):
    fake("mine", why_not=lambda match: "mine is left out: it rains")
    rows = run(tmp_path, "--peers", "mine", "--offset", "dct", "none")
    assert [row["contender"] for row in rows] == ["dense", "dense_fused", "ours"] * 2
    assert capsys.readouterr().out.count("it rains") == 1


def test_the_best_dense_network_is_that_of_any_package():
    times = {("dense", "contiguous"): Times((30.0,)), ("openvino", "contiguous"): Times((20.0,))}
    times |= {("dense_fused", "contiguous"): Times((25.0,))}
    times |= {("ours", "contiguous"): Times((10.0,)), ("published", "contiguous"): Times((5.0,))}
    rows = {row.contender: row for row in steps.rows(steps.Steps(), steps.Cell("m", 0.1, "dct"), times, {})}
    assert [rows[name].ratio_to_best_dense for name in ("dense", "openvino", "ours")] == pytest.approx([2 / 3, 1, 2])
    assert (rows["ours"].ratio_to_dense, rows["ours"].ratio_to_dense_fused) == (3, 2.5)


@pytest.mark.parametrize("own_threads", [False, True])
def test_idle_threads_of_a_peer_are_given_time_to_sleep(own_threads, fake, monkeypatch):
    fake("mine", own_threads=own_threads)
    pauses, whole = [], steps.interleaved
    monkeypatch.setattr(steps, "interleaved", lambda *arguments: pauses.append(arguments[-1]) or whole(*arguments))
    asked = steps.Steps(("test_bench_peers:linear_net",), (0.3,), batch=2, steps=1, warmup=1, input_shape=(3, 4, 4))
    object.__setattr__(asked, "peers", ("mine",))
    list(steps.measure(asked))
    assert pauses == [SETTLE if own_threads else 0.0]


def test_a_narrow_network(tmp_path, capsys):
    rows = run(tmp_path, "--model", "resnet18", "--width", "2", "--input-shape", "3", "8", "8", "--peers", "published")
    assert {(row["model"], row["width"]) for row in rows} == {("resnet18", "2")}
    assert int(rows[0]["memory_bytes"]) < 1e6  # 64 channels would have 180 MB
    assert "resnet18 of width 2, 30 %, dct" in capsys.readouterr().out


# --- who can take part ----------------------------------------------------------------------------------------------


def test_reasons_say_what_would_help(monkeypatch):
    monkeypatch.setattr(exported, "is_installed", lambda name: name != "openvino")
    monkeypatch.setattr(sparselab, "is_installed", lambda name: False)
    training, inference = match(linear_net(), False), match(linear_net(), True)
    for peer, where, words in [
        ("onnxruntime", training, "does not train; it takes part with --inference"),
        ("openvino", inference, "needs openvino; install it in your clone of dctps with: pip install '.[peers]'"),
        ("sparselab", inference, "pip install --no-deps sparselab"),
        ("sparselab", match(linear_net(), False, "dct"), "it takes part with --offset none"),
        ("sparseprop", match(linear_net(), False, "dct"), "it takes part with --offset none"),
    ]:
        why = CONTENDERS[peer].why_not(where)
        assert why.startswith(f"{peer} is left out")
        assert words in why
    assert CONTENDERS["onnxruntime"].why_not(inference) == ""
    monkeypatch.setattr(sparselab, "is_installed", lambda name: True)
    assert "linear layers only, and the network has Conv2d" in CONTENDERS["sparselab"].why_not(
        match(convolutions(), False)
    )
    assert CONTENDERS["sparselab"].why_not(training) == ""


def test_a_foreign_package_is_imported_with_torchs_number_of_threads(monkeypatch, tmp_path):
    (tmp_path / "asks_for_threads.py").write_text("import os\nTHREADS = os.environ['OMP_NUM_THREADS']\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    module = foreign.import_with_threads("asks_for_threads")
    assert int(module.THREADS) == torch.get_num_threads()
    assert "OMP_NUM_THREADS" not in foreign.os.environ


# --- the packages themselves ----------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(
    "peer", [pytest.param(name, marks=needs_package(name)) for name in ("onnxruntime", "openvino")]
)
@pytest.mark.parametrize("batch", [1, 32])
def test_exported_networks_are_the_dense_network(peer, batch):
    pytest.importorskip("onnxscript", reason="needs onnxscript")
    torch.manual_seed(0)
    dense, x = convolutions().eval(), torch.randn(batch, 3, 4, 4)
    made = CONTENDERS[peer].make(matched(dense, 0.3, "dct", tuple(x.shape), True))
    with torch.inference_mode():
        assert_close(made(x), dense(x))


@pytest.mark.process
def test_a_compiled_network_is_the_dense_network():
    torch.manual_seed(0)
    dense, x = convolutions(), torch.randn(2, 3, 4, 4)
    made = CONTENDERS["dense_compiled"].make(match(dense, False))
    assert made is not dense
    assert_close(made(x), dense(x))
    torch._dynamo.reset()


@needs_package("sparselab")
def test_sparselab_gets_our_supports_and_trains_them():
    found = match(linear_net(), False)
    x, target = torch.randn(2, 3, 4, 4), torch.tensor([1, 2])
    ours, theirs = (CONTENDERS[name].make(found) for name in ("ours", "sparselab"))
    assert_close(theirs(x), ours(x))
    for net in (ours, theirs):
        nn.functional.cross_entropy(net(x), target).backward()
    for number in (1, 3):
        values = theirs[number]._values
        kept = values.grad[values != 0]  # the rest is room for further weights
        assert_close(kept, ours[number].values.grad)
