"""Multiply-adds by hand, and a model that is left as it was."""

import math

import pytest
import torch
from torch import nn

import dctps
from dctps import DpsConv2d, DpsLinear, count_ops
from dctps.ops import native
from helpers.networks import cnn


def test_dense_layers_by_hand():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 10))
    ops = count_ops(net, (3, 5, 5))
    assert [(row.name, row.dense) for row in ops.layers] == [("0", 25 * 8 * 27), ("3", 2000)]
    assert ops.performed == ops.paper == ops.dense == 25 * 8 * 27 + 2000


def test_sparse_layers_by_hand():
    layer = DpsLinear(1024, 512, nnz=100)
    ops = count_ops(layer, (1024,))
    assert (ops.dense, ops.paper, ops.performed) == (1024 * 512, 1024 * 10 + 100, 1024 * 10 + 100)
    pruned = count_ops(DpsLinear(1024, 512, nnz=100, offset=None), (1024,))
    assert (pruned.paper, pruned.performed) == (100, 100)
    dense = count_ops(DpsLinear(1024, 512, nnz=100, backend="dense"), (1024,))
    assert (dense.paper, dense.performed) == (1024 * 10 + 100, 1024 * 512)


def test_convolutions_count_what_their_way_performs():
    q = 9 * 128
    paper = 16 * (50 + round(q * math.log2(q)))
    separable = count_ops(DpsConv2d(128, 128, 3, padding=1, nnz=50, offset="dct", backend="torch"), (128, 4, 4))
    assert separable.paper == paper
    assert 16 * 50 < separable.performed < separable.dense / 10
    patches = DpsConv2d(256, 1024, 3, padding=1, nnz=50, backend="torch", offset="dct/spatial/position/lowest/0")
    assert count_ops(patches, (256, 4, 4)).performed == 16 * (50 + round(2304 * math.log2(2304)))
    direct = DpsConv2d(3, 64, 3, nnz=50, backend="torch")
    assert count_ops(direct, (3, 4, 4)).performed == 4 * (50 + 64 * 27)


@pytest.mark.skipif(native.kernels is None, reason=native.WHY_NOT)
def test_native_layers_count_their_stages_by_hand():
    def performed(*shape, pixels, **options):
        layer = DpsConv2d(*shape, bias=False, nnz=50, backend="native", **options)
        return count_ops(layer, (shape[0], pixels, pixels)).performed

    # a Fourier transform of length 2 * 64 per pixel, two terms of nine kernel positions per filter
    assert performed(64, 32, 3, pixels=6, offset="dct_signed") == 36 * 128 * 7 + 16 * (50 + 2 * 9 * 32)
    assert performed(64, 32, 3, pixels=6, offset="srht") == 36 * 64 * 6 + 16 * (50 + 9 * 32)
    assert performed(64, 100, 1, pixels=2) == 4 * (50 + round(100 * math.log2(100)))
    assert performed(3, 8, 3, pixels=3, offset=None) == 50


def test_layers_used_twice_count_twice():
    shared = nn.Linear(8, 8)
    assert count_ops(nn.Sequential(shared, shared), (8,)).dense == 128


def test_the_model_is_left_as_it_was():
    net = dctps.sparsify(cnn(), 0.1)
    net[1].eval()
    before = [(m.training, len(m._forward_hooks)) for m in net.modules()]
    state = {k: v.clone() for k, v in net.state_dict().items()}
    count_ops(net, (3, 9, 9))
    assert [(m.training, len(m._forward_hooks)) for m in net.modules()] == before
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_other_inputs_by_example():
    net = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4))
    assert count_ops(net, torch.zeros(1, 3, dtype=torch.int64)).dense == 3 * 32

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))

        def forward(self, a, b):
            return self.fc(a + b)

    x = torch.zeros(1, 4)
    assert count_ops(Two(), (x, x)).dense == count_ops(Two(), {"a": x, "b": x}).dense == 8


def test_what_is_not_counted_is_named():
    ops = count_ops(nn.TransformerEncoderLayer(16, 2, 32), torch.zeros(1, 1, 16))
    assert ops.dense == 2 * 16 * 32
    assert ops.not_counted == ["self_attn"]
