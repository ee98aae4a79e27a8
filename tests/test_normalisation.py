"""BatchNorm with few scales and shifts: against torch's own with masked gradients, in files, and its statistics."""

import copy
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import ALLOCATIONS, CheckpointError, Support, allocate
from dctps.checkpoint.contents import read
from dctps.cli.inspection import part_bytes
from dctps.models import build
from dctps.nn.batchnorm import NORMS, SparseBatchNorm, SparseBatchNorm2d
from dctps.nn.costs import count_ops
from dctps.train.processes import Processes, wire_bytes
from helpers.checkpoints import assert_equal_states, rewrite, trained, with_positions
from helpers.networks import assert_unchanged, snapshot
from helpers.processes import environment
from helpers.tolerances import assert_close

INPUTS = {nn.BatchNorm1d: (8, 12), nn.BatchNorm2d: (4, 12, 3, 5), nn.BatchNorm3d: (4, 12, 2, 3, 2)}


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2),
        nn.BatchNorm2d(24, eps=1e-3, momentum=0.3),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
        nn.BatchNorm1d(10),
    )


def pruned(density: float = 0.2, seed: int = 0) -> nn.Sequential:
    return dctps.sparsify_norms(dctps.sparsify(net(), 0.1, seed=seed), density, seed=seed)


def norms(model: nn.Module) -> dict[str, SparseBatchNorm]:
    return {name: m for name, m in model.named_modules() if isinstance(m, SparseBatchNorm)}


# --- what it computes -------------------------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(list(NORMS)),
    nnz=st.integers(0, 12),
    momentum=st.sampled_from([0.1, None]),
    tracked=st.booleans(),
    training=st.booleans(),
)
def test_outputs_and_gradients_are_those_of_batchnorm_with_ones_and_zeros(kind, nnz, momentum, tracked, training):
    """The definition: torch's layer with scale 1 and shift 0 outside the support, and its gradient at the support."""
    support = Support.sample((12,), nnz, seed=3)
    plain = kind(12, momentum=momentum, track_running_stats=tracked, dtype=torch.float64).train(training)
    sparse = NORMS[kind](12, 1e-5, momentum, tracked, dtype=torch.float64, support=support).train(training)
    nn.init.normal_(sparse.scale)
    nn.init.normal_(sparse.shift)
    with torch.no_grad():
        plain.weight[support.positions.long()] = sparse.scale
        plain.bias[support.positions.long()] = sparse.shift
    x = torch.randn(INPUTS[kind], dtype=torch.float64)
    y, expected = sparse(x), plain(x)
    assert torch.equal(y, expected)
    y.sin().sum().backward()
    expected.sin().sum().backward()
    assert_close(sparse.scale.grad, plain.weight.grad[support.positions.long()])
    assert_close(sparse.shift.grad, plain.bias.grad[support.positions.long()])
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        assert not tracked or torch.equal(getattr(sparse, key), getattr(plain, key))


def test_density_one_is_torch_s_own_bit_for_bit_over_steps_of_adam():
    plain = net()
    sparse = dctps.sparsify_norms(copy.deepcopy(plain), 1.0)
    optimisers = [torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=5e-4) for m in (plain, sparse)]
    for step in range(3):
        x, y = torch.randn(8, 3, 9, 9), torch.randint(10, (8,))
        outputs = []
        for model, optimiser in zip((plain, sparse), optimisers, strict=True):
            torch.manual_seed(step)  # of the dropout
            outputs.append(model(x))
            optimiser.zero_grad()
            nn.functional.cross_entropy(outputs[-1], y).backward()
            optimiser.step()
        assert torch.equal(*outputs)
    assert plain[1].weight.ne(1).all()
    for name, norm in norms(sparse).items():
        assert torch.equal(norm.weight, plain.get_submodule(name).weight)
        assert torch.equal(norm.bias, plain.get_submodule(name).bias)
    assert torch.equal(plain.eval()(x), sparse.eval()(x))


def test_only_the_support_trains():
    model = pruned()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(torch.randn(8, 3, 9, 9)).square().sum().backward()
        optimiser.step()
    for norm in norms(model).values():
        mask = norm.support.mask()
        assert torch.equal(norm.weight[~mask], torch.ones(norm.num_features - norm.nnz))
        assert torch.equal(norm.bias[~mask], torch.zeros(norm.num_features - norm.nnz))
        assert bool((norm.weight[mask] != 1).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_and_channels_last_follow_torch_s_own(dtype):
    plain, x = nn.BatchNorm2d(12), torch.randn(4, 12, 6, 6).to(memory_format=torch.channels_last)
    sparse = dctps.sparsify_norms(copy.deepcopy(plain), 0.25)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y, expected = sparse(x.to(dtype)), plain(x.to(dtype))
    assert y.dtype == expected.dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, expected)


def test_half_precision_networks_copies_and_functional_calls():
    model = pruned().to(torch.bfloat16)
    assert {p.dtype for norm in norms(model).values() for p in norm.parameters()} == {torch.bfloat16}
    twin = copy.deepcopy(pruned())
    nn.init.constant_(twin[1].scale, 7.0)
    assert 7.0 not in pruned()[1].weight
    norm = pruned()[1]
    state = {"scale": torch.full((norm.nnz,), 2.0), "shift": torch.ones(norm.nnz)}
    y = torch.func.functional_call(norm.eval(), state, torch.zeros(1, 16, 2, 2))
    assert y.sum() == 4 * norm.nnz


def test_torch_s_own_tools_find_it():
    model = pruned()
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(model[9], nn.BatchNorm1d)
    torch.optim.swa_utils.update_bn([torch.randn(4, 3, 9, 9)], model)
    assert model[1].running_var.ne(1).all()
    with pytest.raises(
        AttributeError, match=r"change norm\.scale"
    ):  # and what would silently change another layer is refused
        model[1].weight = nn.Parameter(torch.ones(16))
    with pytest.raises(TypeError):
        nn.SyncBatchNorm.convert_sync_batchnorm(model)


# --- conversion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_pairs_are_shared_out_like_weights_and_follow_the_seed(allocation):
    first, again, other = (dctps.sparsify_norms(net(), 0.3, allocation=allocation, seed=seed) for seed in (1, 1, 2))
    counts = [norm.nnz for norm in norms(first).values()]
    assert counts == allocate([(16,), (24,), (10,)], 0.3, allocation, seed=1)
    assert [n.support for n in norms(first).values()] == [n.support for n in norms(again).values()]
    assert [n.support for n in norms(first).values()] != [n.support for n in norms(other).values()]


def test_conversion_keeps_values_statistics_arguments_modes_and_hooks():
    model, seen = trained(net()).eval(), []
    norm = model[4]
    norm.register_forward_hook(lambda *_: seen.append(1))
    assert dctps.sparsify_norms(model, 0.5) is model
    new = model[4]
    assert type(new) is SparseBatchNorm2d
    assert torch.equal(new.scale, norm.weight[new.positions.long()])
    assert torch.equal(new.shift, norm.bias[new.positions.long()])
    assert new.running_mean is norm.running_mean
    assert (new.eps, new.momentum, new.training) == (1e-3, 0.3, False)
    model(torch.randn(2, 3, 9, 9))
    assert seen == [1]


@pytest.mark.parametrize("weights", [True, False])
def test_densify_gives_the_same_outputs(weights):
    model = trained(dctps.sparsify_norms(net(), 0.4))
    for _, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.abs_().add_(0.5)  # variances
    model = (dctps.sparsify(model, 0.1) if weights else model).eval()
    x, seen = torch.randn(2, 3, 9, 9), []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    y = model(x)
    assert dctps.densify(model) is model
    assert [type(m) for m in model] == [type(m) for m in net()]
    assert_close(model(x), y)
    assert seen == [1, 1]
    assert model[1].weight.requires_grad
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in net().named_parameters()]
    model.load_state_dict(net().state_dict())


def test_what_has_no_pairs_of_its_own_stays():
    shared = nn.BatchNorm1d(6)
    tied = nn.BatchNorm1d(6)
    tied.weight = shared.weight
    frozen, bare = nn.BatchNorm1d(6).requires_grad_(False), nn.BatchNorm1d(6, affine=False)
    twice = nn.BatchNorm1d(6)
    model = nn.Sequential(shared, tied, frozen, bare, nn.SyncBatchNorm(6), nn.LazyBatchNorm1d(), twice, twice)
    dctps.sparsify_norms(model, 0.5)
    assert list(norms(model)) == ["6"]
    assert model[6] is model[7]
    dctps.sparsify_norms(net(), 0.5, exclude="1")


def test_a_bare_layer_is_returned_anew():
    layer = nn.BatchNorm2d(8)
    assert isinstance(dctps.sparsify_norms(layer, 0.5), SparseBatchNorm2d)
    assert type(dctps.densify(dctps.sparsify_norms(layer, 0.5))) is nn.BatchNorm2d


@pytest.mark.parametrize(
    ("build_net", "options", "message"),
    [
        (net, {"density": 0}, r"density must be in \(0, 1\]"),
        (net, {"density": 0.001}, "density 0.001 of 50 channels is less than one; at least 0.02 keeps one"),
        (net, {"density": 0.5, "allocation": "equal"}, "unknown allocation 'equal'"),
        (net, {"density": 0.5, "exclude": "7"}, "exclude='7' matches no layer; there are: 1, 4, 9"),
        (net, {"density": 0.5, "exclude": ["*"]}, "there is no BatchNorm layer here .* alone .all are excluded"),
        (lambda: nn.Sequential(nn.Linear(3, 3)), {"density": 0.5}, "there is no BatchNorm layer here whose scale"),
        (pruned, {"density": 0.5}, "3 BatchNorm layers are sparse already, the first is '1'; densify first"),
    ],
)
def test_bad_requests_change_nothing(build_net, options, message):
    model = build_net()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        dctps.sparsify_norms(model, **options)
    assert_unchanged(model, before)


def test_meta_networks_are_sparsified_first():
    with torch.device("meta"):
        model = net()
    with pytest.raises(ValueError, match="BatchNorm layer '1' is on the meta device; sparsify the network first"):
        dctps.sparsify_norms(model, 0.5)
    dctps.sparsify_norms(dctps.sparsify(model, 0.1), 0.5)
    assert model(torch.randn(2, 3, 9, 9)).isfinite().all()


def test_a_support_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"a support of shape \(4,\) cannot serve 8 channels"):
        SparseBatchNorm2d(8, support=Support.sample((4,), 2))


def test_the_report_has_a_line_of_its_own():
    model = pruned(0.2)
    report = dctps.report(model)
    assert [(row.name, row.nnz, row.size) for row in report.norms] == [("1", 4, 16), ("4", 3, 24), ("9", 3, 10)]
    assert "scale and shift of 10 channels of 50 (20 %) in 3 BatchNorm layers" in str(report)
    assert report.nnz == dctps.report(dctps.sparsify(net(), 0.1)).nnz  # weights alone
    alone = dctps.report(dctps.sparsify_norms(nn.BatchNorm1d(8), 0.5))
    assert "scale and shift of 4 channels of 8 (50 %) in one BatchNorm layer" in str(alone)
    assert "BatchNorm" not in str(dctps.report(dctps.densify(model)))
    assert repr(pruned()[1]).endswith("nnz=4, density=0.25)")


def test_costs_count_weights_and_not_norms():
    model = dctps.sparsify(net(), 0.1)
    before = count_ops(model.eval(), (3, 9, 9)).performed
    assert count_ops(dctps.sparsify_norms(model, 0.2), (3, 9, 9)).performed == before


# --- state and files --------------------------------------------------------------------------------------------------


def test_state_dicts_go_back_and_forth_and_foreign_ones_are_refused():
    model, other = trained(pruned()), pruned()
    other.load_state_dict(model.state_dict())
    assert_equal_states(model, other)
    assert {k.split(".")[1] for k in model.state_dict() if k.startswith("1.")} == {
        "scale",
        "shift",
        "_extra_state",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    state = model.state_dict()
    for change, message in [
        (with_positions(state, lambda p: p + 16, "1"), "1: position .* is out of range"),
        (with_positions(state, lambda p: p * 0, "1"), "1: position 0 is repeated"),
        (with_positions(state, lambda p: p[1:], "1"), "1: the state holds 3 positions, this layer 4"),
        ({**state, "1.weight": torch.ones(16)}, "1: the state holds a scale for every channel"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            other.load_state_dict(change)
        assert torch.equal(other[1].positions, model[1].positions)


@given(
    density=st.floats(0.02, 1),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    weights=st.booleans(),
    seeded=st.booleans(),
    statistics=st.booleans(),
    into=st.sampled_from(["plain", "sparse", "meta"]),
)
def test_save_then_load_is_bit_equal(tmp_path_factory, density, dtype, weights, seeded, statistics, into):
    path = tmp_path_factory.mktemp("files") / "net.safetensors"

    def convert(model):
        return dctps.sparsify_norms(dctps.sparsify(model, 0.1) if weights else model, density)

    model = trained(convert(net().to(dtype)))
    if not seeded:
        model[4]._hold(Support((24,), Support.sample((24,), model[4].nnz, seed=77).positions))
    dctps.save(model, path, statistics=statistics)
    with torch.device("meta" if into == "meta" else "cpu"):
        other = net().to(dtype)
    if into == "sparse":
        convert(other)
    parameters = [id(p) for p in other.parameters()]
    if statistics:
        assert dctps.load(path, other) is other
    else:
        with pytest.warns(UserWarning, match=r"holds no running statistics.*call dctps.recalibrate"):
            dctps.load(path, other)
        for norm in norms(model).values():
            norm.reset_running_stats()
    assert_equal_states(model, other)
    assert [type(m) for m in model.modules()] == [type(m) for m in other.modules()]
    stale = not seeded and 0 < model[4].nnz < 24
    assert [n.seed is None for n in norms(other).values()] == [False, stale, False]
    if into == "sparse":
        assert [id(p) for p in other.parameters()] == parameters


@pytest.mark.parametrize("statistics", [True, False])
def test_bytes_shrink_as_computed(path, statistics):
    """Two numbers a channel less for all but the pairs, and two more without statistics; the rest is the header."""
    model = dctps.sparsify(build("resnet18", width=8), 0.05)
    channels = sum(m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    dctps.save(model, path)
    whole, size = read(path), path.stat().st_size
    dctps.sparsify_norms(model, 0.1)
    dctps.save(model, path, statistics=statistics)
    less, smaller = read(path), path.stat().st_size
    kept = round(0.1 * channels)
    counter = 8 * 20  # num_batches_tracked of 20 layers
    expected = 4 * 2 * kept + (4 * 2 * channels + counter if statistics else 0)
    parts = part_bytes(less, smaller)
    assert part_bytes(whole, size)["BatchNorm"] == 4 * 4 * channels + counter
    assert parts["BatchNorm"] == expected
    assert parts["positions"] == 0  # by their seed
    assert smaller < size - (4 * 4 * channels + counter - expected)  # the header is shorter as well


def test_files_without_sparse_norms_are_of_version_1(path):
    import json

    from safetensors import safe_open

    def version():
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["dctps"])["version"]

    dctps.save(dctps.sparsify(net(), 0.1), path)
    assert version() == 1
    dctps.save(dctps.sparsify(nn.Linear(4, 4), 0.5), path, statistics=False)  # there are none to leave out
    assert version() == 1
    dctps.save(pruned(), path)
    assert version() == 2
    dctps.save(dctps.sparsify(net(), 0.1), path, statistics=False)
    assert version() == 2
    assert not any("running" in name for name in read(path).tensors)


def numbered(model: nn.Module) -> nn.Module:
    """Every floating number of the state is its index, by thousandths."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) / 1000)
    return model


def test_a_file_of_version_1_loads_bit_equal_and_is_written_alike(path):
    """Written by the first version of the format: two layers by seeds, one by positions, one of them in float64."""
    golden = Path(__file__).parent / "golden" / "net-v1.safetensors"
    model = net()
    model[8].double()
    dctps.sparsify(model, 0.1, offset="dct_signed", train_alpha=False)
    positions = Support.sample((24, 16, 3, 3), model[3].nnz, seed=77).positions
    model[3].move(Support((24, 16, 3, 3), positions), model[3].values)
    numbered(model)
    other = net()
    other[8].double()
    assert_equal_states(dctps.load(golden, other), model)
    assert [m.seed is None for m in (other[0], other[3], other[8])] == [False, True, False]
    dctps.save(other, path)
    assert path.stat().st_size == golden.stat().st_size
    assert read(path).tensors.keys() == read(golden).tensors.keys()


def with_norm(norm: nn.Module) -> nn.Sequential:
    model = net()
    model[1] = norm
    return model


@pytest.mark.parametrize(
    ("build_net", "message"),
    [
        (lambda: with_norm(nn.BatchNorm2d(17)), r"BatchNorm layer '1' has \(channels, nnz\) \(\(17,\), 4\)"),
        (
            lambda: with_norm(nn.BatchNorm2d(16, affine=False)),
            "its '1' is a BatchNorm2d, not a BatchNorm layer with sc",
        ),
        (lambda: with_norm(nn.GroupNorm(4, 16)), "its '1' is a GroupNorm"),
        (lambda: with_norm(nn.BatchNorm2d(16, track_running_stats=False)), r"missing in the network: \['1.num_batches"),
        (lambda: nn.Sequential(*list(net())[:9]), "it has no layer '9'"),
        (lambda: pruned(0.6), r"BatchNorm layer '1' has \(channels, nnz\)"),
    ],
)
def test_files_of_another_network_are_refused_and_the_network_stays(build_net, message, path):
    dctps.save(pruned(), path)
    model = build_net()
    before = snapshot(model)
    with pytest.raises(CheckpointError, match=message):
        dctps.load(path, model)
    assert_unchanged(model, before)


def test_a_file_with_whole_norms_does_not_fit_a_network_with_sparse_ones(path):
    dctps.save(dctps.sparsify(net(), 0.1), path)
    model = pruned()
    before = snapshot(model)
    with pytest.raises(CheckpointError, match="its layer '1' is sparse, in the file it is not"):
        dctps.load(path, model)
    assert_unchanged(model, before)


def set_norm(**fields):
    return {"manifest": lambda m: m["norms"][0].update(fields)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_norm(nnz=5), "should hold"),
        (set_norm(nnz=17), "inconsistent"),
        (set_norm(nnz=-1), "inconsistent"),
        (set_norm(shape=[16, 1]), r"a BatchNorm layer of shape \(16, 1\)"),
        (set_norm(shape=[]), "inconsistent"),
        (set_norm(shape=[3]), "inconsistent"),
        (set_norm(dtype="int8"), "inconsistent"),
        (set_norm(offset="dct"), r"unknown keys \['offset'\]"),
        (set_norm(name="0"), "listed twice"),
        (set_norm(name="4"), "listed twice"),
        (set_norm(seed=None), "dctps/positions should hold"),
        ({"manifest": lambda m: m.update(norms=3)}, "inconsistent"),
        ({"manifest": lambda m: m.pop("norms")}, "should hold 0 elements"),
        ({"manifest": lambda m: m.update(statistics=1)}, "inconsistent: statistics 1"),
        ({"manifest": lambda m: m.update(statistics=False)}, "holds the running statistics '1.* says that it has none"),
        ({"tensors": lambda t: t.pop("dctps/BatchNorm/float32")}, "should hold 20 elements"),
        ({"tensors": lambda t: t.pop("1.running_mean")}, r"missing in the file: \['1.running_mean'\]"),
    ],
)
def test_inconsistent_files_say_so(change, message, path):
    dctps.save(pruned(), path)
    rewrite(path, **change)
    model = net()
    before = snapshot(model)
    with pytest.raises(CheckpointError, match=message):
        dctps.load(path, model)
    assert_unchanged(model, before)


# --- running statistics -----------------------------------------------------------------------------------------------


def test_recalibrate_takes_the_mean_over_batches():
    model, batches = pruned(), [torch.randn(4, 3, 9, 9) * 3 + 1 for _ in range(3)]
    model(torch.randn(4, 3, 9, 9))  # what was seen before does not count
    model[5].train(False)  # a mode of one layer, to find it again
    modes = [m.training for m in model.modules()]
    assert dctps.recalibrate(model, [(x, torch.zeros(4)) for x in batches]) is model
    planes = [model[0](x).detach().transpose(0, 1).flatten(1) for x in batches]
    assert_close(model[1].running_mean, torch.stack([p.mean(1) for p in planes]).mean(0))
    assert_close(model[1].running_var, torch.stack([p.var(1) for p in planes]).mean(0))
    assert [m.training for m in model.modules()] == modes
    assert (model[1].momentum, model[4].momentum) == (0.1, 0.3)
    assert model[1].num_batches_tracked == 3
    assert all(p.grad is None for p in model.parameters())


def test_recalibrate_finds_the_statistics_that_a_file_leaves_out(path):
    batches = [torch.randn(64, 3, 9, 9) for _ in range(8)]
    model = pruned()
    for norm in norms(model).values():
        nn.init.normal_(norm.scale, 1, 0.3)
    dctps.recalibrate(model, batches)
    x = torch.randn(16, 3, 9, 9)
    expected = model.eval()(x)
    dctps.save(model, path, statistics=False)
    other = net().eval()
    with pytest.warns(UserWarning, match="no running statistics"):
        dctps.load(path, other)
    assert not torch.allclose(other(x), expected, atol=0.1)
    dctps.recalibrate(other, iter(batches))
    assert torch.equal(other(x), expected)  # the same batches
    dctps.recalibrate(other, [torch.randn(64, 3, 9, 9) for _ in range(8)])
    error = (other(x) - expected).square().mean().sqrt()  # of other ones: the means of 512 images differ by 1/sqrt(512)
    assert 0 < error < 0.15 < 0.5 < expected.square().mean().sqrt()


def test_recalibrate_leaves_everything_as_it_was_on_error():
    model = trained(pruned())
    before = snapshot(model)
    for batches, error, message in [
        ([], ValueError, "no batch to estimate"),
        ([torch.randn(2, 3, 9, 9), torch.randn(2, 4, 9, 9)], ValueError, "expected an input"),
    ]:
        with pytest.raises(error, match=message):
            dctps.recalibrate(model, batches)
        assert_unchanged(model, before)
        assert model[4].momentum == 0.3
    with pytest.raises(ValueError, match="no BatchNorm layer with running statistics"):
        dctps.recalibrate(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)), [])


# --- several processes ------------------------------------------------------------------------------------------------

PARALLEL = """
    import gc, os, sys, torch, dctps
    import torch.distributed as dist
    from torch import nn
    from dctps.train.processes import Processes
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    dctps.sparsify_norms(dctps.sparsify(model, 0.5), 0.5)
    network = Processes(rank, 2).parallel(model)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(3):
        optimiser.zero_grad()
        network(torch.randn(4, 6)).square().sum().backward()
        optimiser.step()
    norm = model[1]
    both = [torch.empty(2 * norm.nnz) for _ in range(2)]
    dist.all_gather(both, torch.cat([norm.scale, norm.shift]).detach())
    assert torch.equal(*both) and not torch.equal(both[0][: norm.nnz], torch.ones(norm.nnz))
    dist.barrier()  # a process that leaves while the other still talks to it may abort that one
    del network, optimiser
    gc.collect()  # torch's threads of the group end with the last object that uses it, not at the interpreter's exit
    dist.destroy_process_group()
    os._exit(0)
"""


@pytest.mark.process
def test_two_processes_agree_on_scales_and_shifts():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", textwrap.dedent(PARALLEL)]
    address = f"tcp://127.0.0.1:{port}"
    runs = [
        subprocess.Popen([*command, str(rank), address], stderr=subprocess.PIPE, text=True, env=environment())
        for rank in range(2)
    ]
    for run in runs:
        _, error = run.communicate(timeout=120)
        assert run.returncode == 0, error


def test_only_kept_pairs_cross_the_wire():
    plain, sparse = dctps.sparsify(net(), 0.1), pruned(0.2)
    assert wire_bytes(plain)[0] - wire_bytes(sparse)[0] == 4 * 2 * (50 - 10)
    assert Processes().parallel(sparse) is sparse
