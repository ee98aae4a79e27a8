"""Counts per layer: golden cases by hand, the published totals, and exactness as a property."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dctps.core.allocation import ALLOCATIONS, allocate, apportion, budget, draw_supports, strict_filter_counts
from helpers.network_shapes import NETWORKS

EXACT = [rule for rule in ALLOCATIONS if "paper" not in rule and rule != "erk_google"]
PAPER_DENSITIES = [0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001]

# P N of every row of the table below, rounded to the one digit it has there
TARGETS = {
    ("resnet50", 0.05): 1173385.6,
    ("resnet50", 0.01): 234677.1,
    ("resnet50", 0.001): 23467.7,
    ("resnet50", 0.0001): 2346.8,
    ("vgg19", 0.05): 1001200,
    ("vgg19", 0.01): 200240,
    ("vgg19", 0.0001): 2002.4,
    ("resnet18", 0.01): 111643.5,
    ("mobilenetv2", 0.01): 22618.2,
    ("mobilenetv2", 0.0001): 226.2,
    ("fixup_resnet110", 0.001): 1719.9,
    ("lenet", 0.01): 615.1,
}

# network, density: kept totals of EPL static / EPL RigL / ERK static / ERK RigL / ERK of the RigL authors,
# as observed by running the published codes
PUBLISHED = [
    ("resnet50", 0.05, 1102413, 1102458, 1146787, 1146840, 1173439),
    ("resnet50", 0.01, 234632, 234684, 234654, 234708, 234727),
    ("resnet50", 0.001, 23436, 23490, 23443, 23497, 23516),
    ("resnet50", 0.0001, 2322, 2376, 2320, 2374, 2399),
    ("vgg19", 0.05, 868228, 868242, 954458, 954473, 1001212),
    ("vgg19", 0.01, 183518, 183533, 195951, 195967, 200254),
    ("vgg19", 0.0001, 1989, 2006, 1996, 2013, 2013),
    ("resnet18", 0.01, 107852, 107871, 110468, 110488, 111666),
    ("mobilenetv2", 0.01, 22564, 22620, 22586, 22644, 22669),
    ("mobilenetv2", 0.0001, 174, 232, 196, 254, 295),
    ("fixup_resnet110", 0.001, 1650, 1760, 1665, 1775, 1847),
    ("lenet", 0.01, 615, 620, 613, 618, 619),
]
PUBLISHED_RULES = ["epl_paper", "epl_paper_rigl", "erk_paper", "erk_paper_rigl", "erk_google"]

layer_shapes = st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=4).map(tuple), min_size=1, max_size=8)


def test_networks_have_the_layers_and_weights_of_the_paper():
    sizes = {name: (len(shapes), sum(map(math.prod, shapes))) for name, shapes in NETWORKS.items()}
    assert sizes == {
        "resnet50": (54, 23_467_712),
        "vgg19": (17, 20_024_000),
        "resnet18": (21, 11_164_352),
        "mobilenetv2": (58, 2_261_824),
        "fixup_resnet110": (110, 1_719_856),
        "lenet": (5, 61_510),
    }


@pytest.mark.parametrize(("network", "density", *PUBLISHED_RULES), PUBLISHED)
def test_published_rules_keep_the_published_totals(
    network, density, epl_paper, epl_paper_rigl, erk_paper, erk_paper_rigl, erk_google
):
    totals = [sum(allocate(NETWORKS[network], density, rule)) for rule in PUBLISHED_RULES]
    assert totals == [epl_paper, epl_paper_rigl, erk_paper, erk_paper_rigl, erk_google]


@pytest.mark.parametrize(("network", "density"), TARGETS)
def test_budgets_are_the_published_targets_rounded(network, density):
    target = TARGETS[network, density]
    size = sum(map(math.prod, NETWORKS[network]))
    assert density * size == pytest.approx(target, abs=0.051)
    assert budget(size, density) == math.floor(density * size + 0.5)
    assert {(row[0], row[1]) for row in PUBLISHED} == set(TARGETS)


@pytest.mark.parametrize(
    ("network", "density", "count"),
    [
        ("resnet50", 1e-3, 434),
        ("resnet50", 1e-4, 43),
        ("vgg19", 1e-4, 117),
        ("mobilenetv2", 1e-4, 3),
        ("fixup_resnet110", 1e-3, 15),
        ("lenet", 1e-2, 123),
    ],
)
def test_published_epl_counts_per_layer(network, density, count):
    counts = allocate(NETWORKS[network], density, "epl_paper")
    assert counts[:-1] == [count] * (len(counts) - 1)
    assert sum(counts) == {(row[0], row[1]): row[2] for row in PUBLISHED}[network, density]


@pytest.mark.parametrize(
    ("network", "density", "share"),
    [
        ("resnet50", 0.05, {"epl_paper": 94.0, "erk_paper": 97.7}),
        ("vgg19", 0.05, {"epl_paper": 86.7, "erk_paper": 95.3}),
        ("vgg19", 0.02, {"erk_paper": 96.4}),
        ("vgg19", 0.01, {"erk_paper": 97.9}),
        ("resnet18", 0.05, {"epl_paper": 88.4, "erk_paper": 94.2}),
    ],
)
def test_published_rules_lose_what_they_lost(network, density, share):
    target = density * sum(map(math.prod, NETWORKS[network]))
    kept = {rule: 100 * sum(allocate(NETWORKS[network], density, rule)) / target for rule in share}
    assert kept == pytest.approx(share, abs=0.051)


def test_uniform_paper_empties_the_small_layers_the_paper_collapses_on():
    empty = [name for name in NETWORKS for _ in range(allocate(NETWORKS[name], 1e-4, "uniform_paper").count(0))]
    assert {name: empty.count(name) for name in ("resnet50", "vgg19", "resnet18", "mobilenetv2")} == {
        "resnet50": 2,
        "vgg19": 2,
        "resnet18": 3,
        "mobilenetv2": 34,
    }


@pytest.mark.parametrize("rule", EXACT)
@pytest.mark.parametrize("density", PAPER_DENSITIES)
@pytest.mark.parametrize("network", NETWORKS)
def test_exact_rules_are_exact_on_every_network(rule, density, network):
    shapes = NETWORKS[network]
    counts = allocate(shapes, density, rule)
    assert sum(counts) == max(1, math.floor(density * sum(map(math.prod, shapes)) + 0.5))
    assert all(0 <= count <= math.prod(shape) for count, shape in zip(counts, shapes, strict=True))


@given(layer_shapes, st.floats(1e-6, 1), st.sampled_from(EXACT))
def test_exact_rules_are_exact(shapes, density, rule):
    counts = allocate(shapes, density, rule)
    assert sum(counts) == budget(sum(map(math.prod, shapes)), density)
    assert all(0 <= count <= math.prod(shape) for count, shape in zip(counts, shapes, strict=True))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=10), st.data())
def test_apportion_differs_from_water_filling_by_less_than_one(pairs, data):
    weights, capacities = zip(*pairs, strict=True)
    total = data.draw(st.integers(0, sum(capacities)))
    counts = apportion(total, weights, capacities)
    assert sum(counts) == total
    low, high = 0.0, float(sum(capacities))
    for _ in range(100):  # the water level by bisection: the definition
        level = (low + high) / 2
        filled = sum(min(c, level * w) for w, c in pairs)
        low, high = (level, high) if filled < total else (low, level)
    assert all(abs(count - min(c, high * w)) < 1 + 1e-6 for count, (w, c) in zip(counts, pairs, strict=True))


# 3 layers of 6, 8 and 100 weights (114 in all) at density 0.5: K = 57
#   uniform: 3, 4, 50                 epl: 19 each, but 6 and 8 are full -> 6, 8, 43
#   epf (filters 3, 2, 10): 57/15 = 3.8 a filter -> 11.4, 7.6, 38; layer 1 is full at 6, then 51/12 = 4.25 a filter:
#   8.5 > 8 fills layer 2, 43 remain    erk (sums 5, 6, 20): 57/31: 9.2 -> 6 full, 51/26*6 = 11.8 -> 8 full, 43 remain
HAND = [(3, 2), (2, 4), (10, 10)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("uniform", [3, 4, 50]),
        *((rule, [6, 8, 43]) for rule in ("epl", "epf", "erk", "er", "epl_paper")),
        ("sqrt", [6, 8, 43]),  # 57 / 15.28 * (2.45, 2.83, 10) = 9.1, 10.6, 37.3: both small layers are full
    ],
)
def test_counts_by_hand(rule, expected):
    assert allocate(HAND, 0.5, rule) == expected


def test_erk_by_hand_at_low_density():
    # K = floor(11.4 + .5) = 11; 11/31 * (5, 6, 20) = 1.77, 2.13, 7.10: floors 1, 2, 7 and one more to the first
    assert allocate(HAND, 0.1, "erk") == [2, 2, 7]


# a 3x3 convolution 2 -> 4 (72 weights), a linear layer 25 -> 4 (100) and one 2 -> 2 (4); 176 in all, at 0.25: K = 44
#   er: (4 + 2) * 9 = 54, 29, 4 of 87: 44 * (.6207, .3333, .0460) = 27.31, 14.67, 2.02: floors 27, 14, 2, one more to b
#   sqrt: 8.4853, 10, 2 of 20.4853: 44 / 20.4853 = 2.1479: 18.23, 21.48, 4.30 > 4: full, then 40 / 18.4853 = 2.1639:
#   18.36, 21.64: floors 18 and 21, one more to b
@pytest.mark.parametrize(("rule", "expected"), [("er", [27, 15, 2]), ("sqrt", [18, 22, 4])])
def test_new_rules_by_hand(rule, expected):
    assert allocate([(4, 2, 3, 3), (4, 25), (2, 2)], 0.25, rule) == expected


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("density", PAPER_DENSITIES[:-3])  # below, counts of a few weights are mostly rounding
def test_sqrt_has_the_least_sum_of_inverse_densities_of_all_rules(network, density):
    def inverse_densities(rule):
        counts = allocate(NETWORKS[network], density, rule)
        return sum(math.prod(s) / k if k else math.inf for s, k in zip(NETWORKS[network], counts, strict=True))

    assert min(EXACT, key=inverse_densities) == "sqrt"


def test_sqrt_takes_roots_that_are_no_integers():
    assert allocate([(1, 8), (10, 20)], 24 / 208, "sqrt") == [4, 20]  # sqrt(8) : sqrt(200) = 1 : 5


def test_sqrt_lies_between_uniform_and_epl():
    """Layer by layer where none is full: the geometric mean of the two, scaled to the sum."""
    shapes = NETWORKS["resnet50"]
    uniform, epl, sqrt = (allocate(shapes, 1e-4, rule) for rule in ("uniform", "epl", "sqrt"))
    means = [math.sqrt(1e-4 * math.prod(shape)) for shape in shapes]
    assert max(epl) < 44.5  # no layer is full
    scale = sum(sqrt) / sum(means)
    assert all(abs(count - scale * mean) < 1 for count, mean in zip(sqrt, means, strict=True))
    assert min(uniform) < min(sqrt) < min(epl)
    assert max(uniform) > max(sqrt) > max(epl)


@given(layer_shapes, st.floats(1e-3, 1), st.integers(0, 5))
def test_strict_filters_are_equal_up_to_one_or_full(shapes, density, seed):
    counts = [int(c) for layer in strict_filter_counts(shapes, density, seed) for c in layer]
    room = [math.prod(shape[1:]) for shape in shapes for _ in range(shape[0])]
    open_ = [c for c, r in zip(counts, room, strict=True) if c < r]
    assert all(c <= r for c, r in zip(counts, room, strict=True))
    assert not open_ or max(counts) - min(open_) <= 1


@pytest.mark.parametrize("rule", ALLOCATIONS)
def test_supports_follow_the_counts(rule):
    shapes = {"a": (8, 3, 3, 3), "b": (16, 8), "c": (5, 16)}
    supports = draw_supports(shapes, 0.1, rule, seed=3)
    assert [s.nnz for s in supports.values()] == allocate(list(shapes.values()), 0.1, rule, seed=3)
    assert {name: s.shape for name, s in supports.items()} == shapes


def test_strict_supports_give_every_filter_its_count():
    shapes = {"a": (8, 3, 3, 3), "b": (16, 8)}
    supports = draw_supports(shapes, 0.2, "epf_strict", seed=1)
    counts = strict_filter_counts(list(shapes.values()), 0.2, seed=1)
    for support, expected in zip(supports.values(), counts, strict=True):
        assert support.mask().flatten(1).sum(1).tolist() == expected.tolist()


@pytest.mark.parametrize("density", [0, -0.1, 1.0001, float("nan"), float("inf")])
def test_density_outside_the_unit_interval(density):
    with pytest.raises(ValueError, match=r"density must be in \(0, 1\]"):
        allocate(HAND, density)


def test_errors_say_what_is_possible():
    with pytest.raises(ValueError, match="choose one of: uniform, epl, epf, erk"):
        allocate(HAND, 0.1, "equal")
    with pytest.raises(ValueError, match="keeps none of the 114 weights"):
        allocate(HAND, 1e-4, "epl_paper")
    with pytest.raises(ValueError, match=r"layer 1 has a weight of shape \(3, 0\)"):
        allocate([(2, 2), (3, 0)], 0.5)
    with pytest.raises(ValueError, match="no layer"):
        allocate([], 0.5)
