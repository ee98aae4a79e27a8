"""Scores, against numbers worked out by hand and against their definitions computed the slow way."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import nn
from torch.func import functional_call

from dctps import models
from dctps.core.ranking import largest
from dctps.methods.pruning import METHODS, scores
from dctps.methods.pruning.scored_network import ScoredNetwork
from dctps.methods.pruning.scoring_data import ScoringData, checked_loss
from dctps.nn.prunable import prunable
from helpers.tolerances import assert_close

# --- by hand ---------------------------------------------------------------------------------------------------------
#
# y = W2 W1 x with W1 = (1 -2; 3 1), W2 = (1 -1), x = (1 2)', loss L = y^2 / 2.
#   hidden z = W1 x = (-3 5)', y = -8, dL/dy = y = -8.
#   gradient of y:  dy/dW2 = z' = (-3 5),  dy/dW1 = W2' x' = (1 2; -1 -2).


def chain(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)).to(dtype)
    net[0].weight.data = torch.tensor([[1.0, -2.0], [3.0, 1.0]], dtype=dtype)
    net[1].weight.data = torch.tensor([[1.0, -1.0]], dtype=dtype)
    return net


def half_square(output, labels):
    return output.square().sum() / 2


X = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
LABELS = torch.zeros(1, dtype=torch.long)


def scores_of(net, method, batches=(), loss="cross_entropy", kept=None, input_shape=None, recover=False):
    """The scores of a method, per layer, on the network of which only the positions `kept` are left."""
    network = ScoredNetwork(net, prunable(net), METHODS[method].prepare)
    if kept is not None:
        network.apply_mask(np.asarray(kept), recover)
    data = ScoringData(list(batches), len(batches), checked_loss(loss), input_shape, torch.device("cpu"))
    return [score.clone() for score in METHODS[method].score(network, data)]


def test_snip_by_hand():
    # dL/dW2 = y z' = (24 -40);  times W2: (24 40)
    # dL/dW1 = y (1 2; -1 -2) = (-8 -16; 8 16);  times W1: (-8 32; 24 16). In absolute value:
    first, second = scores_of(chain(), "snip", [(X, LABELS)], half_square)
    assert first.tolist() == [[8, 32], [24, 16]]
    assert second.tolist() == [[24, 40]]


def test_gradients_are_averaged_before_the_absolute_value():
    # a second batch with the input -x has y = 8, z = (3 -5)', so dL/dW2 = y z' and dL/dW1 are those of the first
    assert scores_of(chain(), "snip", [(X, LABELS), (-X, LABELS)], half_square)[1].tolist() == [[24, 40]]

    def odd(output, labels):  # L = y: the gradient of the second batch is minus that of the first
        return output.sum()

    assert [s.tolist() for s in scores_of(chain(), "snip", [(X, LABELS), (-X, LABELS)], odd)] == [
        [[0, 0], [0, 0]],
        [[0, 0]],
    ]


def test_grasp_by_hand():
    # The loss of logits / 200 is L / 40000. Without that factor s:
    #   g = y dy, H = dy dy' + y d2y, so H g = y |dy|^2 dy + y^2 (d2y dy).
    #   |dy|^2 = 9 + 25 + 1 + 4 + 1 + 4 = 44, so the first term is -352 dy.
    #   y is bilinear: d2y/dW2_i dW1_ij = x_j. (d2y dy)_W2 = rows of dy/dW1 times x = (5 -5);
    #   (d2y dy)_W1 = z x' = (-3 -6; 5 10). The second term is 64 times that.
    #   W2: -352 (-3 5) + 64 (5 -5) = (1376 -2080);  times W2: (1376 2080)
    #   W1: -352 (1 2; -1 -2) + 64 (-3 -6; 5 10) = (-544 -1088; 672 1344);  times W1: (-544 2176; 2016 1344)
    # and with it s^2 of all that.
    first, second = scores_of(chain(), "grasp", [(X, LABELS)], half_square)
    assert_close(first * 200.0**4, torch.tensor([[-544.0, 2176.0], [2016.0, 1344.0]], dtype=torch.float64))
    assert_close(second * 200.0**4, torch.tensor([[1376.0, 2080.0]], dtype=torch.float64))


def test_force_by_hand():
    # Without W1_11 (the 1) and W2_2 (the -1): z = (-4 5)', y = -4, dy/dW2 = z', dy/dW1 = (1 2; 0 0).
    # Scores use the weights before pruning: W2: |y z' * (1 -1)| = (16 20): the pruned -1 would count most.
    #   W1: |y (1 2; 0 0) * (1 -2; 3 1)| = (4 16; 0 0)
    kept = [1, 2, 3, 4]
    first, second = scores_of(chain(), "force", [(X, LABELS)], half_square, kept, recover=True)
    assert first.tolist() == [[4, 16], [0, 0]]
    assert second.tolist() == [[16, 20]]


def test_synflow_by_hand():
    # |W1| (1 1)' = (3 4)', R = |W2| (3 4)' = 7; |W2| * (3 4) = (3 4); |W1_ij| |W2_i| = (1 2; 3 1): both sum to 7
    first, second = scores_of(chain(torch.float32), "synflow", input_shape=(2,))
    assert (first.dtype, second.dtype) == (torch.float64, torch.float64)
    assert first.tolist() == [[1, 2], [3, 1]]
    assert second.tolist() == [[3, 4]]


def test_synflow_without_a_weight_by_hand():
    # without W2_1: R = 4, nothing flows through the first row of W1
    first, second = scores_of(chain(), "synflow", input_shape=(2,), kept=[0, 1, 2, 3, 5])
    assert first.tolist() == [[0, 0], [3, 1]]
    assert second.tolist() == [[0, 4]]


# --- by definition ---------------------------------------------------------------------------------------------------


def small_net(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3), nn.Tanh()
    )
    return net.double().append(nn.Linear(3, 4).double())


def batch(seed=1, size=6):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 2, 4, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (size,), generator=generator)


def loss_of_flat(net, x, y, scale=1.0):
    """The loss as a function of all prunable weights in one vector, in training mode."""
    net.train()
    layers = prunable(net)
    sizes = [layer.weight.numel() for layer in layers.values()]

    def loss(flat):
        parts = zip(layers, flat.split(sizes), strict=True)
        weights = {f"{name}.weight": part.view_as(layers[name].weight) for name, part in parts}
        return F.cross_entropy(functional_call(net, weights, (x,)) / scale, y)

    return loss, torch.cat([layer.weight.detach().flatten() for layer in layers.values()])


def flat(scores):
    return torch.cat([score.flatten() for score in scores])


@pytest.mark.parametrize("method", ["snip", "force"])
def test_sensitivity_is_the_derivative_by_the_mask(method):
    net, (x, y) = small_net(), batch()
    loss, w = loss_of_flat(net, x, y)
    mask = torch.ones_like(w).index_fill_(0, torch.arange(0, len(w), 3), 0.0)
    expected = torch.autograd.functional.jacobian(lambda m: loss(w * m), mask).abs()
    actual = scores_of(net, method, [(x, y)], kept=mask.nonzero().flatten().numpy(), recover=True)
    assert_close(flat(actual), expected)


def test_sensitivity_as_a_finite_difference():
    net, (x, y) = small_net(), batch()
    loss, w = loss_of_flat(net, x, y)
    score, step = flat(scores_of(net, "snip", [(x, y)])), 1e-6
    for i in range(0, len(w), 7):
        shift = torch.zeros_like(w).index_fill_(0, torch.tensor(i), step)
        slope = (loss(w * (1 + shift)) - loss(w * (1 - shift))) / (2 * step)
        assert abs(slope.abs() - score[i]) < 1e-8  # the error of the difference: step^2 and 1e-16 / step


def test_grasp_is_the_weight_times_the_hessian_times_the_gradient():
    net, data = small_net(), [batch(1), batch(2)]
    hessian, gradient = 0, 0
    for x, y in data:
        loss, w = loss_of_flat(net, x, y, 200.0)
        gradient = gradient + torch.autograd.functional.jacobian(loss, w)
        hessian = hessian + torch.autograd.functional.hessian(loss, w)
    expected = w * (hessian @ gradient)
    assert expected.min() < 0 < expected.max()
    scale = expected.abs().max()  # of order 200^-4: compared relative to the largest
    assert_close(flat(scores_of(net, "grasp", data)) / scale, expected / scale)


@pytest.mark.parametrize(("name", "sums"), [("lenet", 5), ("vgg19", 17)])
def test_the_flow_through_every_layer_of_a_chain_is_the_same(name, sums):
    net = models.build(name)
    for module in net.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)  # it would add to R and not to the scores
    network = ScoredNetwork(net, prunable(net), scores.take_absolute_values)
    data = ScoringData(None, 0, checked_loss("cross_entropy"), (3, 32, 32), torch.device("cpu"))
    totals = [float(score.sum()) for score in scores.synaptic_flow(network, data)]
    R = network.run(data.ones()).sum().item()
    assert len(totals) == sums
    assert R > 1e6
    np.testing.assert_allclose(totals, R, rtol=1e-10)


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2"])
def test_synflow_is_finite_where_float32_is_not(name):
    net = models.build(name)
    found = scores_of(net, "synflow", input_shape=(3, 32, 32))
    assert all(score.isfinite().all() for score in found)
    assert max(float(score.sum()) for score in found) > torch.finfo(torch.float32).max
    single = scores.take_absolute_values(models.build(name)).float()
    assert not single(torch.ones(1, 3, 32, 32)).sum().isfinite()


def test_normalisations_only_scale_in_the_network_of_absolute_values():
    net = nn.Sequential(
        nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False), nn.BatchNorm1d(2, affine=False)
    )
    net[0].running_mean.fill_(3.0)
    net[0].running_var.fill_(5.0)
    net[0].weight.data = torch.tensor([-2.0, 4.0])
    y = scores.take_absolute_values(net)(torch.ones(1, 2, dtype=torch.float64))
    assert_close(y, torch.tensor([[2.0, 4.0]], dtype=torch.float64) / (1 + 1e-5) ** 1.5)


def test_magnitude_and_random():
    net = chain()
    assert [s.tolist() for s in scores_of(net, "magnitude")] == [[[1, 2], [3, 1]], [[1, 1]]]
    assert all((score == 1).all() for score in scores_of(net, "random"))


def test_half_precision_networks_are_scored_in_float32():
    net = chain(torch.bfloat16)
    first, second = scores_of(net, "snip", [(X.bfloat16(), LABELS)], half_square)
    assert first.dtype == torch.float32
    assert first.tolist() == [[8, 32], [24, 16]]
    assert second.tolist() == [[24, 40]]


# --- ranking ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60), st.data())
def test_the_largest_are_the_largest_and_as_many_as_asked(numbers, data):
    scores = np.array(numbers, dtype=np.float32)
    count = data.draw(st.integers(0, len(scores)))
    kept = largest(scores, count, data.draw(st.integers(0, 5)))
    assert len(kept) == count
    assert (np.diff(kept) > 0).all()
    assert sorted(scores[kept], reverse=True) == sorted(numbers, reverse=True)[:count]


def test_ties_are_drawn_uniformly_from_the_seed():
    scores = np.array([0.0, 1.0, 1.0, 1.0, 2.0])
    assert largest(scores, 2, 0).tolist() == largest(scores, 2, 0).tolist()
    chosen = np.array([largest(scores, 2, seed)[0] for seed in range(600)])
    counts = np.bincount(chosen, minlength=5)
    assert counts[[0, 4]].tolist() == [0, 0]
    assert (abs(counts[1:4] - 200) < 60).all()  # 5 standard deviations


def test_more_than_there_are():
    with pytest.raises(ValueError, match="cannot take the 3 largest of 2 scores"):
        largest(np.array([1.0, 2.0]), 3, 0)
