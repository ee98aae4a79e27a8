"""`auto`: measured once, kept on disk, never slower than dense, and out of the way where it cannot measure."""

import json
import math

import pytest
import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import dctps
from dctps import DpsConv2d, DpsLinear
from dctps.ops import autotune, eager, functional, measurement, native, stored_times
from dctps.ops.functional import backends
from helpers.tuning import ALL, FAST, UNDISTURBED, forget, isolate, measuring, surroundings


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


def choice(layer, *shape):
    return layer.chosen_backend(torch.randn(shape))


@pytest.mark.parametrize(("dense", "fast", "expected"), [(2.0, 1.0, FAST), (1.0, 2.0, "dense"), (1.0, 1.0, "dense")])
def test_the_fastest_is_chosen(dense, fast, expected, monkeypatch):
    measuring(monkeypatch, dense=dense, **{FAST: fast})
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == expected


def test_one_measurement_per_case(monkeypatch):
    asked = measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer = DpsConv2d(8, 8, 3, nnz=5)
    for _ in range(3):
        choice(layer, 2, 8, 5, 5)
    choice(DpsConv2d(8, 8, 3, nnz=5, seed=9), 2, 8, 5, 5)  # another layer of the same shape and size
    assert asked == ALL
    for other in [(3, 8, 5, 5), (2, 8, 6, 5)]:
        choice(layer, *other)
    layer.chosen_backend(torch.randn(2, 8, 5, 5, requires_grad=True))
    choice(DpsConv2d(8, 8, 3, nnz=50), 2, 8, 5, 5)
    choice(DpsConv2d(8, 8, 3, nnz=5, offset=None), 2, 8, 5, 5)
    choice(DpsConv2d(8, 8, 3, nnz=5, stride=2), 2, 8, 5, 5)
    layer.chosen_backend(torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last))
    with torch.no_grad():
        choice(layer, 2, 8, 5, 5)
    assert asked == ALL * 9


def test_batches_of_nearly_one_size_share_a_measurement(monkeypatch):
    asked = measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer, convolution = DpsLinear(64, 32, nnz=5), DpsConv2d(8, 8, 3, nnz=5)
    for rows in range(33, 65):
        choice(layer, rows, 64)
    for images in range(9, 17):
        choice(convolution, images, 8, 5, 5)
    assert asked == ALL * 2


@pytest.mark.parametrize(
    ("few", "images", "expected"),
    [
        ((1.0, 1.7), [16], "dense"),  # clear
        ((1.7, 1.0), [16], FAST),
        ((1.0, 1.5), [16, 128], FAST),  # in doubt: the whole batch decides, and there ours is faster
        ((13.0, 12.0), [16], FAST),  # in doubt, but 128 images would take too long
    ],
)
def test_a_few_images_decide_where_they_can(few, images, expected, monkeypatch):
    asked = []

    def time(case, contenders):
        asked.append(case.shape[0])
        return dict(zip(contenders, (*(few if case.shape[0] == 16 else (9.0, 8.0)), 5.0), strict=True))

    monkeypatch.setattr(measurement, "_time", time)
    assert choice(DpsConv2d(8, 8, 3, nnz=5), 200, 8, 5, 5) == expected
    assert asked == images


def test_a_backend_that_fails_is_not_chosen(monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("not enough memory")

    monkeypatch.setitem(functional.BACKENDS, FAST, fail)
    monkeypatch.setattr(eager, "multiply", fail)
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == "dense"
    monkeypatch.setitem(functional.BACKENDS, "dense", fail)
    assert choice(DpsLinear(64, 32, nnz=5), 5, 64) == "dense"  # by the rule: nothing could be measured


class Counter(TorchDispatchMode):
    """A mode that lists the operators that run."""

    def __init__(self):
        super().__init__()
        self.ran = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.ran.append(operator.name())
        return operator(*args, **(kwargs or {}))


CONTEXTS = ["checkpoint", "vmap", "grad", "meta", "autocast", "inference", "hooks", "mode"]


@pytest.mark.parametrize("context", CONTEXTS)
def test_measuring_inside_of_other_contexts(context, monkeypatch):
    seen = surroundings(monkeypatch)
    layer, x = DpsLinear(64, 32, nnz=5), torch.randn(4, 64)
    expected = DpsLinear(64, 32, nnz=5, backend="dense")(x)
    if context == "checkpoint":
        y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        y.sum().backward()
    elif context == "vmap":
        y = torch.vmap(layer)(x[:, None])[:, 0]
    elif context == "grad":
        y = expected
        assert torch.func.grad(lambda t: layer(t).sum())(x).shape == x.shape
    elif context == "hooks":
        with torch.autograd.graph.save_on_cpu():
            y = layer(x)
    else:
        contexts = {
            "meta": torch.device("meta"),
            "autocast": torch.autocast("cpu", torch.bfloat16),
            "inference": torch.inference_mode(),
            "mode": Counter(),
        }
        with contexts[context]:
            y = layer(x)
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
    assert seen == ([] if context in ("vmap", "grad") else [UNDISTURBED])  # W is built for torch.func, whatever is fast


def test_a_mode_does_not_see_the_measurement():
    layer, x = DpsLinear(64, 32, nnz=5), torch.randn(4, 64)
    layer(torch.randn(9, 64))
    with Counter() as measured:
        layer(x)
    with Counter() as known:
        layer(x)
    assert measured.ran == known.ran
    assert len(stored_times.used_times()) == 2


def test_other_devices_never_get_the_native_kernels():
    layer = DpsLinear(600, 600, nnz=5).to("meta")
    assert layer.chosen_backend(torch.zeros(1, 600, device="meta")) == "torch"


def test_choices_of_another_installation_do_not_bind(monkeypatch):
    measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer = DpsLinear(64, 32, nnz=5)
    choice(layer, 4, 64)
    (name,) = stored_times.used_times()
    for table in ({"gpu": 0.1, "dense": 1.0}, {}):
        stored_times.prefer_times({name: table})
        assert choice(layer, 4, 64) in backends()
    assert "gpu" not in stored_times.cache_file().read_text()


def test_measurements_are_kept_on_disk(monkeypatch):
    asked = measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer = DpsLinear(64, 32, nnz=5)
    choice(layer, 4, 64)
    assert list(json.loads(stored_times.cache_file().read_text()).values()) == [{"plain": 1.0, "dense": 2.0, FAST: 1.0}]
    forget(monkeypatch)  # another process
    assert choice(layer, 4, 64) == FAST
    assert asked == ALL


def test_a_limit_of_the_instruction_set_has_a_file_of_its_own(monkeypatch):
    files = [stored_times.cache_file()]
    with monkeypatch.context() as patch:
        patch.setattr(native, "instruction_set", lambda: "lesser")
        files.append(stored_times.cache_file())
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "LESSER")
        files.append(stored_times.cache_file())
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "LESSER")
            files.append(stored_times.cache_file())
    assert len(set(files)) == len(files)
    assert stored_times.cache_file() == files[0]


def test_a_run_goes_on_with_its_own_choices(monkeypatch):
    measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer = DpsLinear(64, 32, nnz=5)
    assert choice(layer, 4, 64) == FAST
    kept = stored_times.used_times()
    (name,) = kept
    stored_times.prefer_times({name: {"dense": 1.0, FAST: 2.0}})  # as a machine, or a moment, that measured otherwise
    assert choice(layer, 4, 64) == "dense"
    stored_times.prefer_times(kept)
    assert choice(layer, 4, 64) == FAST


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 3}', '{"a": {"dense": "x"}}', "\x00"])
def test_a_damaged_file_is_measured_again(content, monkeypatch):
    measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    stored_times.cache_file().write_text(content)
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == FAST
    assert len(json.loads(stored_times.cache_file().read_text())) == 1


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    (tmp_path / "file").touch()
    monkeypatch.setenv("DCTPS_CACHE", str(tmp_path / "file"))
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == FAST


def test_switches(monkeypatch):
    asked = measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer = DpsLinear(64, 32, nnz=5)
    monkeypatch.setenv("DCTPS_BACKEND", "torch")
    assert choice(layer, 4, 64) == "torch"
    monkeypatch.setenv("DCTPS_BACKEND", "fast")
    with pytest.raises(ValueError, match="unknown backend"):
        choice(layer, 4, 64)
    monkeypatch.delenv("DCTPS_BACKEND")
    monkeypatch.setenv("DCTPS_TUNE", "0")
    assert choice(layer, 4, 64) == autotune.backend_by_rule(layer.geometry, 5) == "dense"
    monkeypatch.setenv("DCTPS_TUNE", "1")
    with autotune.by_rule():
        assert choice(layer, 4, 64) == "dense"
    assert choice(DpsLinear(64, 32, nnz=5, backend="torch"), 4, 64) == "torch"
    assert asked == []


def test_no_dense_weight_of_a_huge_layer_is_built(monkeypatch):
    asked = measuring(monkeypatch)
    assert choice(DpsLinear(65536, 65536, nnz=5), 1, 65536) == FAST
    assert asked == []


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_real_measurement(dtype, gradients):
    layer = DpsConv2d(16, 16, 3, padding=1, nnz=20, dtype=dtype)
    x = torch.randn(3, 16, 6, 6, dtype=dtype).contiguous(memory_format=torch.channels_last)
    before = torch.get_rng_state()
    with torch.set_grad_enabled(gradients):
        y = layer(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert y.requires_grad == gradients
    ((case, times),) = stored_times._times.items()
    assert set(times) == set(ALL)
    assert 0 < min(times.values()) <= max(times.values()) < math.inf
    assert case.gradients == gradients


def test_the_rule_by_sizes():
    small, large = DpsLinear(8, 8, nnz=1).geometry, DpsLinear(4096, 4096, nnz=1).geometry
    assert autotune.backend_by_rule(small, 1) == "dense"
    assert autotune.backend_by_rule(large, 1000) == FAST
    assert autotune.backend_by_rule(large, 4096 * 4096 // 5) == "dense"


def test_a_backend_that_is_not_there_says_why(monkeypatch):
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr(native, "WHY_NOT", "the native kernels are not there (no compiler)")
    assert backends() == ["dense", "torch"]
    with pytest.raises(ValueError, match=r"no compiler.*auto"):
        DpsLinear(8, 8, nnz=1, backend="native")
    net = dctps.sparsify(torch.nn.Linear(600, 600), 0.01)
    assert torch.isfinite(net(torch.randn(2, 600))).all()


@pytest.mark.skipif(native.kernels is None, reason=native.WHY_NOT)
def test_native_layers_refuse_other_devices():
    layer, x = DpsLinear(8, 8, nnz=1, backend="native").to("meta"), torch.zeros(1, 8, device="meta")
    with pytest.raises(ValueError, match="runs on CPUs"):
        functional.BACKENDS["native"](x, layer.values, layer.positions, None, None, None, layer.geometry)


# --- the reference, and the clock -------------------------------------------------------------------------------------


def test_layers_that_are_slower_than_the_plain_layer(monkeypatch):
    measuring(monkeypatch, dense=1.3, **{FAST: 1.2})
    choice(DpsLinear(64, 32, nnz=5), 4, 64)
    ((case, ratio),) = stored_times.slower_than_plain().items()
    assert (case.geometry.weight_shape, ratio) == ((32, 64), 1.2)
    assert stored_times.slower_than_plain(1.25) == {}
    stored_times.prefer_times({name: {"dense": 9.0} for name in stored_times.used_times()})  # of an earlier version
    choice(DpsLinear(64, 32, nnz=5), 4, 64)
    assert stored_times.slower_than_plain() == {}


def test_the_plain_layer_is_never_chosen(monkeypatch):
    measuring(monkeypatch, dense=math.inf, **{FAST: math.inf})
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == "dense"  # by the rule


def test_without_memory_for_a_measurement_the_rule_decides(monkeypatch):
    def fail(case, contenders):
        raise torch.OutOfMemoryError("not enough memory")

    monkeypatch.setattr(measurement, "_runs", fail)
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == "dense"


@pytest.mark.parametrize(("milliseconds", "rounds"), [(0.01, 50), (0.5, 7), (100.0, 5)])
def test_short_runs_are_repeated_more_often(milliseconds, rounds, monkeypatch):
    ran = []
    monkeypatch.setattr(measurement, "_milliseconds", lambda run, device: ran.append(run.args[0]) or milliseconds)
    choice(DpsLinear(64, 32, nnz=5), 4, 64)
    assert ran == ALL * (1 + rounds)  # in turn, and once before the clock counts


def test_the_shortest_timed_run_counts(monkeypatch):
    runs = {name: iter([0.1, *times, *[9.0] * 50]) for name, times in zip(ALL, ([5.0, 3.0], [4.0], [8.0]), strict=True)}
    monkeypatch.setattr(measurement, "_milliseconds", lambda run, device: next(runs[run.args[0]]))
    assert choice(DpsLinear(64, 32, nnz=5), 4, 64) == "dense"
    assert list(stored_times.used_times().values()) == [{"dense": 3.0, FAST: 4.0, "plain": 8.0}]
