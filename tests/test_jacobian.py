"""The Jacobian of a network: golden for linear ones, structure for the paper's claims."""

import pytest
import torch
from torch import nn

import dctps
from dctps.nn.jacobian import jacobian, singular_values


def test_a_linear_network_has_its_own_matrix():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    x = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    assert torch.equal(jacobian(net.eval(), x), net[1].weight)


def test_singular_values_of_a_matrix_by_hand():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 0.0, -4.0]]))
    assert singular_values(net, torch.randn(5, 1, 2, 2)).tolist() == [[4.0, 3.0]] * 5


def test_it_agrees_with_differences():
    net = dctps.models.build("lenet").double()
    x, h = torch.randn(1, 3, 32, 32, dtype=torch.float64), 1e-6
    J = jacobian(net, x)
    direction = torch.randn_like(x)
    slope = (net(x + h * direction) - net(x - h * direction)).flatten() / (2 * h)
    torch.testing.assert_close(J @ direction.flatten(), slope, rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_was():
    net = dctps.models.build("resnet18", width=4)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    singular_values(net, torch.randn(1, 3, 32, 32))
    assert net.training
    assert next(net.parameters()).dtype is torch.float32
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_dctps_has_one_spectrum_for_all_densities():
    x = torch.randn(2, 3, 32, 32)
    spectra = []
    for density in (0.05, 1e-4):
        torch.manual_seed(0)
        net = dctps.sparsify(dctps.models.build("resnet18", width=8), density, offset="dct", alpha=1.0)
        spectra.append(singular_values(net, x))
    assert torch.equal(*spectra)
    assert (spectra[0] > 0).all()


@pytest.mark.parametrize("density", [1e-4])
def test_nothing_passes_a_network_without_a_path(density):
    net = dctps.sparsify(dctps.models.build("resnet18", width=8), density, offset=None, allocation="uniform")
    assert singular_values(net, torch.randn(2, 3, 32, 32)).count_nonzero() == 0
