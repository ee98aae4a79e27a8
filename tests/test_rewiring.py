"""Rewiring: the rules by hand and by definition, what never changes, and every way a training loop may look."""

import copy
import gc
import io
import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import nn

import dctps
from dctps import DSR, SET, RigL, Support
from dctps.checkpoint.manifest import valid_seed
from dctps.methods.rewiring import dense_gradient
from dctps.methods.rewiring.by_magnitude import DECAYS, ROUNDINGS
from dctps.methods.rewiring.dsr import shares
from dctps.methods.rewiring.optimiser_state import OptimiserState
from dctps.methods.rewiring.schedule import Schedule
from dctps.nn.dps_layer import DpsLayer
from helpers.rewiring import OPTIMISERS, batch, network


def linear(positions, values, shape=(2, 4), **options) -> dctps.DpsLinear:
    """A layer with these weights."""
    support = Support(shape, torch.tensor(positions))
    layer = dctps.DpsLinear(shape[1], shape[0], bias=False, support=support, **{"offset": None, **options})
    with torch.no_grad():
        layer.values.copy_(torch.as_tensor(values))
    return layer


def backward(layer: dctps.DpsLinear, gradient: torch.Tensor) -> None:
    """A backward pass in which dL/dW is `gradient`: L = <W, gradient>, with the unit vectors as inputs."""
    (layer(torch.eye(layer.in_features, dtype=layer.values.dtype)) * gradient.T).sum().backward()


def content(layer: DpsLayer) -> dict[int, float]:
    return dict(zip(layer.positions.tolist(), layer.values.tolist(), strict=True))


def rewire_now(layer: DpsLayer, optimizer=None, method=RigL, **options):
    """A rewiring whose next iteration drops half of the weights."""
    optimizer = optimizer or torch.optim.SGD(layer.parameters(), lr=0.1)
    defaults = {"stop": 10, "every": 1, "drop_fraction": 0.5}
    return method(layer, optimizer, **{**defaults, **({"decay": "constant"} if method is not DSR else {}), **options})


# --- the schedule ---------------------------------------------------------------------------------------------------


def test_the_papers_schedule():
    net = dctps.DpsLinear(4, 4, nnz=4)
    rewire = RigL(net, torch.optim.SGD(net.parameters(), lr=0.1), stop=52_800)  # 3/4 of 200 epochs of 352 batches
    due = [t for t in range(1, 70_401) if rewire.schedule.due(t)]
    assert len(due) == 527
    assert (due[0], due[-1]) == (100, 52_700)
    assert rewire.fraction(100) == pytest.approx(0.2999973, abs=5e-8)
    assert rewire.fraction(26_400) == pytest.approx(0.15)
    assert math.floor(10 * rewire.fraction(100)) == 2  # not three: it is already less than 0.3


def test_schedules_at_their_edges():
    assert [t for t in range(12) if Schedule(9, 3).due(t)] == [0, 3, 6]  # 0 never comes, 9 is too late
    assert [t for t in range(20) if Schedule(16, 5, start=6).due(t)] == [10, 15]
    assert DECAYS["constant"](5, 10) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stop": 100}, "the first rewiring would be in iteration 100, not before stop=100"),
        ({"stop": 10, "every": 0}, "every must be at least 1"),
        ({"stop": 10, "every": 3, "start": -1}, "start at least 0"),
        ({"stop": 10, "every": 3, "start": 10}, "would be in iteration 12"),
    ],
)
def test_bad_schedules(arguments, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**arguments)


def test_roundings():
    assert [ROUNDINGS["floor"](x, 0.9) for x in (0.0, 0.99, 3.0)] == [0, 0, 3]
    assert [ROUNDINGS["at_least_one"](x, 0.0) for x in (0.0, 0.99, 3.5)] == [1, 1, 3]
    assert [ROUNDINGS["stochastic"](2.25, lot) for lot in (0.0, 0.74, 0.75, 0.99)] == [2, 2, 3, 3]
    layer = linear([0, 3, 5], [1.0, 2.0, 3.0])
    counts = {r: rewire_now(layer, drop_fraction=0.3, rounding=r, stop=5000).count for r in ROUNDINGS}
    assert counts["floor"]("", 1) == 0  # 0.9 of a weight: layers of three never rewire
    assert counts["at_least_one"]("", 1) == 1
    drawn = [counts["stochastic"]("", t) for t in range(1, 1001)]
    assert set(drawn) == {0, 1}
    assert abs(sum(drawn) - 900) < 5 * math.sqrt(1000 * 0.9 * 0.1)
    assert drawn == [counts["stochastic"]("", t) for t in range(1, 1001)]


# --- RigL -----------------------------------------------------------------------------------------------------------


def test_rigl_on_eight_weights():
    """By hand:

    positions   0   1   2   3   4   5   6   7
    S           3  -1   .   .  .5   .   2   .     half of four are dropped: the smallest, at 1 and 4
    |dL/dW|     9   2   8   1   7   6   9   5     of {1, 2, 3, 4, 5, 7}, the largest are at 2 and 4
    S           3   .   0   .  .5   .   2   .     2 is new and 0; 4 comes back and goes on as it was
    exp_avg     1       0       3       4
    """
    layer = linear([0, 1, 4, 6], [3.0, -1.0, 0.5, 2.0])
    optimizer = torch.optim.Adam(layer.parameters())
    moments = {"exp_avg": [1.0, 2.0, 3.0, 4.0], "exp_avg_sq": [5.0, 6.0, 7.0, 8.0]}
    optimizer.state[layer.values] = {"step": torch.tensor(7.0)} | {k: torch.tensor(v) for k, v in moments.items()}
    rewire = rewire_now(layer, optimizer)
    backward(layer, torch.tensor([[9.0, -2, 8, 1], [-7, 6, 9, -5]]))
    rewire.step()
    assert content(layer) == {0: 3, 2: 0, 4: 0.5, 6: 2}
    state = optimizer.state[layer.values]
    assert state["exp_avg"].tolist() == [1, 0, 3, 4]
    assert state["exp_avg_sq"].tolist() == [5, 0, 7, 8]
    assert state["step"] == 7
    assert layer.values.grad is None
    assert (rewire.iteration, rewire.updates) == (1, 1)


def test_set_on_eight_weights():
    """As above; the step of size 0.1 comes first, then two of {1, 2, 3, 4, 5, 7} are drawn."""
    seen = set()
    for seed in range(60):
        layer = linear([0, 1, 4, 6], [3.0, -1.0, 0.5, 2.0])
        rewire = rewire_now(layer, method=SET, seed=seed)
        backward(layer, torch.ones(2, 4))
        rewire.step()
        after = content(layer)
        assert len(after) == 4
        stepped = {0: 2.9, 6: 1.9, 1: -1.1, 4: 0.4}
        assert {0, 6} < set(after)
        assert all(value == pytest.approx(stepped.get(position, 0)) for position, value in after.items())
        seen |= {frozenset(after)}
    assert len(seen) == 15  # all the pairs of six


def test_zeros_are_dropped_first_and_by_lot():
    """Two of the four weights have never moved; they go, though inactive positions are zero as well."""
    layer = linear([0, 1, 4, 6], [0.0, 1e-30, 0.0, -1e-30])
    rewire = rewire_now(layer)
    backward(layer, torch.tensor([[0.0, 0, 0, 5], [0, 6, 0, 0]]))
    rewire.step()
    assert content(layer).keys() == {1, 3, 5, 6}


@pytest.mark.parametrize("offset", ["dct", None])
def test_where_everything_is_zero_old_positions_are_kept(offset):
    """S = 0 in a network with an offset: 99 of 124 stay old ones, and which of them go is a matter of lots."""
    kept = []
    for seed in range(4):
        layer = linear(list(range(0, 496, 4)), [0.0] * 124, (8, 62), offset=offset)
        old = set(layer.positions.tolist())
        rewire = rewire_now(layer, drop_fraction=0.2, seed=seed)
        gradient = torch.zeros(8, 62)
        gradient.view(-1)[1:495:4] = torch.arange(124) + 1.0
        backward(layer, gradient)
        rewire.step()
        new = set(layer.positions.tolist())
        assert len(new) == 124
        assert new - old == set(range(4 * 100 + 1, 495, 4))  # the 24 largest gradients
        kept.append(frozenset(new & old))
    assert len(set(kept)) == 4


@pytest.mark.parametrize("method", [RigL, SET])
def test_lots_are_drawn_anew_for_each_seed_layer_and_iteration(method):
    def choice(seed, name, iteration):
        """What is left of twelve zeros, and what grows; for RigL, in twelve places with equal gradients."""
        net = nn.ModuleDict({name: linear(list(range(0, 48, 4)), [0.0] * 12, (4, 12))})
        rewire = rewire_now(net, torch.optim.SGD(net.parameters(), lr=0.0), method, stop=30, seed=seed)
        state = rewire.state_dict() | {"iteration": iteration - 1}
        rewire.load_state_dict(state)
        backward(net[name], (torch.arange(48) % 4 == 1).float().view(4, 12))
        rewire.step()
        new = set(net[name].positions.tolist())
        return frozenset(p for p in new if p % 4 == 0), frozenset(p for p in new if p % 4)

    cases = [(0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2)]
    choices = [choice(*case) for case in cases]
    assert choices == [choice(*case) for case in cases]
    assert len({grown for _, grown in choices}) == 4
    assert len({kept for kept, _ in choices}) == 4
    if method is RigL:
        assert all(len(kept) == len(grown) == 6 for kept, grown in choices)


def test_zero_gradients_grow_anywhere():
    layer = linear([0, 1, 4, 6], [3.0, 1.0, 0.5, 2.0])
    grown = set()
    for seed in range(80):
        other = copy.deepcopy(layer)
        rewire = rewire_now(other, seed=seed)
        backward(other, torch.zeros(2, 4))
        rewire.step()
        grown |= {frozenset(set(content(other)) - {0, 6})}
    assert len(grown) == 15


def by_definition(positions, values, gradient, count):
    """RigL with dense arrays; no two magnitudes are equal."""
    order = sorted(range(len(positions)), key=lambda i: -abs(values[i]))
    kept = {positions[i] for i in order[: len(order) - count]}
    candidates = [p for p in range(len(gradient)) if p not in kept]
    grown = sorted(candidates, key=lambda p: -abs(gradient[p]))[:count]
    before = dict(zip(positions, values, strict=True))
    return {p: before.get(p, 0.0) for p in sorted(kept | set(grown))}


@given(st.integers(2, 6), st.integers(2, 6), st.floats(0.05, 1.0), st.integers(0, 2**32 - 1), st.data())
def test_rigl_by_definition(rows, columns, drop_fraction, seed, data):
    size = rows * columns
    nnz = data.draw(st.integers(1, size - 1))
    draw = np.random.Generator(np.random.PCG64(seed))
    positions = sorted(draw.permutation(size)[:nnz].tolist())
    values, gradient = draw.standard_normal(nnz).tolist(), draw.standard_normal((rows, columns))
    layer = linear(positions, torch.tensor(values, dtype=torch.float64), (rows, columns), dtype=torch.float64)
    rewire = rewire_now(layer, drop_fraction=drop_fraction)
    backward(layer, torch.from_numpy(gradient))
    rewire.step()
    count = math.floor(nnz * drop_fraction)
    assert content(layer) == by_definition(positions, values, gradient.reshape(-1).tolist(), count)


@pytest.mark.parametrize("method", [RigL, SET])
def test_a_thousand_updates_conserve_what_must_be(method):
    layer = dctps.DpsConv2d(4, 6, 3, padding=1, nnz=20)
    norm = nn.BatchNorm2d(6)
    net = nn.Sequential(layer, norm)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for parameter in net.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(1.0)}
        optimizer.state[parameter] |= {k: torch.ones_like(parameter) for k in ("exp_avg", "exp_avg_sq")}
    rewire = method(net, optimizer, stop=1001, every=1, rounding="stochastic")
    state, values, buffer = optimizer.state[layer.values], layer.values, layer.positions
    for t in range(1, 1001):
        with torch.no_grad():
            layer.values.normal_()
            state["exp_avg"].normal_()
        old, rest = content(layer), {n: p.clone() for n, p in net.named_parameters() if "values" not in n}
        smallest_kept = sorted(map(abs, old.values()))[rewire.count("0", t)]
        net(torch.randn(2, 4, 5, 5)).square().mean().backward()
        rewire.step()
        new = content(layer)
        assert layer.values is values
        assert layer.positions is buffer
        assert len(new) == 20
        assert layer.positions.tolist() == sorted(new)
        assert sum(p in old for p in new) >= 20 - rewire.count("0", t)
        if method is RigL:
            assert all(p in new for p, v in old.items() if abs(v) >= smallest_kept)
            assert all(new[p] == old.get(p, 0) for p in new)
            assert all(torch.equal(p, rest[n]) for n, p in net.named_parameters() if "values" not in n)
        fresh = [i for i, p in enumerate(new) if p not in old]
        assert not any(state[k][i] for k in ("exp_avg", "exp_avg_sq") for i in fresh)
        assert not any(layer.values[i] for i in fresh)
        rewire.zero_grad()
    assert (rewire.updates, rewire.iteration) == (1000, 1000)
    assert Support((6, 4, 3, 3), layer.positions)


@pytest.mark.parametrize(("method", "steps"), [(RigL, 8), (SET, 10), (DSR, 10)])
def test_who_steps_in_an_iteration_that_rewires(method, steps):
    net = nn.Sequential(dctps.DpsLinear(6, 8, nnz=12), nn.ReLU(), dctps.DpsLinear(8, 2, nnz=4))
    optimizer = torch.optim.Adam(net.parameters())
    rewire = method(net, optimizer, stop=10, every=4)
    for t in range(1, 11):
        before = [p.clone() for p in net.parameters()]
        rewire.zero_grad()
        net(torch.randn(9, 6)).square().sum().backward()
        rewire.step()
        moved = any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        assert moved == (method is not RigL or t not in (4, 8)) or t in (4, 8)
        biases = [torch.equal(before[i], p) for i, (n, p) in enumerate(net.named_parameters()) if "bias" in n]
        assert all(biases) == (method is RigL and t in (4, 8))
    assert optimizer.state[net[0].values]["step"] == steps
    assert (rewire.steps, rewire.updates) == (steps, 2)


def test_rigl_finds_the_weights_of_a_teacher():
    """A sparse linear map, learnt from examples: random positions become the teacher's."""
    torch.manual_seed(0)
    teacher = dctps.DpsLinear(40, 20, bias=False, nnz=16, seed=5, offset=None)
    with torch.no_grad():
        teacher.values.copy_(torch.randn(16).sign() * (1 + torch.rand(16)))
    student = dctps.DpsLinear(40, 20, bias=False, nnz=24, seed=6, offset=None)
    assert len(content(student).keys() & content(teacher).keys()) <= 3
    rewire = RigL(student, torch.optim.Adam(student.parameters(), lr=0.05), stop=300, every=10)
    for _ in range(400):
        rewire.zero_grad()
        x = torch.randn(64, 40)
        F.mse_loss(student(x), teacher(x)).backward()
        rewire.step()
    assert content(teacher).keys() < content(student).keys()
    torch.testing.assert_close(student.dense_weight(), teacher.dense_weight(), rtol=0, atol=1e-2)


def test_only_layers_that_can_move_do():
    net = nn.Sequential(
        dctps.DpsLinear(4, 4, density=1.0),
        dctps.DpsLinear(4, 4, nnz=8),
        dctps.DpsLinear(4, 4, nnz=8),
        dctps.DpsLinear(4, 4, nnz=0),
        nn.Linear(4, 4),
    )
    net[2].values.requires_grad_(False)
    before = copy.deepcopy(net)
    rewire = RigL(net, torch.optim.SGD(net.parameters(), lr=0.1), stop=3, every=1, drop_fraction=1.0)
    assert list(rewire.layers) == ["1"]
    net(torch.randn(5, 4)).square().sum().backward()
    rewire.step()
    moved = [i for i in range(4) if net[i].support != before[i].support]
    assert moved == [1]
    full = dctps.DpsLinear(4, 4, density=1.0)
    rewire = rewire_now(full)
    full(torch.randn(2, 4)).sum().backward()
    rewire.step()  # nothing to move is no error
    assert rewire.updates == 1


def test_a_layer_that_no_gradient_reached_stays():
    net = nn.ModuleList([dctps.DpsLinear(4, 4, nnz=8), dctps.DpsLinear(4, 4, nnz=8)])
    before = copy.deepcopy(net)
    rewire = RigL(net, torch.optim.SGD(net.parameters(), lr=0.1), stop=3, every=1, drop_fraction=1.0)
    net[0](torch.randn(5, 4)).square().sum().backward()
    rewire.step()
    assert [net[i].support == before[i].support for i in (0, 1)] == [False, True]


def test_what_a_skipped_step_saw_of_a_layer_is_not_used_later():
    net = nn.ModuleList([dctps.DpsLinear(4, 4, nnz=8), dctps.DpsLinear(4, 4, nnz=8)])
    before, optimizer = copy.deepcopy(net), torch.optim.SGD(net.parameters(), lr=0.1)
    rewire = RigL(net, optimizer, stop=3, every=1, drop_fraction=1.0)
    net[1](net[0](torch.randn(5, 4))).square().sum().backward()  # and no step
    optimizer.zero_grad()
    net[0](torch.randn(5, 4)).square().sum().backward()
    rewire.step()
    assert [net[i].support == before[i].support for i in (0, 1)] == [False, True]


def test_the_global_generators_are_left_alone():
    net = dctps.DpsLinear(8, 8, nnz=20)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for method in (RigL, SET, DSR):
        rewire = rewire_now(net, method=method)
        net(torch.ones(2, 8)).sum().backward()
        rewire.step()
    assert torch.equal(before, torch.get_rng_state())
    assert (np.random.get_state()[1] == numpy_before).all()  # noqa: NPY002


def test_files_and_reports_follow(tmp_path):
    net = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    plain = copy.deepcopy(net)
    dctps.sparsify(net, 0.1)
    rewire = RigL(net, torch.optim.SGD(net.parameters(), lr=0.1), stop=3, every=1)
    y = net(torch.randn(7, 20))
    y.square().sum().backward()
    rewire.step()
    assert valid_seed(net[0].support, net[0].seed) is None
    dctps.save(net, tmp_path / "net")
    loaded = dctps.load(tmp_path / "net", plain)
    x = torch.randn(7, 20)
    assert torch.equal(loaded(x), net(x))
    assert loaded[0].support == net[0].support
    assert dctps.report(net).nnz == dctps.report(loaded).nnz == 75


@pytest.mark.parametrize("backend", ["dense", "torch", "auto"])
def test_plans_follow(backend):
    """Layers compute with their new positions at once, and so do their gradients."""
    layer = dctps.DpsConv2d(3, 5, 3, nnz=20, dtype=torch.float64, backend=backend)
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    rewire = rewire_now(layer)
    for _ in range(3):
        layer(x).square().sum().backward()
        rewire.step()
        with torch.no_grad():
            layer.values.normal_()
        rewire.zero_grad()
        weight = layer.dense_weight().detach().requires_grad_()
        y = F.conv2d(x, weight, layer.bias)
        torch.testing.assert_close(layer(x), y)
        y.sum().backward()
        layer(x).sum().backward()
        torch.testing.assert_close(layer.values.grad, weight.grad.view(-1)[layer.positions.long()])
        rewire.zero_grad()


# --- the optimiser's state ------------------------------------------------------------------------------------------

MOMENTS = {"sgd": 0, "momentum": 1, "momentum fused": 1, "rmsprop": 3, "adagrad": 1}
MOMENTS |= {"adam amsgrad": 3, "adamw fused": 3, "adam": 2, "adam fused": 2, "adam foreach": 2, "adamw": 2}


def by_position(layer, optimizer) -> dict[int, tuple]:
    """The value and the state of each weight."""
    tensors = [layer.values.detach()]
    tensors += [t for t in optimizer.state[layer.values].values() if isinstance(t, torch.Tensor) and t.dim()]
    return {p: tuple(float(t[i]) for t in tensors) for i, p in enumerate(layer.positions.tolist())}


@pytest.mark.parametrize("method", [RigL, SET, DSR])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_state_moves_with_its_weight(name, method):
    net = nn.Sequential(dctps.DpsLinear(6, 8, nnz=16), nn.Tanh(), dctps.DpsLinear(8, 3, nnz=9, offset=None))
    optimizer = OPTIMISERS[name](net.parameters())
    options = {"threshold": 0.05, "drop_fraction": 0.2} if method is DSR else {}
    rewire = method(net, optimizer, stop=41, every=4, **options)
    objects = list(net.parameters())
    for t in range(1, 41):
        rewire.zero_grad()
        net(torch.randn(9, 6)).square().sum().backward()
        if t % 4:
            rewire.step()
            continue
        if method is RigL:
            before = [by_position(layer, optimizer) for layer in net[::2]]
            rewire.step()
        else:  # the step, watched from inside
            inner, before = rewire._rewire, []

            def look(iteration, inner=inner, before=before):
                before += [by_position(layer, optimizer) for layer in net[::2]]
                inner(iteration)

            rewire._rewire = look
            rewire.step()
            rewire._rewire = inner
        after = [by_position(layer, optimizer) for layer in net[::2]]
        zero = (0.0,) * (1 + MOMENTS[name])
        for old, new in zip(before, after, strict=True):
            assert len(old) == len(new) or method is DSR
            assert all(state == old.get(p, zero) or (method is DSR and state == zero) for p, state in new.items())
        assert sum(map(len, before)) == sum(map(len, after)) == 25
    assert all(a is b for a, b in zip(objects, net.parameters(), strict=True))
    assert rewire.updates == 10


class DenseAdam:
    """Adam in dense storage under a mask, moments and all: the definition of optimizer_state="keep"."""

    def __init__(self, weight: torch.Tensor, lr: float) -> None:
        self.weight = weight.clone().requires_grad_()
        self.optimizer = torch.optim.Adam([self.weight], lr=lr)

    def step(self, gradient: torch.Tensor, mask: torch.Tensor) -> None:
        self.weight.grad = gradient * mask
        self.optimizer.step()
        with torch.no_grad():
            self.weight *= mask


@pytest.mark.parametrize("policy", ["keep", "reset"])
def test_kept_state_is_that_of_dense_storage_under_a_mask(policy):
    torch.manual_seed(1)
    layer = dctps.DpsLinear(4, 4, bias=False, nnz=6, offset=None, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    rewire = RigL(layer, optimizer, stop=200, every=5, drop_fraction=0.5, optimizer_state=policy)
    dense, returned, ever = DenseAdam(layer.dense_weight().detach(), 0.05), 0, set(content(layer))
    for t in range(1, 200):
        gradient = torch.randn(4, 4, dtype=torch.float64)
        rewire.zero_grad()
        backward(layer, gradient)
        old = set(content(layer))
        rewire.step()
        if t % 5:
            dense.step(gradient, layer.support.mask())
        returned += len((set(content(layer)) - old) & ever)
        ever |= set(content(layer))
        with torch.no_grad():
            dense.weight *= layer.support.mask()
    assert returned > 20  # there is something to see
    same = torch.allclose(layer.dense_weight(), dense.weight, rtol=1e-10, atol=1e-12)
    assert same == (policy == "keep")
    if policy == "keep":
        state, theirs = optimizer.state[layer.values], dense.optimizer.state[dense.weight]
        where = layer.positions.long()
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(state[key], theirs[key].view(-1)[where], rtol=1e-10, atol=1e-14)
        assert sum(len(m["positions"]) for m in rewire.carrier.memory.values()) <= 16 - 6


class Odd(torch.optim.SGD):
    """It keeps something of another shape."""

    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["pairs"] = torch.zeros(p.numel(), 2)
        return loss


def test_state_that_is_not_of_weights_is_refused_before_anything_moves():
    layer = dctps.DpsLinear(6, 6, bias=False, nnz=12)
    rewire = RigL(layer, Odd(layer.parameters(), lr=0.1), stop=10, every=2)
    for _ in range(2):
        before = content(layer)
        rewire.zero_grad()
        layer(torch.randn(3, 6)).sum().backward()
        if rewire.iteration == 1:
            with pytest.raises(ValueError, match=r"Odd keeps 'pairs' for layer ''.*take an optimiser as SGD"):
                rewire.step()
            assert content(layer) == before
        else:
            rewire.step()


# --- loops as people write them -------------------------------------------------------------------------------------


def loss_of(net, x):
    return net(x).square().sum(1).mean()


def made(method=RigL, optimiser="adam", **options):
    net = network()
    optimizer = OPTIMISERS[optimiser](net.parameters())
    defaults = {"stop": 30, "every": 4}
    return net, optimizer, method(net, optimizer, **{**defaults, **options})


def train(net, rewire, iterations):
    for t in iterations:
        rewire.zero_grad()
        loss_of(net, batch(t)).backward()
        rewire.step()


def same(net, other) -> bool:
    mine, theirs = net.state_dict(), other.state_dict()
    return all(torch.equal(mine[key], theirs[key]) for key in mine)


def close(net, other):
    for mine, theirs in zip(net[::3], other[::3], strict=True):
        assert mine.support == theirs.support
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-9, atol=1e-12)  # sums in another order


@pytest.mark.parametrize("save_at", [3, 8, 18])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (RigL, {}),
        (RigL, {"gradient_batches": 3}),
        (RigL, {"optimizer_state": "keep", "rounding": "stochastic"}),
        (RigL, {"accumulate": True}),
        (SET, {}),
        (DSR, {"threshold": 0.05}),
    ],
    ids=str,
)
def test_going_on_is_bit_equal(method, options, save_at):
    net, optimizer, rewire = made(method, **options)
    train(net, rewire, range(1, save_at + 1))
    file = io.BytesIO()
    states = {"rewire": rewire.state_dict(), "net": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states, file)
    train(net, rewire, range(save_at + 1, 41))
    other, other_optimizer, other_rewire = made(method, **options)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    other_rewire.load_state_dict(states["rewire"])
    other.load_state_dict(states["net"])
    other_optimizer.load_state_dict(states["optimizer"])
    train(other, other_rewire, range(save_at + 1, 41))
    assert same(net, other)
    assert (rewire.iteration, rewire.updates) == (other_rewire.iteration, other_rewire.updates) == (40, 7)
    states, others = rewire.state_dict(), other_rewire.state_dict()
    assert states.keys() == others.keys()
    fresh, _, _ = made(method, **options)
    assert not same(net, fresh) or method is DSR


def test_states_of_other_rewirings_are_refused():
    net, _, rewire = made()
    train(net, rewire, range(1, 6))
    state = rewire.state_dict()
    _, _, other = made(every=5, seed=1)
    with pytest.raises(ValueError, match="belongs to a rewiring with every=4 instead of 5, seed=0 instead of 1"):
        other.load_state_dict(state)
    _, _, other = made(SET)
    with pytest.raises(ValueError, match="method='RigL' instead of 'SET'"):
        other.load_state_dict(state)
    assert other.iteration == 0
    _, _, kept = made(optimizer_state="keep")
    with pytest.raises(ValueError, match="holds the gradient of a layer that is not here"):
        kept.load_state_dict(kept.state_dict() | {"held": {"9": torch.zeros(1)}})
    with pytest.raises(ValueError, match="method=None instead of 'RigL'"):
        kept.load_state_dict({})
    state = kept.state_dict() | {"memory": {"9": {}}}
    with pytest.raises(ValueError, match="no layer '9' to rewire"):
        kept.load_state_dict(state)
    _, _, dsr = made(DSR)
    with pytest.raises(ValueError, match="another network"):
        dsr.load_state_dict(dsr.state_dict() | {"supports": {"9": torch.zeros(1)}})


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_may_be_accumulated(set_to_none):
    whole, _, rewire = made()
    parts, _, accumulating = made(accumulate=True)
    for t in range(1, 30):
        train(whole, rewire, [t])
        accumulating.zero_grad(set_to_none)
        for x in batch(t).chunk(4):
            (loss_of(parts, x) / 4).backward()
        accumulating.step()
    close(whole, parts)
    assert accumulating.updates == 7
    assert accumulating.gradients.held() == {}


def test_a_pass_counts_though_the_support_itself_had_no_gradient():
    """The sum is 0.5, 1, 2 at 2, 3, 5: without the first pass position 2 would win."""
    layer = linear([0, 1, 4, 6], [3.0, 1.0, 0.5, 2.0])
    rewire = rewire_now(layer, accumulate=True)
    for gradient in ([0.0, 0, 5, 0, 0, 0, 0, 0], [0.0, 0, -4.5, 1, 0, 2, 0, 0]):
        backward(layer, torch.tensor(gradient).view(2, 4))
        assert not layer.values.grad.any()
    rewire.step()
    assert content(layer) == {0: 3, 3: 0, 5: 0, 6: 2}


def test_a_second_backward_pass_must_be_declared():
    net, _, rewire = made()
    train(net, rewire, range(1, 4))
    before = copy.deepcopy(net.state_dict())
    rewire.zero_grad()
    loss_of(net, batch(4)).backward()
    with pytest.raises(
        RuntimeError, match=r"a second backward pass through layer '3' before step\(\).*accumulate=True"
    ):
        loss_of(net, batch(5)).backward()
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    train(net, rewire, range(4, 10))  # and after zero_grad all is well
    other, _, undisturbed = made()
    train(other, undisturbed, range(1, 10))
    assert same(net, other)


def test_other_iterations_may_have_as_many_backward_passes_as_they_like():
    net, _, rewire = made()
    for _ in range(3):
        loss_of(net, batch(1)).backward()
    rewire.step()


@pytest.mark.parametrize("batches", [2, 4])
def test_gradients_of_several_iterations_are_summed(batches):
    """The positions that grow are those of the summed gradients of dense twins of the last networks."""
    net, _, rewire = made(gradient_batches=batches, drop_fraction=0.5)
    sums = {}
    for t in range(1, 13):
        rewire.zero_grad()
        weights = [layer.dense_weight().detach().requires_grad_() for layer in net[::3]]
        y = F.conv2d(batch(t), weights[0], net[0].bias).relu().flatten(1)
        F.linear(y, weights[1], net[3].bias).square().sum(1).mean().backward()
        if t % 4 == (1 - batches) % 4:
            sums = {}
        for i, weight in enumerate(weights):
            sums[i] = sums.get(i, 0) + weight.grad
        before = [(layer.positions.tolist(), layer.values.tolist()) for layer in net[::3]]
        loss_of(net, batch(t)).backward()
        rewire.step()
        if t % 4 == 0:
            for i, (layer, (positions, values)) in enumerate(zip(net[::3], before, strict=True)):
                count = rewire.count(["0", "3"][i], t)
                assert content(layer) == by_definition(positions, values, sums[i].view(-1).tolist(), count)


ORDERS = {
    "zero, forward, backward": lambda net, zero, x: (zero(), loss_of(net, x).backward()),
    "forward, zero, backward": lambda net, zero, x: [(loss := loss_of(net, x)), zero(), loss.backward()],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("zero", ["rewire", "optimizer", "model", "zeros", "optimizer's zeros"])
@pytest.mark.parametrize("options", [{}, {"gradient_batches": 2}, {"accumulate": True}], ids=str)
def test_steps_may_be_skipped(options, zero, order):
    """A loop that does not step after a bad batch, however it clears its gradients, is one without that batch."""
    net, optimizer, rewire = made(**options)
    other, _, undisturbed = made(**options)
    clear = {
        "rewire": rewire.zero_grad,
        "optimizer": optimizer.zero_grad,
        "model": net.zero_grad,
        "zeros": lambda: rewire.zero_grad(set_to_none=False),
        "optimizer's zeros": lambda: optimizer.zero_grad(set_to_none=False),
    }[zero]
    if options and zero == "optimizer's zeros":
        pytest.skip("a zero gradient may as well be that of the first of several passes: rewire.zero_grad() is needed")
    for t in range(1, 20):
        # the first of two summed iterations, or the only one
        if t % 4 == (3 if "gradient_batches" in options else 0):
            ORDERS[order](net, clear, batch(100 + t) * float("inf"))
        ORDERS[order](net, clear, batch(t))
        rewire.step()
        train(other, undisturbed, [t])
    assert same(net, other)


def test_a_gradient_scaler_skips_and_goes_on():
    net, _, rewire = made()
    net.float()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=10**6)
    steps = 0
    for t in itertools.count(1):
        rewire.zero_grad()
        scaler.scale(loss_of(net, batch(t).float())).backward()
        scaler.step(rewire)
        scaler.update()
        steps += 1
        if rewire.iteration == 12:
            break
    assert steps > 12  # the first ones overflowed
    assert rewire.updates == 3


def test_closures():
    net, _, rewire = made()
    other, _, plain = made()
    for t in range(1, 10):

        def closure(t=t):
            rewire.zero_grad()
            loss = loss_of(net, batch(t))
            loss.backward()
            return loss

        assert rewire.step(closure).item() > 0
        train(other, plain, [t])
    assert same(net, other)


def test_without_a_backward_pass_there_is_nothing_to_go_by():
    net, _, rewire = made(every=1)
    with pytest.raises(RuntimeError, match="iteration 1 grows weights by their gradient, but no backward pass"):
        rewire.step()
    train(net, rewire, [1])
    assert rewire.iteration == 1


def test_a_gradient_that_is_not_finite_moves_nothing():
    net, _, rewire = made(every=1)
    before = copy.deepcopy(net.state_dict())
    loss_of(net, batch(1) * float("nan")).backward()
    with pytest.raises(RuntimeError, match="the dense gradient of layer '0' is not finite in iteration 1"):
        rewire.step()
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert (rewire.iteration, rewire.updates) == (0, 0)
    train(net, rewire, [1, 2])


@pytest.mark.parametrize("method", [RigL, SET, DSR])
def test_weights_that_are_not_finite_move_nothing(method):
    layer = linear([0, 1, 4, 6], [3.0, float("nan"), 0.5, 2.0])
    rewire = rewire_now(layer, torch.optim.SGD(layer.parameters(), lr=0.0), method=method)
    if method is RigL:
        backward(layer, torch.ones(2, 4))
    with pytest.raises(RuntimeError, match="the weights of layer '' are not finite"):
        rewire.step()
    assert layer.positions.tolist() == [0, 1, 4, 6]


def test_copies_of_a_network_and_networks_without_their_rewiring():
    net, _, rewire = made(every=1)
    assert net[0].observer is not None
    average = torch.optim.swa_utils.AveragedModel(net)
    loss_of(average, batch(1)).backward()
    loss_of(copy.deepcopy(net), batch(1)).backward()
    train(net, rewire, [1])
    del rewire
    gc.collect()
    assert net[0].observer is None


@pytest.mark.process
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_networks(backend):
    """Compiled where nothing is watched, eager where it is; the supports are those of the plain network."""
    import torch._dynamo

    torch._dynamo.reset()
    plain, _, rewire = made()
    train(plain, rewire, range(1, 10))
    net, _, rewire = made()
    compiled = torch.compile(net, backend=backend)
    for t in range(1, 10):
        rewire.zero_grad()
        loss_of(compiled, batch(t)).backward()
        rewire.step()
    assert rewire.updates == 2
    close(plain, net)
    calls = torch._dynamo.utils.counters["stats"]["calls_captured"]
    assert calls > 0
    train(compiled, rewire, range(10, 16))
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] == calls  # new positions, the same graphs


@pytest.mark.process
def test_networks_may_be_compiled_while_they_are_watched():
    plain, _, rewire = made(every=1)
    train(plain, rewire, [1])
    net, _, rewire = made(every=1)
    train(torch.compile(net, backend="aot_eager"), rewire, [1])
    close(plain, net)


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_rewiring_that_is_dropped_while_it_watches_leaves_the_compiler_switched_on(takes_over):
    gc.collect()
    before = dense_gradient._eagerly.watchers
    net, optimizer, rewire = made(every=1)
    if takes_over:
        rewire.take_over()
    assert dense_gradient._eagerly.watchers == before + 1
    del net, optimizer, rewire
    gc.collect()
    assert dense_gradient._eagerly.watchers == before


def test_two_rewirings_do_not_leave_the_compiler_switched_off():
    from torch._dynamo import eval_frame

    gc.collect()
    before = dense_gradient._eagerly.watchers
    (net, _, first), (other, _, second) = made(every=1), made(every=1, stop=2)
    assert dense_gradient._eagerly.watchers == before + 2
    del first, net
    train(other, second, [1])
    assert dense_gradient._eagerly.watchers == before
    assert eval_frame._stance.stance == ("force_eager" if before else "default")


def test_checkpointed_segments_rewire_alike():
    plain, _, rewire = made()
    train(plain, rewire, range(1, 10))
    net, _, rewire = made()
    for t in range(1, 10):
        rewire.zero_grad()
        x = batch(t).requires_grad_()
        y = torch.utils.checkpoint.checkpoint_sequential(net, 2, x, use_reentrant=t % 2 == 0)
        y.square().sum(1).mean().backward()
        rewire.step()
    assert same(plain, net)


@pytest.mark.parametrize("method", [RigL, SET, DSR])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_and_autocast(method, dtype):
    net = network().to(dtype)
    rewire = method(net, torch.optim.SGD(net.parameters(), lr=0.01), stop=10, every=2)
    for t in range(1, 8):
        rewire.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            y = net(batch(t).to(dtype))
        y.float().square().mean().backward()
        rewire.step()
    assert rewire.updates == 3
    assert sum(layer.nnz for layer in net[::3]) == 70


def test_learning_rate_schedules_and_groups_pass_through():
    net, optimizer, rewire = made()
    assert rewire.param_groups is optimizer.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(net, rewire, [1, 2])
    scheduler.step()
    scheduler.step()
    assert rewire.param_groups[0]["lr"] == pytest.approx(0.01)
    assert "RigL(stop=30, every=4" in repr(rewire)
    assert "iteration 2, 0 updates" in repr(rewire)


# --- DSR ------------------------------------------------------------------------------------------------------------


def test_dsr_on_two_layers():
    """By hand, with H = 1, aiming at 20 % of ten weights, and no step (the learning rate is 0):

    layer 0 (12 places)   3  .5  2  .2  4  5      |S| < 1: two of six go, four survive
    layer 1 ( 8 places)  .9  .1  .3  .8           all four go, but the largest stays: one survives
    Five are pruned, more than 2.2: H becomes 0.5. Five are grown, in proportion 4 : 1, so four and one.
    """
    net = nn.Sequential(
        linear([0, 2, 4, 6, 8, 10], [3, 0.5, -2, 0.2, 4, 5], (3, 4)),
        linear([0, 2, 4, 6], [0.9, 0.1, 0.3, -0.8], (2, 4)),
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0)
    rewire = DSR(net, optimizer, stop=5, every=1, drop_fraction=0.2, threshold=1.0)
    values = [layer.values for layer in net]
    for layer in net:
        backward(layer, torch.ones(layer.geometry.weight_shape))
    rewire.step()
    first, second = map(content, net)
    assert (len(first), len(second)) == (8, 2)
    assert {p: v for p, v in first.items() if v} == {0: 3, 4: -2, 8: 4, 10: 5}
    assert {p: v for p, v in second.items() if v} == {0: pytest.approx(0.9)}
    assert rewire.threshold == 0.5
    assert [layer.values for layer in net] == values
    assert [layer.nnz for layer in net] == [8, 2]
    for layer in net:
        state = optimizer.state[layer.values]
        assert all(bool(m) == bool(v) for m, v in zip(state["exp_avg"], layer.values, strict=True))
        assert state["exp_avg_sq"].shape == layer.values.shape
    rewire.zero_grad()
    for layer in net:
        backward(layer, torch.ones(layer.geometry.weight_shape))  # and training goes on
    rewire.step()
    assert rewire.threshold == 0.25  # the five new weights are still 0


def test_dsr_raises_its_threshold():
    layer = linear([0, 1, 4, 6], [3.0, 1.0, 0.5, 2.0])
    rewire = rewire_now(layer, torch.optim.SGD(layer.parameters(), lr=0), method=DSR, drop_fraction=0.25, threshold=0.1)
    thresholds = []
    for _ in range(4):
        backward(layer, torch.ones(2, 4))
        rewire.step()
        thresholds.append(rewire.threshold)
    # none is below 0.1, 0.2, 0.4; then one is below 0.8, exactly as many as wanted
    assert thresholds == [0.2, 0.4, 0.8, 0.8]


def test_dsr_starts_late_and_survives_an_early_start():
    net = network()
    rewire = DSR(net, OPTIMISERS["adam"](net.parameters()), stop=20, every=2, start=7)
    train(net, rewire, range(1, 8))
    assert rewire.updates == 0
    train(net, rewire, range(8, 12))
    assert rewire.updates == 2
    zero = dctps.DpsLinear(6, 6, nnz=9)  # S = 0: everything is below the threshold
    rewire = rewire_now(zero, torch.optim.SGD(zero.parameters(), lr=0), method=DSR)
    zero(torch.randn(2, 6)).sum().backward()
    rewire.step()
    assert zero.nnz == 9


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=6), st.integers(0, 99), st.data()
)
def test_shares_are_exact_and_fit(layers, seed, data):
    weights, room = zip(*layers, strict=True)
    total = data.draw(st.integers(0, sum(room)))
    given_out = shares(total, weights, room, seed)
    assert sum(given_out) == total
    assert all(0 <= share <= places for share, places in zip(given_out, room, strict=True))
    if sum(weights) and all(total * w / sum(weights) + len(weights) <= r for w, r in zip(weights, room, strict=True)):
        ideal = [total * w / sum(weights) for w in weights]
        assert all(abs(share - i) < len(weights) for share, i in zip(given_out, ideal, strict=True))


def test_shares_that_do_not_fit():
    with pytest.raises(ValueError, match="5 weights do not fit into 4 places"):
        shares(5, [1, 1], [2, 2], 0)


# --- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [RigL, SET, DSR])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_fraction": 0.0}, "drop_fraction must be in"),
        ({"drop_fraction": 1.5}, "drop_fraction must be in"),
        ({"drop_fraction": float("nan")}, "drop_fraction must be in"),
        ({"every": 0}, "every must be at least 1"),
        ({"stop": 1}, "not before stop=1"),
        ({"optimizer_state": "zero"}, "unknown optimizer_state 'zero'; choose one of: reset, keep"),
        ({"seed": -1}, "a seed is a non-negative integer"),
    ],
)
def test_bad_options(method, options, message):
    layer = linear([0, 1, 4, 6], [3.0, 1.0, 0.5, 2.0])
    with pytest.raises(ValueError, match=message):
        method(layer, torch.optim.SGD(layer.parameters(), lr=0.1), **{"stop": 10, "every": 2, **options})
    assert layer.observer is None


def test_bad_options_of_one_method():
    layer = linear([0, 1, 4, 6], [3.0, 1.0, 0.5, 2.0])
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for options, message in [
        ({"rounding": "up"}, "unknown rounding 'up'; choose one of: floor, stochastic, at_least_one"),
        ({"decay": "linear"}, "unknown decay 'linear'; choose one of: cosine, constant"),
        ({"gradient_batches": 3}, "gradient_batches must be between 1 and every=2, not 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            RigL(layer, optimizer, **{"stop": 10, "every": 2, **options})
    with pytest.raises(ValueError, match="threshold positive"):
        DSR(layer, optimizer, stop=10, every=2, threshold=0)


def test_bad_networks_and_optimisers():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no sparse layer whose weights could move; sparsify it first"):
        RigL(net, optimizer, stop=200)
    dctps.sparsify(net, 0.5)
    with pytest.raises(ValueError, match="does not hold the values of layer '0'; make it after sparsify"):
        RigL(net, optimizer, stop=200)
    with pytest.raises(ValueError, match="not with LBFGS"):
        RigL(net, torch.optim.LBFGS(net.parameters()), stop=200)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="not with RigL"):
        RigL(net, RigL(net, optimizer, stop=200), stop=200)
    net[1].values = net[0].values
    with pytest.raises(ValueError, match="layers '0' and '1' share their values"):
        SET(net, torch.optim.SGD(net.parameters(), lr=0.1), stop=200)


# --- moving a layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", [[1, 2, 5], [0, 1, 2, 3, 7], []])
def test_a_layer_moves_and_keeps_its_parameter(positions):
    layer = linear([0, 1, 4], [3.0, 1.0, 0.5])
    values = layer.values
    backward(layer, torch.ones(2, 4))
    new = torch.randn(len(positions))
    layer.move(Support((2, 4), torch.tensor(positions, dtype=torch.int64)), new)
    assert layer.values is values is next(layer.parameters())
    assert layer.values.grad is None
    assert layer.positions.dtype == torch.int32
    assert content(layer) == dict(zip(positions, new.tolist(), strict=True))
    assert layer.state_dict().keys() == {"values", "_extra_state"}
    expected = torch.zeros(8)
    expected[positions] = new
    assert torch.equal(layer.dense_weight().view(-1), expected)


def test_a_layer_refuses_to_move_to_another_shape():
    layer = linear([0, 1, 4], [3.0, 1.0, 0.5])
    for support, values in ((Support((4, 2), torch.tensor([0])), 1), (Support((2, 4), torch.tensor([0])), 2)):
        with pytest.raises(ValueError, match="a value for each of its positions"):
            layer.move(support, torch.zeros(values))
    assert content(layer) == {0: 3, 1: 1, 4: 0.5}


def test_state_without_a_step_is_empty():
    layer = linear([0, 1, 4], [3.0, 1.0, 0.5])
    assert OptimiserState(torch.optim.Adam(layer.parameters()), "reset").per_weight("", layer) == {}
