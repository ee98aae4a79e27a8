"""Pruning at initialisation: exact counts, schedules, collapse, data, and a network that is left alone."""

import copy
import itertools
import math
import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dctps
from dctps import METHODS, CollapseError, models, prune
from dctps.base.words import listed
from dctps.experiments.naming import method_name
from dctps.methods.pruning import loop
from dctps.methods.pruning.method import Method
from dctps.methods.pruning.schedule import SCHEDULES, schedule_counts
from dctps.methods.pruning.scored_network import ScoredNetwork
from dctps.methods.pruning.scoring_data import ScoringData, neg_logit
from dctps.nn.prunable import prunable
from dctps.train.settings import Settings

slow = pytest.mark.slow

ON_DATA = [name for name, method in METHODS.items() if method.needs_data]
ITERATED = [name for name, method in METHODS.items() if method.steps > 1]


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.Dropout(0.1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 9, 5),
    )


SIZE = 3 * 8 * 9 + 8 * 8 * 9 + 72 * 5


def data(count=3, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 3, 8, 8, generator=generator), torch.randint(5, (size,), generator=generator))
        for _ in range(count)
    ]


def pruned(net, method, density=0.1, **options):
    return prune(net, method, density, **{"batches": data(), "input_shape": (3, 8, 8)} | options)


# --- every method ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", [1.0, 0.5, 0.1, 0.0123, 1 / SIZE])
def test_exactly_as_many_as_asked(method, density):
    supports = pruned(cnn(), method, density, steps=min(4 if density > 0.01 else 1, METHODS[method].steps))
    assert list(supports) == ["0", "3", "7"]
    assert [s.shape for s in supports.values()] == [(8, 3, 3, 3), (8, 8, 3, 3), (5, 72)]
    assert supports.nnz == supports.asked == max(1, math.floor(density * SIZE + 0.5))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_supports(method):
    net = cnn()
    first = pruned(net, method)
    torch.manual_seed(99)  # of no consequence
    assert pruned(net, method) == first
    assert pickle.loads(pickle.dumps(first)) == first == copy.deepcopy(first)


def test_another_seed_gives_other_supports_where_there_is_chance():
    net = cnn()
    assert pruned(net, "random") != pruned(net, "random", seed=1)
    assert pruned(net, "magnitude") == pruned(net, "magnitude", seed=1)
    assert pruned(net, "synflow") == pruned(net, "synflow", seed=1)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "random"])
def test_supports_follow_a_permutation_of_the_hidden_units(method):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    order = torch.tensor([3, 0, 4, 1, 2])
    other = copy.deepcopy(net)
    other[0].weight.data, other[0].bias.data = net[0].weight.data[order], net[0].bias.data[order]
    other[2].weight.data = net[2].weight.data[:, order]
    options = {"batches": [(torch.randn(7, 6).double(), torch.arange(7) % 4)], "input_shape": (6,)}
    a, b = prune(net, method, 0.4, **options), prune(other, method, 0.4, **options)
    assert torch.equal(a["0"].mask()[order], b["0"].mask())
    assert torch.equal(a["2"].mask()[:, order], b["2"].mask())


@pytest.mark.parametrize("method", METHODS)
def test_supports_go_into_the_same_network(method):
    net, x = cnn().eval(), data()[0][0]
    supports = pruned(net, method, exclude="0")
    assert list(supports) == ["3", "7"]
    masked = copy.deepcopy(net)
    for name, support in supports.items():
        masked.get_submodule(name).weight.data.mul_(support.mask())
    torch.testing.assert_close(dctps.sparsify(net, supports=supports, offset=None)(x), masked(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_the_cost_counts_passes(method):
    entry, cost = METHODS[method], pruned(cnn(), method, 0.5, batches_per_step=2).cost
    passes = {"grasp": (4, 6), "synflow": (100, 100)}.get(method, (2 * entry.steps * entry.needs_data,) * 2)
    assert (cost.forward_passes, cost.backward_passes) == passes
    assert cost.seconds > 0


@pytest.mark.parametrize("method", METHODS)
def test_channels_last_and_float64_networks(method):
    net = cnn()
    expected = pruned(net, method, steps=3)
    assert pruned(net.to(memory_format=torch.channels_last), method, steps=3).nnz == expected.nnz
    if not METHODS[method].needs_data:
        assert pruned(net, method, steps=3) == expected
    double = [(x.double(), y) for x, y in data()]
    assert pruned(net.double(), method, steps=3, batches=double).nnz == expected.nnz


@pytest.mark.parametrize("method", METHODS)
def test_a_single_layer_is_a_network(method):
    layer = nn.Linear(6, 4)
    supports = prune(layer, method, 0.5, batches=[(torch.randn(5, 6), torch.arange(5) % 4)], input_shape=(6,))
    assert {name: s.nnz for name, s in supports.items()} == {"": 12}
    assert isinstance(dctps.sparsify(layer, supports=supports, offset=None), dctps.DpsLinear)


# --- the network is only read ----------------------------------------------------------------------------------------


def same(a, b):
    """Equal, tensors bit by bit (a NaN equals itself)."""
    if isinstance(a, torch.Tensor):
        return a.is_meta or torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(itertools.starmap(same, zip(a, b, strict=True)))
    return a == b


class Witness:
    """Everything about a network that pruning must leave as it is, and torch's random state."""

    def __init__(self, net):
        self.net, self.before = net, self.look(net)

    @staticmethod
    def look(net):
        tensors = [*net.named_parameters(), *net.named_buffers()]
        return {
            "modules": [(name, id(m), m.training, sorted(vars(m))) for name, m in net.named_modules()],
            "hooks": [(list(m._forward_hooks), list(m._backward_hooks)) for m in net.modules()],
            "tensors": [(name, id(t), t.data_ptr(), t._version, t.requires_grad) for name, t in tensors],
            "values": [t.detach().clone() for _, t in tensors],
            "grads": [(id(p.grad), None if p.grad is None else p.grad.clone()) for p in net.parameters()],
            "random": torch.get_rng_state(),
            "grad mode": torch.is_grad_enabled(),
        }

    def check(self):
        for what, before in self.before.items():
            assert same(self.look(self.net)[what], before), what


def lived_in() -> nn.Sequential:
    """A network with a past: gradients, running statistics, hooks, a frozen layer, mixed modes."""
    net = cnn()
    x, y = data()[0]
    nn.functional.cross_entropy(net(x), y).backward()
    net[3].bias.grad = None
    net[7].bias.requires_grad_(False)
    net[2].register_forward_hook(lambda module, inputs, output: None)
    net[1].eval()
    return net


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grad", [True, False])
def test_the_network_is_left_as_it_was(method, grad):
    witness = Witness(lived_in())
    with torch.set_grad_enabled(grad):
        witness = Witness(witness.net)
        loader = DataLoader(TensorDataset(*data(1, 20)[0]), batch_size=8, shuffle=True)  # draws from torch's generator
        pruned(witness.net, method, steps=3, batches=loader)
        witness.check()


def test_the_witness_sees_changes():
    for harm in (
        lambda net: net.train(),
        lambda net: net[0].weight.data.mul_(2),
        lambda net: net.zero_grad(),
        lambda net: net(data()[0][0]),
        lambda net: net[7].bias.requires_grad_(True),
        lambda net: net[0].register_forward_hook(print),
        lambda net: torch.rand(1),
    ):
        witness = Witness(lived_in())
        harm(witness.net)
        with pytest.raises(AssertionError):
            witness.check()


@pytest.mark.parametrize("method", METHODS)
def test_the_network_is_left_as_it_was_after_an_error(method):
    net = lived_in()
    net[7].weight.data[2, 3] = math.nan
    witness = Witness(net)
    if method == "random":
        pruned(net, method)
    else:
        with pytest.raises(ValueError, match=r"not a finite number|the loss of a batch is nan"):
            pruned(net, method)
    witness.check()


@pytest.mark.parametrize("method", ITERATED)
def test_the_network_is_left_as_it_was_after_an_interruption(method):
    witness = Witness(lived_in())

    def stop(step, supports):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pruned(witness.net, method, on_step=stop)
    witness.check()


def test_pruning_works_in_inference_mode():
    net, batches = cnn(), data()
    expected = pruned(net, "snip", batches=batches)
    with torch.inference_mode():
        assert pruned(net, "snip", batches=batches) == expected


# --- schedules and steps ---------------------------------------------------------------------------------------------


def test_schedules_by_hand():
    # 4096 (1/64)^(t/3) = 4096 / 4^t; linear in 3 steps from 1 to 1/4: 3/4, 1/2, 1/4
    assert schedule_counts(4096, 1 / 64, 3) == [1024, 256, 64]
    assert schedule_counts(4096, 0.25, 3, "linear") == [3072, 2048, 1024]


@given(st.integers(1, 10**7), st.floats(1e-5, 1), st.integers(1, 120), st.sampled_from(list(SCHEDULES)))
def test_schedules_fall_to_exactly_what_is_asked(size, density, steps, schedule):
    if density * size < 0.5:
        with pytest.raises(ValueError, match="less than one"):
            schedule_counts(size, density, steps, schedule)
        return
    counts = schedule_counts(size, density, steps, schedule)
    assert len(counts) == steps
    assert sorted(counts, reverse=True) == counts
    assert counts[-1] == max(1, math.floor(density * size + 0.5))
    assert counts[0] <= size


def history(net, method, density=0.05, **options):
    masks = []
    pruned(net, method, density, on_step=lambda step, supports: masks.append(supports), **options)
    return masks


def nested(masks):
    return all(
        bool((later[name].mask() <= earlier[name].mask()).all())
        for earlier, later in itertools.pairwise(masks)
        for name in later
    )


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].recovers])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_pruned_stays_pruned(method, schedule):
    masks = history(cnn(), method, 0.4, steps=6, schedule=schedule)
    counts, most = [sum(s.nnz for s in mask.values()) for mask in masks], schedule_counts(SIZE, 0.4, 6, schedule)
    assert all(count <= limit for count, limit in zip(counts, most, strict=True))
    assert counts[-1] == most[-1]
    assert counts == most or METHODS[method].needs_data  # only where a batch leaves weights without a gradient
    assert nested(masks)


def test_force_lets_weights_recover_by_hand():
    # y = v' U x, x = (1 1)', U = (9 -5; 7 6), v = (1 1), loss y: g = 1 along every path.
    # Step 1, dense: U 9 5 7 6; v = row sums 4 13. Four of six stay: u11 u21 u22 v2.
    # Step 2, U = (9 0; 7 6), v = (0 1): U 0 0 7 6; v = row sums 9 13: v1 would add 9, now that u12 is gone.
    # Three stay: v2 v1 u21. Iter-SNIP cannot have v1 back and takes v2 u21 u22.
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    net[0].weight.data = torch.tensor([[9.0, -5.0], [7.0, 6.0]])
    net[1].weight.data = torch.ones(1, 2)
    steps = {}
    for method in ("force", "iter_snip"):
        steps[method] = []
        prune(
            net,
            method,
            0.5,
            batches=[(torch.ones(1, 2), None)],
            loss=lambda output, labels: output.sum(),
            steps=2,
            schedule="linear",
            on_step=lambda step, supports, seen=steps[method]: seen.append(
                [supports["0"].positions.tolist(), supports["1"].positions.tolist()]
            ),
        )
    assert steps == {"force": [[[0, 2, 3], [1]], [[2], [0, 1]]], "iter_snip": [[[0, 2, 3], [1]], [[2, 3], [1]]]}


def test_force_is_not_nested_on_a_network_of_the_paper():
    net = models.build("lenet")
    batches = [(torch.randn(16, 3, 32, 32), torch.randint(10, (16,))) for _ in range(4)]
    assert not nested(history(net, "force", 0.02, steps=8, batches=batches))
    assert nested(history(net, "iter_snip", 0.02, steps=8, batches=batches))


def slow_iterations(net, batches, density, steps, recovers):
    """Iter-SNIP and FORCE, from their definitions, with a sort."""
    layers = prunable(net)
    w = torch.cat([layer.weight.detach().flatten() for layer in layers.values()])
    mask, K = torch.ones_like(w), math.floor(density * len(w) + 0.5)
    for t in range(1, steps + 1):
        work = copy.deepcopy(net).train()
        parts = (w * mask).split([layer.weight.numel() for layer in layers.values()])
        for name, part in zip(layers, parts, strict=True):
            work.get_submodule(name).weight.data = part.view_as(layers[name].weight)
        x, y = batches[(t - 1) % len(batches)]
        nn.functional.cross_entropy(work(x), y).backward()
        g = torch.cat([work.get_submodule(name).weight.grad.flatten() for name in layers])
        score = (w * g).abs() if recovers else (w * g).abs() * mask
        count = K if t == steps else max(K, math.floor(len(w) * density ** (t / steps)))
        mask = torch.zeros_like(w).index_fill_(0, score.argsort(descending=True)[:count], 1.0)
    return mask.bool()


@pytest.mark.parametrize("method", ["snip", "iter_snip", "force"])
def test_the_loop_is_that_of_the_definition(method):
    net = cnn()
    net[4] = nn.Identity()  # its draws would differ
    steps = min(7, METHODS[method].steps)
    supports = pruned(net, method, 0.03, steps=steps)
    expected = slow_iterations(net, data(), 0.03, steps, METHODS[method].recovers)
    assert torch.equal(torch.cat([s.mask().flatten() for s in supports.values()]), expected)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.uses_sparse_layers])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_sparse_layers_score_as_dense_ones(method, layout, monkeypatch):
    """In float64, where rounding decides between no two weights."""
    net = models.build("resnet18", width=8).double().to(memory_format=layout)
    batches = [(torch.randn(8, 3, 16, 16).double().to(memory_format=layout), torch.arange(8)) for _ in range(3)]
    found = []
    for density in (0, 0.5):  # never; from the first step
        monkeypatch.setattr(loop, "SPARSE_BELOW", density)
        found.append(history(net, method, 0.02, steps=5, batches=batches, batches_per_step=2))
    assert found[0] == found[1]
    assert len(found[0]) == 5


def test_sparse_layers_are_used(monkeypatch):
    monkeypatch.setattr(ScoredNetwork, "apply_mask", None)  # a dense copy would call it
    monkeypatch.setattr(loop, "SPARSE_BELOW", 1.0)
    assert pruned(cnn(), "iter_snip", 0.05, steps=3).nnz == round(0.05 * SIZE)
    with pytest.raises(TypeError):
        pruned(cnn(), "force", 0.05, steps=3)


def test_sparse_layers_collapse_as_dense_ones(monkeypatch):
    net = nn.Sequential(nn.Linear(100, 100, bias=False), nn.ReLU(), nn.Linear(100, 100, bias=False)).double()
    batches = [(torch.ones(4, 100).double(), torch.zeros(4, dtype=torch.long))]
    said = []
    for density in (0, 1.0):
        monkeypatch.setattr(loop, "SPARSE_BELOW", density)
        with pytest.raises(CollapseError) as caught:
            prune(net, "force_paper", 1e-3, batches=batches, steps=30)
        said.append(str(caught.value))
        assert caught.value.step > 20
    assert said[0] == said[1]


def test_a_method_is_a_score_and_an_entry(monkeypatch):
    smallest = Method("Smallest", lambda network, data: (1 / weight.abs() for weight in network.weights))
    monkeypatch.setitem(METHODS, "smallest", smallest)
    net = nn.Linear(2, 2, bias=False)
    net.weight.data = torch.tensor([[1.0, -4.0], [3.0, -2.0]])
    assert prune(net, "smallest", 0.5)[""].positions.tolist() == [0, 3]
    assert method_name(Settings(density=0.5, offset=None, method="smallest")) == "Smallest"


def test_the_papers_force_is_iterated_snip_with_its_loss():
    net = cnn()
    assert pruned(net, "force_paper") == pruned(net, "iter_snip", loss="neg_logit")
    assert pruned(net, "force_paper") != pruned(net, "iter_snip")


def test_neg_logit_is_minus_the_mean_logit():
    assert neg_logit(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([0, 1])) == -(1 + 5) / 2

    def own(logits, labels):
        return -logits[torch.arange(len(labels)), labels].sum() / len(labels)

    net = cnn()
    assert pruned(net, "snip", loss="neg_logit") == pruned(net, "snip", loss=own)


def test_negative_scores_count_in_grasp():
    # density 0.9 needs weights with negative scores too; the rule on positive scores is for the others
    assert pruned(cnn(), "grasp", 0.9).nnz == math.floor(0.9 * SIZE + 0.5)
    # an input that is zero makes 5 of 15 scores zero; they are better than the negative ones, and 14 is no collapse
    net, batches = nn.Linear(3, 5, bias=False), [(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))]
    assert prune(net, "grasp", 14 / 15, batches=batches)[""].nnz == 14
    assert set(range(2, 15, 3)) <= set(prune(net, "grasp", 14 / 15, batches=batches)[""].positions.tolist())


def test_random_is_uniform_over_all_layers():
    net = nn.Sequential(nn.Linear(10, 30, bias=False), nn.Linear(30, 3, bias=False))  # 300 and 90 weights
    counts = np.array([prune(net, "random", 0.1, seed=seed)["0"].nnz for seed in range(200)])
    # hypergeometric: mean 30, variance 39 (30/39) (9/39) (351/389) = 6.2; the mean of 200 within 5 of its deviations
    assert abs(counts.mean() - 30) < 5 * math.sqrt(6.2 / 200)
    assert 4 < counts.var() < 9


# --- collapse --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*ON_DATA, "synflow"])
def test_fixup_networks_cannot_be_scored(method):
    net = models.build("fixup_resnet20")
    batches = [(torch.randn(4, 3, 32, 32), torch.arange(4))]
    with pytest.raises(CollapseError) as caught:
        prune(net, method, 0.01, batches=batches, input_shape=(3, 32, 32))
    error, asked = caught.value, 2683  # 268,336 weights
    assert (error.asked, error.step) == (asked, 1)
    assert f"{asked:,} of 268,336 weights are to be kept" in str(error)
    if method == "grasp":  # the stem alone has a second derivative along the gradient
        assert error.positive == 432
        assert "all weights are zero or pruned in blocks.0.conv2" in str(error)
    else:
        assert error.positive == 0
        assert "a gradient reaches only fc, whose weights are all zero" in str(error)


def blocked() -> nn.Sequential:
    """18 weights; in the first layer the last of three inputs is zero, so 12 of its 18 scores are positive."""
    return nn.Sequential(nn.Linear(3, 6, bias=False))


BLOCKED = [(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([0]))]


def test_too_few_positive_scores():
    net = blocked()
    assert prune(net, "snip", 12 / 18, batches=BLOCKED)["0"].nnz == 12
    with pytest.raises(
        CollapseError, match=r"13 of 18 weights are to be kept, the number with a positive score is 12 \(the others"
    ) as caught:
        prune(net, "snip", 13 / 18, batches=BLOCKED)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert "a density of at most 12/18" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.positive, again.asked, again.step, str(again)) == (12, 13, 1, str(error))


def test_what_is_possible_after_a_collapse():
    net = blocked()
    short = prune(net, "snip", 15 / 18, batches=BLOCKED, on_collapse="short")
    assert short.nnz == 12
    assert short.asked == 15
    assert short.collapse.positive == 12
    assert {p % 3 for p in short["0"].positions.tolist()} == {0, 1}
    filled = [prune(net, "snip", 15 / 18, batches=BLOCKED, on_collapse="random_fill", seed=s) for s in range(3)]
    for supports in filled:
        assert supports.nnz == 15
        assert bool((short["0"].mask() <= supports["0"].mask()).all())
    assert not filled[0] == filled[1] == filled[2]
    assert prune(net, "snip", 0.5, batches=BLOCKED, on_collapse="short").collapse is None


def test_before_the_last_step_fewer_scores_do_where_they_are_enough():
    # k_1 = 17 of 18 cannot be had: the 12 with a score are kept, and 9 in the end
    counts = []
    prune(
        blocked(),
        "iter_snip",
        0.5,
        batches=BLOCKED,
        steps=10,
        on_step=lambda step, supports: counts.append(supports["0"].nnz),
    )
    assert schedule_counts(18, 0.5, 10)[0] == 16
    assert counts[0] == 12
    assert counts[-1] == 9


def deep_chain(layers=12, width=6) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])


@pytest.mark.parametrize("method", ["iter_snip", "force", "force_paper"])
def test_a_collapse_in_a_later_step(method):
    # 12 layers cannot be crossed by 8 weights: at some step no path is left
    net, batches = deep_chain(), [(torch.randn(4, 6), torch.arange(4))]
    density = 8 / (12 * 36)
    with pytest.raises(CollapseError, match="all weights are zero or pruned in") as caught:
        prune(net, method, density, batches=batches)
    assert 1 < caught.value.step <= 60
    assert caught.value.positive < caught.value.asked == 8
    assert "a larger density" in str(caught.value)
    seen = []
    fill = prune(
        net, method, density, batches=batches, on_collapse="random_fill", on_step=lambda *step: seen.append(step)
    )
    assert fill.nnz == 8
    assert len(seen) == fill.collapse.step == caught.value.step  # it ends there
    if not METHODS[method].recovers:
        assert nested([supports for _, supports in seen])


def test_synflow_never_breaks_a_chain_that_can_be_kept():
    supports = prune(deep_chain(), "synflow", 12 / (12 * 36), input_shape=(6,))
    assert [s.nnz for s in supports.values()] == [1] * 12


@pytest.mark.parametrize("method", ON_DATA)
def test_a_loss_that_knows_nothing_of_the_weights(method):
    with pytest.raises(CollapseError, match=r"is 0 \(no layer receives a gradient\)"):
        pruned(cnn(), method, loss=lambda output, labels: torch.zeros(()))


def test_negative_flows_are_never_kept():
    # a LayerNorm subtracts the mean of the channels, so that some flows are negative: outside SynFlow's theory
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6), nn.Linear(6, 3, bias=False))
    with pytest.raises(CollapseError) as caught:
        prune(net, "synflow", 0.95, input_shape=(4,), steps=1)
    positive = caught.value.positive
    assert 0 < positive < 40
    kept = prune(net, "synflow", positive / 42, input_shape=(4,), steps=1)
    assert kept == prune(net, "synflow", 0.95, input_shape=(4,), steps=1, on_collapse="short")


def test_zero_weights_have_no_magnitude():
    net = blocked()
    net[0].weight.data[:, 1:] = 0
    with pytest.raises(CollapseError, match=r"the number with a positive score is 6 \(the other weights are zero\)"):
        prune(net, "magnitude", 0.5)


# --- data ------------------------------------------------------------------------------------------------------------


class Counting(list):
    """A list that counts how often it is iterated."""

    starts = 0

    def __iter__(self):
        self.starts += 1
        return super().__iter__()


def test_a_list_starts_over_and_batches_are_taken_in_turn():
    batches = Counting(data(3))
    pruned(cnn(), "iter_snip", batches=batches, steps=4, batches_per_step=2)  # 8 batches
    assert batches.starts == 3


def test_a_generator_must_last():
    net = cnn()
    expected = pruned(net, "force", batches=data(4), steps=4)
    assert pruned(net, "force", batches=iter(data(4)), steps=4) == expected
    with pytest.raises(ValueError, match=r"ended after 3 batches, .* give a list or a DataLoader"):
        pruned(net, "force", batches=(batch for batch in data(3)), steps=4)


def test_methods_without_data_take_none():
    def never():
        raise AssertionError
        yield

    for method in set(METHODS) - set(ON_DATA):
        pruned(cnn(), method, batches=never(), steps=2)


def test_synflow_takes_the_shape_from_the_first_batch():
    net = cnn()
    assert prune(net, "synflow", 0.1, batches=iter(data(1))) == prune(net, "synflow", 0.1, input_shape=(3, 8, 8))
    for source, shape in ((data(1), None), (None, (3, 8, 8))):
        (ones,) = ScoringData(source, 0, neg_logit, shape, torch.device("cpu")).ones()
        assert torch.equal(ones, torch.ones(1, 3, 8, 8, dtype=torch.float64))


class Sum(nn.Module):
    """A network of two arguments."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, x, y):
        return self.a(x) + self.b(y)


@pytest.mark.parametrize("method", METHODS)
def test_networks_of_several_arguments(method):
    batches = [((torch.randn(6, 3), torch.randn(6, 5)), torch.arange(6) % 4)]
    assert prune(Sum(), method, 0.5, batches=iter(batches * 60)).nnz == 16


def test_labels_per_pixel_and_of_any_integer_type():
    net = nn.Conv2d(2, 3, 1)
    x, y = torch.randn(2, 2, 4, 4), torch.randint(3, (2, 4, 4))
    for loss in ("cross_entropy", "neg_logit"):
        options = {"loss": loss}
        expected = prune(net, "snip", 0.5, batches=[(x, y)], **options)
        assert prune(net, "snip", 0.5, batches=[(x, y.to(torch.uint8))], **options) == expected


def test_a_layer_that_is_not_used_is_pruned():
    net = Sum()
    net.unused = nn.Linear(3, 3)
    batches = [((torch.randn(6, 3), torch.randn(6, 5)), torch.arange(6) % 4)]
    assert prune(net, "snip", 0.5, batches=batches)["unused"].nnz == 0


# --- bad input -------------------------------------------------------------------------------------------------------

X, Y = data(1)[0]
EMPTY = nn.Linear(2, 1, bias=False)
EMPTY.weight = nn.Parameter(torch.empty(0, 2))
BAD = {
    "unknown pruning method 'sinp'; choose one of: random, magnitude, snip": {"method": "sinp"},
    r"density must be in \(0, 1\], not 0": {"density": 0},
    r"density must be in \(0, 1\], not 1.5": {"density": 1.5},
    r"density must be in \(0, 1\], not nan": {"density": math.nan},
    "density 1e-05 of 1,152 weights is less than one; at least 0.00087 keeps one": {"density": 1e-5},
    "steps must be an integer of at least 1, not 0": {"steps": 0},
    "steps must be an integer of at least 1, not 2.5": {"steps": 2.5},
    "batches_per_step must be an integer of at least 1, not 0": {"batches_per_step": 0},
    "unknown schedule 'cosine'; choose one of: exponential, linear": {"schedule": "cosine"},
    "unknown loss 'mse'; choose one of: cross_entropy, neg_logit": {"loss": "mse"},
    "unknown on_collapse 'ignore'; choose one of: error, short, random_fill": {"on_collapse": "ignore"},
    "snip scores weights on data: give batches=": {"batches": None},
    "batches= is empty": {"batches": []},
    r"batches= must be an iterable of pairs \(inputs, labels\), not a int": {"batches": 3},
    r"a batch is a pair \(inputs, labels\), not a Tensor; a single batch is given as": {"batches": (X, Y)},
    "not a tuple of 3": {"batches": [(X, Y, Y)]},
    "a tensor or a tuple of tensors, not a list": {"batches": [([1.0], Y)]},
    "labels reach from 0 to 5, but the network has classes 0 to 4": {"batches": [(X, torch.arange(8) % 6)]},
    "labels reach from -1 to 3": {"batches": [(X, torch.arange(8) % 5 - 1)]},
    r"labels have shape \(7,\), the logits \(8, 5\) need \(8,\)": {"batches": [(X, Y[:7])]},
    "labels are an integer tensor of class numbers, not torch.float32": {"batches": [(X, Y.float())]},
    "labels are an integer tensor of class numbers, not a list": {"batches": [(X, Y.tolist())]},
    "a batch is empty": {"batches": [(X[:0], Y[:0])]},
    r"one number, not a tensor of shape \(8, 5\); take its mean": {"loss": lambda output, labels: output},
    "one number, not a float": {"loss": lambda output, labels: 1.0},
    "the loss of a batch is nan; every output is finite": {"loss": lambda output, labels: output.sum() * math.nan},
    "the loss of a batch is nan; the first output that is not finite is that of '0'": {"batches": [(X * math.nan, Y)]},
    "exclude='nothing' matches no layer": {"exclude": "nothing"},
    r"there is no layer to convert in this network \(all are excluded\)": {"exclude": [nn.Conv2d, nn.Linear]},
    "no layer to convert": {"model": nn.Sequential(nn.ReLU())},
    "layer '0' is on the meta device": {"model": nn.Sequential(nn.Linear(2, 2, device="meta"))},
    r"has a weight of shape \(0, 2\)": {"model": nn.Sequential(EMPTY)},
    "synflow needs the shape of an example": {"method": "synflow", "batches": None},
    r"input_shape is that of one example, .* not 3": {"method": "synflow", "input_shape": 3},
    r"input_shape is that of one example, .* not \(\)": {"method": "synflow", "input_shape": ()},
    r"input_shape is that of one example, .* not \(0, 8\)": {"method": "synflow", "input_shape": (0, 8)},
    r"does not take an input of shape \(1, 4, 8, 8\)": {"method": "synflow", "input_shape": (4, 8, 8)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message):
    options = {"model": lived_in(), "method": "snip", "density": 0.1, "batches": data()} | BAD[message]
    witness = Witness(options["model"])
    with pytest.raises(ValueError, match=message):
        prune(**options)
    witness.check()


def test_outputs_that_are_no_logits():
    flat = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    batches = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(ValueError, match=r"output has shape \(4,\), not \(batch, classes\); give a loss="):
        prune(flat, "snip", 0.5, batches=batches)


def test_sparse_networks_are_refused():
    net = dctps.sparsify(cnn(), 0.1)
    with pytest.raises(ValueError, match=r"sparse already \(layers 0, 3, 7\); prune it before, or densify it"):
        pruned(net, "magnitude")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", ["magnitude", "synflow"])
def test_scores_that_are_not_finite_name_the_layer(method, value):
    net = cnn()
    net[3].weight.data[0, 0, 0, 0] = value
    with pytest.raises(ValueError, match=r"at step 1 layer '[03]' has a score that is not a finite number"):
        pruned(net, method)


def test_networks_that_cannot_be_copied():
    net = cnn()
    net.memory = net[0].weight * 2  # part of a graph
    assert pruned(net, "magnitude").nnz == 115
    with pytest.raises(ValueError, match="this network cannot be copied, and scores are taken on a copy"):
        pruned(net, "snip")


def test_long_lists_of_names_are_cut():
    assert listed(list("abc")) == "a, b, c"
    assert listed(list("abcdefgh")) == "a, b, c, d, e, f and 2 more layers"


@settings(max_examples=30)
@given(st.sampled_from(list(METHODS)), st.floats(0.01, 1), st.integers(1, 5), st.integers(0, 3))
def test_any_request_gives_what_was_asked(method, density, steps, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    options = {"batches": [(torch.randn(6, 5), torch.arange(6) % 3)], "input_shape": (5,), "steps": steps}
    supports = prune(net, method, density, seed=seed, on_collapse="random_fill", **options)
    assert supports.nnz == math.floor(density * 56 + 0.5)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_printed_where_there_is_no_terminal(method, capsys):
    pruned(cnn(), method)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    pruned(cnn(), "synflow")
    assert "synflow, density 0.1" in capsys.readouterr().err
    pruned(cnn(), "synflow", progress=False)
    assert capsys.readouterr() == ("", "")


# --- what the paper reports ------------------------------------------------------------------------------------------


@slow
def test_synflow_empties_the_shortcuts_of_a_resnet50_first_and_is_fair_to_the_rest():
    history = []
    supports = prune(
        models.build("resnet50"),
        "synflow",
        1e-3,
        input_shape=(3, 32, 32),
        on_step=lambda step, supports: history.append({name: s.nnz for name, s in supports.items()}),
    )
    shortcuts = {f"layer{stage}.0.shortcut.0" for stage in (1, 2, 3, 4)}
    assert {name for name, s in supports.items() if s.nnz == 0} == shortcuts
    counts = [s.nnz for name, s in supports.items() if name not in shortcuts]
    assert sum(counts) == 23_468
    assert len(counts) == 50
    assert max(counts) < 1.5 * np.mean(counts)  # of 469
    assert min(counts) > np.mean(counts) / 1.5
    early = next(counts for counts in history if all(counts[name] == 0 for name in shortcuts))
    assert sum(early.values()) > 0.2 * 23_467_712  # long before anything is scarce elsewhere
    assert min(count for name, count in early.items() if name not in shortcuts) > 1000


@slow
def test_force_collapses_on_vgg19_below_what_the_paper_reports():
    net = models.build("vgg19")
    batches = [(torch.randn(8, 3, 32, 32), torch.randint(10, (8,))) for _ in range(4)]
    assert prune(net, "force", 1e-3, batches=batches, steps=20).nnz == 20_024
    with pytest.raises(CollapseError, match="all weights are zero or pruned in features") as caught:
        prune(net, "force", 1e-4, batches=batches, steps=20)
    assert caught.value.positive < caught.value.asked == 2002
    assert caught.value.step < 20
