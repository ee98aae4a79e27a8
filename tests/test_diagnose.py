"""Whether a network takes an input is asked in eval mode, and said in the caller's words."""

import pytest
import torch
from torch import nn

from dctps.nn.diagnose import check_input


def test_an_input_that_fits_gives_the_output_and_leaves_the_network_as_it_was():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.ones(1, 4)  # one example, which BatchNorm takes in eval mode only
    y = check_input(net, x, str)
    assert not y.requires_grad
    assert torch.equal(y, net.eval()(x))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("size", [4, 5])
def test_the_network_is_in_training_mode_afterwards(size):
    net = nn.Linear(4, 3).eval()
    try:
        check_input(net, torch.ones(1, size), str)
    except ValueError:
        assert size == 5
    assert net.training


def test_an_input_that_does_not_fit_is_named_in_the_words_of_the_caller():
    with pytest.raises(ValueError, match=r"^no: mat1 and mat2 .*\)$") as error:
        check_input(nn.Linear(4, 3), torch.ones(1, 5), lambda reason: f"no: {reason}")
    assert isinstance(error.value.__cause__, RuntimeError)
