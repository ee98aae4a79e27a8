"""Counts per layer: golden cases by hand, the published totals, and exactness as a property."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dctps.allocation import ALLOCATIONS, allocate, apportion, budget, draw_supports, strict_filter_counts
from shapes import NETWORKS

EXACT = ["uniform", "epl", "epf", "erk", "epf_strict"]
PAPER_DENSITIES = [0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001]

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


def test_published_epl_counts_per_layer():
    assert allocate(NETWORKS["resnet50"], 1e-3, "epl_paper")[:-1] == [434] * 53
    assert allocate(NETWORKS["vgg19"], 1e-4, "epl_paper")[:-1] == [117] * 16
    assert allocate(NETWORKS["mobilenetv2"], 1e-4, "epl_paper") == [3] * 58


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
    [("uniform", [3, 4, 50]), ("epl", [6, 8, 43]), ("epf", [6, 8, 43]), ("erk", [6, 8, 43]), ("epl_paper", [6, 8, 43])],
)
def test_counts_by_hand(rule, expected):
    assert allocate(HAND, 0.5, rule) == expected


def test_erk_by_hand_at_low_density():
    # K = floor(11.4 + .5) = 11; 11/31 * (5, 6, 20) = 1.77, 2.13, 7.10: floors 1, 2, 7 and one more to the first
    assert allocate(HAND, 0.1, "erk") == [2, 2, 7]


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
