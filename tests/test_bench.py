"""`dctps bench`: what is compared computes the same, takes its steps in turn, and is written down as measured."""

import copy
import csv
import math
import os
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import tyro
from torch import nn

import dctps
from dctps.bench import (
    calls,
    figures,
    footprint,
    layers,
    memory,
    names,
    networks,
    scaling,
    sparseprop,
    steps,
    stopwatch,
    tables,
    versions,
)
from dctps.bench.contenders import contenders, default_peers, matched
from dctps.bench.published import Published, published
from dctps.bench.stopwatch import Times
from dctps.cli import bench as command
from dctps.cli import main, measure
from dctps.nn.dps_layer import DpsLayer
from dctps.ops import eager, functional, native
from helpers.networks import cnn
from helpers.tolerances import assert_close


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("DCTPS_TUNE", "0")  # backends by the rule: nothing is measured for it or kept on disk
    monkeypatch.setattr(measure, "keep_memory", lambda: True)  # would hold for all tests after these
    monkeypatch.setattr(figures, "available", lambda: False)  # a second each


def three_alike() -> nn.Module:
    """A layer whose input wants no gradient, three that are one case, and a linear one."""
    alike = [nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *alike, nn.Flatten(), nn.Linear(4 * 8 * 8, 10))


def made_from(dense, density, offset, input_shape, inference=False):
    """All contenders that take part without --peers."""
    return contenders(matched(dense, density, offset, input_shape, inference), default_peers(offset))


def not_a_network() -> int:
    return 3


OWN = "--model test_bench:three_alike --input-shape 3 8 8 --density 0.05 --batch 2"
TINY = {
    "layers": f"{OWN} --repeats 2",
    "step": f"{OWN} --offset dct none --steps 2 --warmup 1",
    "scaling": "--sizes 8 16 --channels 4 8 --fixed-size 8 --fixed-channels 4 --density 0.1 --densities 0.1 0.5 "
    "--batch 2 --repeats 2 --pixels 4",
}


def run(subject, out, *more):
    """The rows that a subject writes."""
    assert main(["bench", subject, *TINY[subject].split(), "--out", str(out), *more]) == 0
    (path,) = out.glob("*.csv")
    return read(path)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --- the clock ------------------------------------------------------------------------------------------------------


def test_contenders_take_turns_and_the_warm_up_does_not_count(monkeypatch):
    clock, order, ticks = [0.0], [], []
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock[0])

    def contender(name, seconds):
        def take_a_step():
            order.append(name)
            clock[0] += seconds.pop(0)

        return take_a_step

    runs = {"a": contender("a", [9, 9, 0.003, 0.008, 0.004]), "b": contender("b", [9, 9, 0.1, 0.1, 0.3])}
    times = stopwatch.interleaved(runs, steps=3, warmup=2, tick=lambda: ticks.append(len(order)))
    assert order == ["a", "b"] * 5
    assert ticks == [2, 4, 6, 8, 10]
    assert times["a"].all == pytest.approx((3, 8, 4))
    assert (times["a"].median, times["a"].least) == pytest.approx((4, 3))
    assert (times["b"].median, times["b"].least) == pytest.approx((100, 100))


def test_a_training_step_trains_and_an_inference_does_not():
    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    before = net.weight.detach().clone()
    calls.inference(net, x)()
    assert not net.training
    assert net.weight.grad is None
    calls.training_step(net, x, torch.tensor([0, 1, 2, 0, 1]))()
    assert net.training
    # the first step of Adam moves every weight by the learning rate; 1e-3 is what its epsilon takes from that
    torch.testing.assert_close((net.weight - before).abs(), torch.full((3, 4), 1e-3), rtol=1e-3, atol=0)


def test_a_layer_goes_there_and_back_to_all_that_want_a_gradient(monkeypatch):
    layer, seen = nn.Linear(4, 3), []
    monkeypatch.setattr(torch.autograd, "grad", lambda y, wanted, cotangent: seen.append((wanted, cotangent.shape)))
    for wants in (False, True):
        x = torch.randn(5, 4, requires_grad=wants)
        calls.there_and_back(layer, x)()
        wanted, shape = seen.pop()
        assert [id(t) for t in wanted] == [id(t) for t in (*([x] if wants else []), layer.weight, layer.bias)]
        assert shape == (5, 3)


# --- the published formulation --------------------------------------------------------------------------------------


def sparse_net(offset):
    net = dctps.sparsify(cnn().double(), 0.1, offset=offset, alpha=0.7)
    for layer in net.modules():
        if isinstance(layer, DpsLayer):
            nn.init.normal_(layer.values)
    return net


@pytest.mark.parametrize("offset", ["dct", "hadamard/spatial/channel/lowest/0", None])
def test_the_published_formulation_is_the_same_function_with_dense_gradients(offset):
    ours = sparse_net(offset)
    theirs = published(copy.deepcopy(ours))
    x = torch.randn(4, 3, 9, 9, dtype=torch.float64)
    outputs = [net(x) for net in (ours, theirs)]
    assert_close(outputs[1], outputs[0])
    for y in outputs:
        (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    names = [name for name, layer in ours.named_modules() if isinstance(layer, DpsLayer)]
    assert len(names) == 3
    for name in names:
        our, their = ours.get_submodule(name), theirs.get_submodule(name)
        gradient = their.product.weight.grad
        assert gradient.shape == our.geometry.weight_shape
        assert not gradient[~our.support.mask()].any()
        assert_close(gradient.flatten()[our.positions.long()], our.values.grad)
        assert (their.alpha is None) == (offset is None)
        if offset is not None:
            assert_close(their.alpha.grad, our.alpha.grad)
        if our.bias is not None:
            assert_close(their.product.bias.grad, our.bias.grad)


def test_the_published_formulation_trains_nothing_but_the_support():
    net = published(sparse_net("dct").float())
    own = [m for m in net.modules() if isinstance(m, Published)]
    before = [m.offset.weight.clone() for m in own]
    step = calls.training_step(net, torch.randn(4, 3, 9, 9), torch.tensor([1, 2, 3, 4]))
    step()
    step()
    for module, offset in zip(own, before, strict=True):
        assert not module.product.weight[module.mask == 0].any()
        assert torch.equal(module.offset.weight, offset)


def test_contenders_compute_the_same_in_both_memory_formats():
    torch.manual_seed(0)
    dense, x = three_alike().eval(), torch.randn(2, 3, 8, 8)
    made = made_from(dense, 0.05, "dct", tuple(x.shape))
    assert [tuple(one[:2]) for one in made] == [
        (name, fmt) for name in ("dense", "dense_fused", "published", "ours") for fmt in ("contiguous", "channels_last")
    ]
    plain, _, fused, _, first, *rest = [one.model(x) for one in made]
    assert_close(plain, dense(x))
    assert_close(fused, dense(x))
    for other in rest:
        assert_close(other, first)
    assert made[5].model[1].mask.is_contiguous(memory_format=torch.channels_last)
    assert len(made_from(nn.Linear(8, 4), 0.5, "dct", (2, 8))) == 4  # vectors have one memory format


# --- memory ---------------------------------------------------------------------------------------------------------


def test_memory_is_weights_gradients_moments_and_positions():
    net = nn.Sequential(nn.Linear(100, 50), nn.BatchNorm1d(50))
    sparse = dctps.sparsify(copy.deepcopy(net), 0.01)
    rest = 50 + 2 * 50  # the bias, and weight and bias of BatchNorm
    assert memory(net) == 4 * 4 * (5000 + rest)
    assert memory(sparse) == 4 * 4 * (50 + 1 + rest) + 4 * 50  # values, alpha; positions
    assert memory(published(copy.deepcopy(sparse))) == 4 * 4 * (5000 + 1 + rest) + 2 * 4 * 5000  # D and the mask


def test_the_peak_is_the_most_that_is_alive_at_a_time():
    def run():
        first, second = torch.empty(1000), torch.empty(500)
        del first
        return second, torch.empty(100)

    assert footprint.peak(nn.Identity(), run) == 4 * 1500


def test_the_peak_of_a_step_has_its_gradients_and_not_the_moments_each_time_it_is_asked_for(capfd):
    net, x = nn.Linear(300, 200, bias=False), torch.randn(4, 300)
    step = calls.training_step(net, x, torch.tensor([1, 2, 3, 4]))
    step()
    found = [footprint.peak(net, step) for _ in range(2)]
    assert found[0] == found[1]
    assert 1 < found[0] / (4 * 200 * 300) < 1.5
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(native.kernels is None, reason="needs the native kernels")
def test_the_peak_is_that_of_the_path_that_is_timed(monkeypatch):
    seen, multiply = [], eager.multiply
    monkeypatch.setattr(eager, "multiply", lambda *arguments: seen.append(1) or multiply(*arguments))
    layer = dctps.DpsLinear(64, 32, nnz=5, backend="native")
    footprint.peak(layer, calls.training_step(layer, torch.randn(4, 64), torch.tensor([1, 2, 3, 4])))
    assert seen == [1]


# --- the subjects ---------------------------------------------------------------------------------------------------

ORIGIN = ["keep_memory", "cpu", "instruction_set", "torch_instruction_set", "threads", "torch", "commit", "date"]


def test_layers(tmp_path, capsys):
    rows = run("layers", tmp_path)
    out = capsys.readouterr().out
    ways = ["dense", *(f"ours/{backend}" for backend in functional.backends())]
    assert [row["contender"] for row in rows] == ways * 3
    assert [(row["layer"], row["count"], row["weight_shape"], row["input_shape"]) for row in rows[:: len(ways)]] == [
        ("0", "1", "4x3x3x3", "2x3x8x8"),
        ("1", "3", "4x4x3x3", "2x4x8x8"),
        ("5", "1", "10x256", "2x256"),
    ]
    for row in rows[len(ways) : 2 * len(ways)]:
        held = 4 * 4 * 144 if row["contender"] == "dense" else 4 * 4 * int(row["nnz"]) + 4 * int(row["nnz"])
        assert int(row["memory_bytes"]) == held
    assert sum(row["chosen"] == "True" for row in rows) == 3
    assert list(rows[0])[-len(ORIGIN) :] == ORIGIN
    for text in ("1  x3", "4x4x3x3", "1 4x4x3x3: dense", "all 5", ".csv"):
        assert text in out


def test_layers_times_what_auto_would_choose_with_and_without_gradients(monkeypatch, tmp_path):
    seen = []

    def choose(x, nnz, offset, geometry):
        seen.append((torch.is_grad_enabled(), x.shape))
        return "torch"

    monkeypatch.setattr("dctps.ops.choosing.choose", choose)
    for number, flag in enumerate(("--no-inference", "--inference")):
        rows = run("layers", tmp_path / flag, flag)
        assert [row["contender"] for row in rows if row["chosen"] == "True"] == ["ours/torch"] * 3
        assert seen[-1] == (number == 0, (2, 256))
        assert rows[0]["mode"] == ("training", "inference")[number]


def test_layers_say_that_the_kernels_are_not_there(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr(native, "WHY_NOT", "no compiler here")
    rows = run("layers", tmp_path, "--channels-last")
    assert "ours/native" not in [row["contender"] for row in rows]
    assert rows[0]["memory_format"] == "channels_last"
    assert "no compiler here" in capsys.readouterr().out


def test_cases_remember_the_layout_and_the_gradient_of_their_input():
    asked = layers.Layers("test_bench:three_alike", 0.05, batch=2, channels_last=True, input_shape=(3, 8, 8))
    first, alike, linear = layers.find_cases(asked)
    assert [case.channels_last for case in (first, alike, linear)] == [True, True, False]
    assert [case.gradient for case in (first, alike, linear)] == [False, True, True]
    assert alike.example(True).is_contiguous(memory_format=torch.channels_last)
    assert [alike.example(wanted).requires_grad for wanted in (True, False)] == [True, False]
    assert not first.example(True).requires_grad
    assert not alike.layer._forward_pre_hooks


STEP_COLUMNS = [
    *("model", "density", "offset", "batch", "mode", "steps", "contender", "memory_format"),
    *("median_ms", "min_ms", "other_format_ms", "ratio_to_dense", "ratio_to_published", "memory_bytes"),
    *("ratio_to_best_dense", "ratio_to_dense_fused", "width", "peak_bytes"),
]


def test_step(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sparseprop, "_utils", _missing)
    rows = run("step", tmp_path)
    out = capsys.readouterr().out
    assert list(rows[0]) == STEP_COLUMNS + ORIGIN
    contenders = ["dense", "dense_fused", "published", "ours"]
    assert [(row["offset"], row["contender"]) for row in rows] == [(o, c) for o in ("dct", "none") for c in contenders]
    for group in (rows[:4], rows[4:]):
        dense, fused, theirs, _ = (float(row["median_ms"]) for row in group)
        for row in group:
            assert float(row["ratio_to_dense"]) == pytest.approx(dense / float(row["median_ms"]), rel=1e-3)
            assert float(row["ratio_to_dense_fused"]) == pytest.approx(fused / float(row["median_ms"]), rel=1e-3)
            assert float(row["ratio_to_published"]) == pytest.approx(theirs / float(row["median_ms"]), rel=1e-3)
            assert float(row["ratio_to_best_dense"]) == pytest.approx(
                min(dense, fused) / float(row["median_ms"]), rel=1e-3
            )
            assert float(row["median_ms"]) <= float(row["other_format_ms"])
            assert row["memory_format"] in ("contiguous", "channels_last")
    assert (rows[0]["mode"], rows[0]["batch"], rows[0]["steps"]) == ("training", "2", "2")
    assert int(rows[0]["memory_bytes"]) == memory(three_alike())
    assert rows[0]["instruction_set"] == native.instruction_set()
    assert rows[0]["torch_instruction_set"] == torch.backends.cpu.get_cpu_capability().lower()
    for row in rows:  # the gradients of the weights and the activations of a convolution are alive together
        assert int(row["peak_bytes"]) > int(row["memory_bytes"]) / 4
    held = f"{tables.size(int(rows[3]['memory_bytes']))} +{tables.size(int(rows[3]['peak_bytes']))}"
    assert re.search(rf"memory +peak .* {held} ", out, re.DOTALL)
    for text in ("three_alike, 5 %, dct: dense ", "vs dense", ".csv", "sparseprop is left out"):
        assert text in out
    assert out.count("no sparseprop here") == 1


def _missing():
    raise ImportError("no sparseprop here")


def test_step_in_inference_without_a_figure(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sparseprop, "_utils", _missing)
    rows = run("step", tmp_path, "--inference", "--offset", "dct_signed", "--threads", "1", "--no-keep-memory")
    assert {row["mode"] for row in rows} == {"inference"}
    assert (rows[0]["threads"], rows[0]["keep_memory"]) == ("1", "False")
    out = capsys.readouterr().out
    assert "pip install '.[figures]'" in out
    assert "sparseprop" not in out  # only for pruning without an offset
    assert not list(tmp_path.glob("*.png"))


def test_the_process_is_put_in_the_trainers_state_and_back(monkeypatch, tmp_path):
    state = []

    def look(*arguments):
        state.append((torch.get_num_threads(), torch.tensor(1e-40).mul(1.0).item()))
        return iter([])

    monkeypatch.setattr(steps, "measure", look)
    monkeypatch.setattr(measure, "_finish", lambda *arguments: None)
    threads = torch.get_num_threads()
    assert main(["bench", "step", *TINY["step"].split(), "--threads", str(threads + 1), "--out", str(tmp_path)]) == 0
    assert state == [(threads + 1, 0.0)]
    assert torch.get_num_threads() == threads
    assert torch.tensor(1e-40).mul(1.0).item() > 0


def test_a_row_is_the_faster_memory_format():
    times = {
        ("dense", "contiguous"): Times((30.0, 20.0, 40.0)),
        ("dense", "channels_last"): Times((35.0, 34.0, 36.0)),
        ("dense_fused", "contiguous"): Times((20.0, 20.0, 20.0)),
        ("published", "contiguous"): Times((90.0, 90.0, 90.0)),
        ("published", "channels_last"): Times((60.0, 60.0, 60.0)),
        ("ours", "contiguous"): Times((10.0, 10.0, 10.0)),
    }
    peaks = {("dense", "contiguous"): 8, ("dense", "channels_last"): 9, ("published", "channels_last"): 10}
    cell = steps.Cell("m", 0.1, "dct")
    dense, _, theirs, ours = steps.rows(steps.Steps(), cell, times, {"dense": 7}, peaks)
    assert (dense.memory_format, dense.median_ms, dense.min_ms, dense.other_format_ms) == ("contiguous", 30, 20, 35)
    assert (theirs.memory_format, theirs.ratio_to_dense, theirs.other_format_ms) == ("channels_last", 0.5, 90)
    assert (ours.ratio_to_dense, ours.ratio_to_dense_fused, ours.ratio_to_published) == (3, 2, 6)
    assert ours.other_format_ms is None
    assert (dense.memory_bytes, ours.memory_bytes) == (7, None)
    assert (dense.peak_bytes, theirs.peak_bytes, ours.peak_bytes) == (8, 10, None)


def test_scaling(tmp_path, capsys):
    rows = run("scaling", tmp_path)
    keys = [(row["sweep"], row["layer"], row["size"], row["density"]) for row in rows if row["contender"] == "ours"]
    assert keys == [
        *(("size", "linear", n, "0.1") for n in ("8", "16")),
        *(("density", "linear", "8", d) for d in ("0.1", "0.5")),
        *(("size", "conv", c, "0.1") for c in ("4", "8")),
        *(("density", "conv", "4", d) for d in ("0.1", "0.5")),
    ]
    assert len(rows) == 2 * len(keys)
    dense, ours = rows[:2]
    assert (dense["contender"], float(dense["multiply_adds"])) == ("dense", 64)
    assert float(ours["multiply_adds"]) == 8 * 3 + 6
    assert ours["nnz"] == "6"
    assert ours["backend"] in functional.BACKENDS
    conv = next(row for row in rows if row["layer"] == "conv" and row["contender"] == "ours")
    assert conv["input_shape"] == "2x4x4x4"
    assert float(conv["multiply_adds"]) == pytest.approx(36 * math.log2(36) + 14, rel=1e-4)
    assert "density   linear" in capsys.readouterr().out


def test_scaling_leaves_large_dense_layers_out(tmp_path, capsys):
    limit = 2 * 4 * 8 * 8 / 1e9  # gigabytes of weight and gradient of the linear layer of 8 x 8
    rows = run("scaling", tmp_path, "--dense-limit", str(limit), "--channels")
    assert {row["size"] for row in rows if row["layer"] == "linear" and row["contender"] == "dense"} == {"8"}
    large = [row for row in rows if row["layer"] == "linear" and row["size"] == "16"]
    assert [(row["contender"], row["ratio_to_dense"]) for row in large] == [("ours", "")]


@pytest.mark.parametrize("subject", ["step", "scaling"])
def test_figures(subject, monkeypatch, tmp_path, capsys):
    monkeypatch.undo()
    monkeypatch.setenv("DCTPS_TUNE", "0")
    if not figures.available():
        pytest.skip("needs the figures extra")
    run(subject, tmp_path, "--no-keep-memory")
    (path,) = tmp_path.glob("*.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().out


def test_without_a_subject_there_is_help(capsys):
    with pytest.raises(SystemExit) as end:
        main(["bench"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert all(f"\n  {subject} " in out for subject in TINY)


# --- what is kept ---------------------------------------------------------------------------------------------------


def parse(subject, arguments):
    """What a command line asks for."""
    given = {"step": command.StepArguments, "layers": command.LayersArguments, "scaling": command.ScalingArguments}
    return tyro.cli(given[subject], args=arguments.split()).asked


BOTH = "bench-step-resnet18+vgg19-dct+none-1e-2+1e-4-b128"
OWN_NETWORK = "bench-step-my.nets-f-srht-spatial-channel-lowest-0-1e-1-b128-input_shape-1x28x28"


@pytest.mark.parametrize(
    ("subject", "arguments", "name"),
    [
        ("step", "--models vgg19 --densities 1e-3", "bench-step-vgg19-dct-1e-3-b128"),
        ("step", "--models vgg19 resnet18 --densities 1e-4 0.01 --offsets none dct --steps 5 --warmup 1", BOTH),
        ("step", "--models resnet18 vgg19 --densities 0.01 1e-4 --offsets dct none", BOTH),
        ("step", "--density 0.0125 --batch 32 --inference", "bench-step-resnet18-dct-1.25e-2-b32-inference"),
        ("step", "--density 1", "bench-step-resnet18-dct-1-b128"),
        ("step", "--density 1 --width 16", "bench-step-resnet18-dct-1-b128-width-16"),
        ("step", "--density 1 --peers openvino", "bench-step-resnet18-dct-1-b128-peers-openvino"),
        ("step", "--density 1 --against v1/x", "bench-step-resnet18-dct-1-b128-against-v1-x"),
        (
            "step",
            "--density 0.1 --offset srht/spatial/channel/lowest/0 --model my.nets:f --input-shape 1 28 28",
            OWN_NETWORK,
        ),
        ("layers", "--model resnet50", "bench-layers-resnet50-dct-1e-3-b32"),
        ("layers", "--channels-last --classes 100", "bench-layers-resnet18-dct-1e-3-b32-channels_last-classes-100"),
        ("scaling", "--repeats 3", "bench-scaling-dct"),
        ("scaling", "--offset none --sizes 8 16 --channels", "bench-scaling-none-sizes-8+16-channels-none"),
    ],
)
def test_a_name_says_what_was_measured(subject, arguments, name):
    assert getattr(names, f"{subject}_name")(parse(subject, arguments)) == name


def test_long_names_are_cut_and_stay_different():
    found = {names.step_name(steps.Steps(models=tuple(f"my.nets:f{n}" for n in range(count)))) for count in (40, 41)}
    assert len(found) == 2
    assert {len(name) for name in found} == {names.LONGEST}


def test_a_later_run_replaces_table_and_figure(tmp_path):
    run("layers", tmp_path)
    (path,) = tmp_path.glob("*.csv")
    assert path.name == "bench-layers-test_bench-three_alike-dct-5e-2-b2-input_shape-3x8x8.csv"
    path.write_text("of an earlier run")
    path.with_suffix(".png").write_text("of an earlier run")
    rows = run("layers", tmp_path)
    assert list(tmp_path.iterdir()) == [path]  # no figure is drawn here, and the earlier one shows other numbers
    assert {row["model"] for row in rows} == {"test_bench:three_alike"}


def test_a_file_never_holds_rows_of_two_runs(monkeypatch, tmp_path):
    run("step", tmp_path)
    (path,) = tmp_path.glob("*.csv")
    before, whole = read(path), steps.measure
    seen = []

    def watched(asked, tick, say):
        seen.append(read(path))
        for group in whole(asked, tick, say):
            yield group
            seen.append(read(path))

    monkeypatch.setattr(steps, "measure", watched)
    after = run("step", tmp_path)
    assert seen == [before, after[:4], after]


def test_what_was_measured_is_kept_when_the_rest_is_stopped(monkeypatch, tmp_path, capsys):
    whole = steps.measure

    def stopped(asked, tick, say):
        yield next(whole(asked, tick, say))
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "measure", stopped)
    assert main(["bench", "step", *TINY["step"].split(), "--out", str(tmp_path)]) == 130
    (path,) = tmp_path.glob("*.csv")
    assert [row["offset"] for row in read(path)] == ["dct"] * 4
    assert path.name in capsys.readouterr().out


# --- SparseProp -----------------------------------------------------------------------------------------------------


def test_sparseprop_gets_our_supports_and_no_layer_it_cannot_compute(monkeypatch, tmp_path, capsys):
    seen = {}

    def swap(model, input_shape, inplace, skip_modules):
        print("keeping the module dense...")
        seen.update(model=model, input_shape=input_shape, inplace=inplace, skip_modules=skip_modules)
        return model

    monkeypatch.setattr(sparseprop, "_utils", lambda: types.SimpleNamespace(swap_modules_with_sparse=swap))
    grouped = nn.Conv2d(4, 4, 3, groups=2)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), grouped, nn.Conv2d(4, 4, 3, stride=3), nn.Flatten(), nn.Linear(4, 10))
    made = {(one.name, one.memory_format): one.model for one in made_from(net, 0.1, None, (2, 3, 9, 9))}
    assert (seen["input_shape"], seen["inplace"], seen["skip_modules"]) == ((2, 3, 9, 9), True, "1,2")
    ours, theirs = made["ours", "contiguous"], made["sparseprop", "contiguous"]
    for name in ("0", "1", "2", "4"):
        assert torch.equal(theirs.get_submodule(name).weight, ours.get_submodule(name).dense_weight())
    assert "keeping" not in capsys.readouterr().out
    assert "sparseprop" not in [one.name for one in made_from(net, 0.1, "dct", (2, 3, 9, 9))]
    rows = run("step", tmp_path)
    assert [row["contender"] for row in rows] == ["dense", "dense_fused", "published", "ours"] * 2 + ["sparseprop"]
    assert rows[-1]["memory_bytes"] == ""
    assert "left out" not in capsys.readouterr().out


def test_sparseprop_is_absent_or_whole(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for name in ("sparseprop", "sparseprop.utils"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert "pip install" in sparseprop.why_not()
    assert os.environ["OMP_NUM_THREADS"] == "3"


# --- what cannot be measured ----------------------------------------------------------------------------------------


# An installed package, as `make test-plain` has one, does not lie in its repository.
IN_CHECKOUT = Path(__file__).parents[1] / "src" / "dctps" == versions.PACKAGE
NO_SUCH_COMMIT = "has no such commit, branch or tag" if IN_CHECKOUT else "does not lie in a git repository of its own"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("elephant", "unknown subject 'elephant'; choose one of: layers, step, scaling"),
        ("layers --model alexnet", "unknown model 'alexnet'; choose one of: small_cnn, lenet"),
        ("step --models lenet alexnet", "unknown model 'alexnet'"),
        ("step --models", "name at least one model"),
        ("step --offset dct fft", "unknown offset 'fft'; choose one of: dct, dct_signed"),
        ("step --densities 0.1 0", "density"),
        ("layers --density 2", "density"),
        ("scaling --densities 0.1 -1", "density"),
        ("scaling --offset fft", "unknown offset"),
        ("scaling --sizes 64 0", "--sizes must be at least 1, not 0"),
        ("scaling --dense-limit -1", "--dense-limit must not be negative"),
        ("step --steps 0", "--steps must be at least 1, not 0"),
        ("step --warmup 0", "--warmup must be at least 1, not 0"),
        ("step --batch -3", "--batch must be at least 1, not -3"),
        ("layers --repeats 0", "--repeats must be at least 1, not 0"),
        ("layers --threads 0", "--threads must be at least 1, not 0"),
        ("layers --input-shape 3 0 8", "--input-shape must be at least 1, not 0"),
        ("layers --channels-last --input-shape 3 8", "channels x height x width"),
        ("layers --model lenet --input-shape 3 8 8", "lenet does not take inputs of 3 x 8 x 8"),
        ("layers --density 1e-9", "less than one"),
        ("layers --model no_such_module:f", "cannot build 'no_such_module:f' (No module named"),
        ("layers --model test_bench:no_such_function", "has no attribute"),
        ("layers --model test_bench:not_a_network", "returned a int, not an nn.Module"),
        ("step --classes 11", "not (2, 11); see --classes"),
        ("step --model lenet --width 8", "--width is for the ResNets and VGGs of dctps.models, not for lenet"),
        ("step --model resnet18 --width 0", "--width must be at least 1, not 0"),
        ("step --peers published tensorrt", "unknown peer 'tensorrt'; choose one of: dense, dense_fused, published"),
        ("step --against HEAD --peers published", "two versions of dctps and no peers"),
        ("step --against no-such-branch", NO_SUCH_COMMIT),
        ("step --against none.whl", "there is no such wheel"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(arguments, text, tmp_path, capsys):
    subject, *rest = arguments.split()
    tiny = [*TINY[subject].split(), "--out", str(tmp_path)] if subject in TINY else []  # later flags win
    assert main(["bench", subject, *tiny, *rest]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("dctps: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_users_module_is_found_beside_them(tmp_path, monkeypatch):
    (tmp_path / "mynets.py").write_text("from torch import nn\n\ndef f():\n    return nn.Linear(4, 10)\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(networks.build("mynets:f", (4,), 10), nn.Linear)
    assert str(tmp_path) not in sys.path


def test_the_same_network_at_each_call():
    one, two = (networks.build("lenet", (3, 32, 32), 10) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_scaling_counts():
    layer = scaling._ours(scaling.Cell("size", "linear", 16, 0.1), None)
    assert scaling.multiply_adds(layer, dense=False) == layer.nnz == 26


def scaling_row(contender, counted, nnz, milliseconds):
    shape = {"sweep": "size", "layer": "linear", "size": 8, "density": 0.1, "offset": "dct", "batch": 2}
    measured = {"backend": "", "median_ms": milliseconds, "min_ms": 0.0, "ratio_to_dense": None}
    shape |= {"input_shape": "2x8", "nnz": nnz, "contender": contender}
    return scaling.ScalingRow(**shape, **measured, multiply_adds=counted)


def test_the_fit_finds_the_times_of_a_call_of_the_transform_and_of_the_values():
    work = [(100, 1), (200, 10), (400, 5), (900, 70)]  # multiply-adds of D and of S
    ours = [scaling_row("ours", d + s, s, 3 + 0.5 * d + 0.25 * s) for d, s in work]
    dense = [scaling_row("dense", count, 1, 0.125 * count) for count in (64, 256)]  # the least fixed time is zero
    fits = scaling.fitted([*ours, *dense])
    assert [fits[row] for row in (*ours, *dense)] == pytest.approx([row.median_ms for row in (*ours, *dense)])


def test_a_fit_never_falls_with_the_work():
    falling = [scaling_row("ours", d, 0, t) for d, t in ((100, 4.0), (200, 2.0))]
    fits = list(scaling.fitted(falling).values())
    assert fits[0] == fits[1]
    assert fits[0] == pytest.approx((1 / 4 + 1 / 2) / (1 / 16 + 1 / 4))  # the least squared relative error
