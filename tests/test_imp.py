"""Lottery tickets: a case by hand, exact counts, nested supports, everything rewound, and what training may not do."""

import copy
import itertools
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import DpsLinear, Support, imp, sparsify
from dctps.methods.lottery import schedule, survivors, ticket
from dctps.nn.dps_layer import DpsLayer
from helpers.checkpoints import positions_in


def small(seed: int = 0) -> nn.Module:
    """A convolution, BatchNorm and two linear layers: 3*4*9 + 4*6 + 6*3 = 150 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


LAYERS = ["0", "5", "7"]


def sgd(network: nn.Module, start: int = 0, stop: int = 6) -> None:
    """Steps start..stop of a training whose batches follow from the step."""
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.3, momentum=0.9)
    for step in range(start, stop):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 3, 6, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimiser.step()


def weights(network: nn.Module) -> list[nn.Parameter]:
    """The trainable weights, dense or sparse, one tensor per layer."""
    layers = [network.get_submodule(name) for name in LAYERS]
    return [layer.values if isinstance(layer, DpsLayer) else layer.weight for layer in layers]


def sampled(nnz: int) -> dict[str, Support]:
    """So many random places in each layer."""
    return {name: Support.sample(tuple(w.shape), nnz) for name, w in zip(LAYERS, weights(small()), strict=True)}


def total(supports: dict[str, Support]) -> int:
    return sum(support.nnz for support in supports.values())


# --- the algorithm ---------------------------------------------------------------------------------------------------


def test_two_rounds_by_hand():
    # 6 weights, density 1/3, 2 rounds: K_1 = floor(6 / sqrt(3) + 1/2) = floor(3.96) = 3, K_2 = 2
    net = nn.Linear(3, 2, bias=False)
    net.weight.data = torch.tensor([[6.0, 5.0, 4.0], [3.0, 2.0, 1.0]])
    seen, after = [], []

    def train(network):
        if isinstance(network, nn.Linear):  # round 1: the three largest of 1 2 3 / 4 5 6 are in the second row
            seen.append(network.weight.tolist())
            network.weight.data = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])
        else:  # round 2 starts from 3 2 1 at positions 3 4 5; the two largest of 9 2 4 are at 3 and 5
            seen.append((network.positions.tolist(), network.values.tolist()))
            network.values.data *= torch.tensor([-3.0, 1.0, 4.0])

    supports = imp(net, train, 1 / 3, rounds=2, on_round=lambda s: after.append(s[""].positions.tolist()))
    assert seen == [[[6.0, 5.0, 4.0], [3.0, 2.0, 1.0]], ([3, 4, 5], [3.0, 2.0, 1.0])]
    assert after == [[3, 4, 5], [3, 5]]
    assert supports == {"": Support((2, 3), [3, 5])}
    assert net.weight.tolist() == [[6.0, 5.0, 4.0], [3.0, 2.0, 1.0]]
    found = sparsify(net, supports=supports, offset=None)
    assert isinstance(found, DpsLinear)
    assert found.values.tolist() == [3.0, 1.0]


def test_magnitudes_are_compared_over_all_layers():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    net[0].weight.data = torch.tensor([[1.0, -9.0], [2.0, 8.0]])
    net[1].weight.data = torch.tensor([[7.0, -3.0]])
    supports = imp(net, lambda network: None, 0.5, rounds=1)
    assert {name: s.positions.tolist() for name, s in supports.items()} == {"0": [1, 3], "1": [0]}


@settings(max_examples=40)
@given(st.floats(0.005, 1), st.one_of(st.none(), st.integers(1, 5)), st.floats(0.3, 0.9), st.integers(0, 99))
def test_counts_are_exact_and_supports_nested(density, rounds, fraction, seed):
    def train(network):
        for weight in weights(network):
            weight.data.normal_(generator=generator)

    net, generator, after = small(), torch.Generator().manual_seed(seed), []
    supports = imp(net, train, density, rounds=rounds, fraction=fraction, seed=seed, on_round=after.append)
    counts = schedule(150, density, rounds, fraction)
    assert [total(s) for s in after] == counts
    assert total(supports) == max(1, math.floor(density * 150 + 0.5))
    for before, later in itertools.pairwise(after):
        for name in LAYERS:
            assert set(later[name].positions.tolist()) <= set(before[name].positions.tolist())


@pytest.mark.parametrize("density", [0.5, 0.05])
def test_supports_are_those_of_masks_on_a_dense_network(density):
    def oracle() -> dict[str, Support]:
        """Dense weights, masks, gradients masked by hand: the slow way to say the same."""
        masks, last = [torch.ones_like(w) for w in weights(small())], 150
        for count in schedule(150, density):
            network = small()
            for weight, mask in zip(weights(network), masks, strict=True):
                weight.data *= mask
                weight.register_hook(lambda grad, mask=mask: grad * mask)
            sgd(network)
            # one more than the magnitude, so that masked weights, at zero, come last even after true zeros
            scores = torch.cat([((w.abs() + 1) * m).flatten() for w, m in zip(weights(network), masks, strict=True)])
            assert int((scores > 0).sum()) == last
            keep = torch.zeros(150)
            keep[scores.argsort(descending=True)[:count]] = 1
            masks = [k.view_as(m) for k, m in zip(keep.split([m.numel() for m in masks]), masks, strict=True)]
            last = count
        return {name: Support.from_mask(mask > 0) for name, mask in zip(LAYERS, masks, strict=True)}

    assert imp(small(), sgd, density) == oracle()


# --- rewinding -------------------------------------------------------------------------------------------------------


def recorded(net: nn.Module, train, density: float = 0.3, **options):
    """The state of the network at the start of each round, and of the ticket in the end."""
    states = []

    def watch(network):
        states.append((network, copy.deepcopy(network.state_dict())))
        train(network)
        assert any(not torch.equal(new, states[-1][1][key]) for key, new in network.state_dict().items())

    supports = imp(net, watch, density, **options)
    final = ticket(net, supports)
    return [*states, (final, final.state_dict())]


def check_rewound(states, origin: dict[str, torch.Tensor]) -> None:
    for network, state in states:
        for key, tensor in state.items():
            name, _, last = key.rpartition(".")
            if last == "values":
                expected = origin[f"{name}.weight"].flatten()[positions_in(state, name).long()]
                assert torch.equal(tensor, expected), key
            elif last != "_extra_state":
                assert torch.equal(tensor, origin[key]), key
        assert network.training


def test_every_round_starts_from_the_initial_values_and_statistics():
    net = small()
    origin = copy.deepcopy(net.state_dict())
    states = recorded(net, sgd)
    assert len(states) == len(schedule(150, 0.3)) + 1 == 7
    assert [isinstance(network[0], DpsLayer) for network, _ in states] == [False] + [True] * 6
    check_rewound(states, origin)
    assert all(torch.equal(tensor, origin[key]) for key, tensor in net.state_dict().items())  # only read


def test_late_rewinding():
    net = small()
    sgd(net, stop=3)
    origin = copy.deepcopy(net.state_dict())
    assert int(origin["1.num_batches_tracked"]) == 3
    states = recorded(net, lambda network: sgd(network, start=3))
    check_rewound(states, origin)


def test_buffers_outside_the_state_and_attributes_are_rewound_too():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 4), 0
            self.register_buffer("seen", torch.zeros(1), persistent=False)

    def train(network):
        counts.append((network.calls, network.seen.item()))
        network.calls += 1
        network.seen += 1

    counts: list = []
    imp(Counting(), train, 0.5)
    assert counts == [(0, 0.0)] * 3  # 13, 10, 8


def test_excluded_layers_stay_dense_and_are_rewound():
    net = small()
    origin = copy.deepcopy(net.state_dict())
    states = recorded(net, sgd, exclude="7")
    check_rewound(states, origin)
    assert all(isinstance(network[7], nn.Linear) for network, _ in states)
    assert total(imp(net, sgd, 0.3, exclude="7")) == round(0.3 * 132)


def test_no_dense_weight_is_copied_after_the_first_round(monkeypatch):
    copied, original = [], nn.Parameter.__deepcopy__

    def watch(self, memo):
        if id(self) not in memo:
            copied.append(self.numel())
        return original(self, memo)

    monkeypatch.setattr(nn.Parameter, "__deepcopy__", watch)
    found = ticket(small(), sampled(2))
    assert sum(copied) == 4 + 4 + 4 + 6 + 3  # biases and BatchNorm
    assert sum(p.numel() for p in found.parameters()) == sum(copied) + 6


def test_the_ticket_trains_and_stays_sparse():
    supports = imp(small(), sgd, 0.2)
    net = sparsify(small(), supports=supports, offset=None)
    sgd(net)
    assert dctps.report(net).nnz == 30
    assert {name: net.get_submodule(name).support for name in LAYERS} == supports


# --- going on --------------------------------------------------------------------------------------------------------


def test_going_on_after_any_round_ends_the_same():
    after: list = []
    supports = imp(small(), sgd, 0.3, seed=5, on_round=after.append)
    for done in after:
        rest: list = []
        assert imp(small(), sgd, 0.3, seed=5, supports=done, on_round=rest.append) == supports
        assert len(rest) == len(after) - 1 - after.index(done)


def test_supports_that_no_round_leaves():
    supports = sampled(7)
    with pytest.raises(
        ValueError, match="hold 21 weights, which no round leaves; this schedule leaves 120, 96, 77, 75"
    ):
        imp(small(), sgd, 0.5, supports=supports)
    del supports["7"]
    with pytest.raises(ValueError, match=r"the supports are of layers .* those of the network are"):
        imp(small(), sgd, 0.5, supports=supports)


# --- the schedule ----------------------------------------------------------------------------------------------------


def test_schedules_by_hand():
    assert schedule(10, 0.5) == [8, 6, 5]  # 8, 6.4, 5.12
    assert schedule(1000, 0.512) == [800, 640, 512]  # 0.8^3: no fourth round that gives up nothing
    assert schedule(1000, 0.01, rounds=4) == [316, 100, 32, 10]  # 10^-0.5, 10^-1 ...
    assert schedule(4, 0.25, rounds=9) == [3, 2, 1]  # there are only three weights to give up
    assert schedule(100, 0.3, rounds=1) == [30]


def test_rounds_of_the_canonical_fifth():
    resnet50 = 23_467_712
    assert [len(schedule(resnet50, p)) for p in (0.05, 0.01, 0.001, 0.0001)] == [14, 21, 31, 42]
    assert schedule(resnet50, 0.0001)[-1] == 2347


@given(st.integers(1, 10**8), st.floats(1e-9, 1), st.one_of(st.none(), st.integers(1, 60)), st.floats(0.01, 0.99))
def test_schedules_fall_to_exactly_the_budget(size, density, rounds, fraction):
    counts = schedule(size, density, rounds, fraction)
    keep = max(1, math.floor(density * size + 0.5))
    assert [size, *counts][-1] == keep
    assert all(later < before for before, later in zip([size, *counts], counts, strict=False))
    assert rounds is None or len(counts) <= rounds


def test_density_one_gives_nothing_up_and_trains_nothing():
    supports = imp(small(), lambda network: pytest.fail("trained"), 1.0)
    assert total(supports) == 150
    assert ticket(small(), supports)[0].nnz == 108


def test_the_smallest_density_keeps_one_weight():
    supports = imp(small(), sgd, 1e-9, rounds=3)
    assert total(supports) == 1
    sgd(sparsify(small(), supports=supports, offset=None))  # layers without a weight are layers still


# --- ties ------------------------------------------------------------------------------------------------------------


def flat(network: nn.Module) -> None:
    for weight in weights(network):
        weight.data.fill_(-1.0)


def test_ties_are_drawn_from_the_seed():
    first, again, other = (imp(small(), flat, 0.3, seed=seed) for seed in (0, 0, 1))
    assert total(first) == total(other) == 45
    assert first == again != other
    assert min(support.nnz for support in first.values()) > 0  # not the first ones in some order


def test_ties_are_drawn_only_at_the_threshold():
    net = nn.Linear(8, 1, bias=False)
    net.weight.data = torch.tensor([[0.0, 3.0, 1.0, -1.0, 1.0, -2.0, 1.0, 0.0]])
    kept = [survivors(net, [""], 4, seed)[""].positions.tolist() for seed in range(40)]
    assert all({1, 5} <= set(positions) <= {1, 2, 3, 4, 5, 6} for positions in kept)
    assert len({tuple(positions) for positions in kept}) == 6  # every pair of the four ones


def test_the_global_generator_is_left_alone():
    net = small()
    before = torch.get_rng_state()
    imp(net, flat, 0.3)
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision():
    assert total(imp(small().bfloat16(), flat, 0.3)) == 45


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad_round", [1, 2])
def test_weights_that_are_not_finite(number, bad_round):
    def train(network):
        rounds.append(network)
        if len(rounds) == bad_round:
            weights(network)[1].data.view(-1)[2] = number

    net, rounds = small(), []
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match="layer '5' has weights that are not finite after training"):
        imp(net, train, 0.3)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


def replace_layer(network):
    network[7] = nn.Sequential(nn.Linear(6, 3))


def widen(network):
    network[5] = nn.Linear(4, 7)


def add(network):
    network.append(nn.ReLU())


def thaw(network):
    if isinstance(network[0], DpsLayer):
        dctps.densify(network)


def move(network):
    if isinstance(network[0], DpsLayer):
        network[0].move(Support.sample((4, 3, 3, 3), network[0].nnz, seed=9), network[0].values)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            replace_layer,
            "round 1: train changed more than the numbers of the network: 7, 7.0, 7.0.bias, 7.0.weight, 7.b",
        ),
        (widen, "round 1: train changed more than the numbers of the network: 5.bias, 5.weight"),
        (add, "round 1: train changed more than the numbers of the network: 8"),
        (thaw, "round 2: train changed more than the numbers of the network: 0, 0._extra_state, 0.values, 0.weight, 5"),
        (move, "round 2: train moved the supports of 0; they stay fixed in a round"),
        (copy.deepcopy, "round 1: train returned another network; it must train the one it is given, in place"),
    ],
)
def test_training_may_change_nothing_but_numbers(train, message):
    with pytest.raises(ValueError, match=message):
        imp(small(), train, 0.3)


def test_train_may_return_what_it_likes():
    imp(small(), lambda network: network, 0.3)
    imp(small(), lambda network: {"loss": 1.0}, 0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0}, r"density must be in \(0, 1\], not 0"),
        ({"density": 1.5}, r"density must be in \(0, 1\], not 1.5"),
        ({"density": float("nan")}, r"density must be in \(0, 1\], not nan"),
        ({"density": 0.5, "rounds": 0}, "at least one round, not 0"),
        ({"density": 0.5, "fraction": 0.0}, "fraction must be between 0 and 1, not 0.0"),
        ({"density": 0.5, "fraction": 1.0}, "fraction must be between 0 and 1, not 1.0"),
        ({"density": 0.5, "exclude": "nine"}, "exclude='nine' matches no layer"),
        ({"density": 0.5, "backend": "gpu"}, "unknown backend .*'gpu'"),
    ],
)
def test_bad_arguments_are_found_before_training(options, message):
    with pytest.raises(ValueError, match=message):
        imp(small(), lambda network: pytest.fail("trained"), **options)


def test_networks_without_a_dense_start():
    with pytest.raises(ValueError, match="sparse already; lottery tickets are found from the dense one"):
        imp(sparsify(small(), 0.5), sgd, 0.3)
    with torch.device("meta"):
        empty = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="layer '0' is on the meta device: there are no values to rewind to"):
        imp(nn.Sequential(empty), sgd, 0.3)
    with pytest.raises(ValueError, match="no layer to convert"):
        imp(nn.ReLU(), sgd, 0.3)


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_code_of_the_page_runs():
    page = (Path(__file__).parents[1] / "docs" / "subspace.md").read_text()
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "docs/subspace.md", "exec"), names)
    assert names["plain"].fc2.weight.shape == (10, 82)
    assert dctps.report(names["net"]).nnz == 6151
    assert len(schedule(61510, 0.1)) == 11


def test_late_rewinding_starts_every_round_at_that_step():
    """Three steps add 1 to each weight; rounds begin at step 3 with what the weights were then."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    seen = []

    def train(network, start=0, stop=10):
        values = network.values if isinstance(network, DpsLayer) else network.weight
        seen.append((start, stop, values.detach().flatten().tolist()))
        with torch.no_grad():
            values += (stop - start) * torch.arange(1.0, 1 + values.numel()).view(values.shape)

    supports = imp(model, train, 0.25, rounds=2, rewind=3)
    assert seen == [(0, 3, [0, 0, 0, 0]), (3, 10, [3, 6, 9, 12]), (3, 10, [9, 12])]
    assert supports[""].positions.tolist() == [3]
    assert model.weight.tolist() == [[3, 6, 9, 12]]


@pytest.mark.parametrize(("rewind", "supports"), [(-1, None), (2, {"": Support((1, 4), torch.arange(2))})])
def test_late_rewinding_that_cannot_be(rewind, supports):
    with pytest.raises(ValueError, match="rewind"):
        imp(
            nn.Linear(4, 1, bias=False), lambda network, **steps: None, 0.25, rounds=2, rewind=rewind, supports=supports
        )
