"""Fine-tuning of layers with computed weights and biases, of tied weights, and of matrices with several names."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import dctps
from dctps.nn.fine_tuned import tuned_weights
from helpers.finetuning import shaken

PRETRAINED = {"offset": "pretrained"}


class Doubled(nn.Module):
    """A parametrisation."""

    def forward(self, tensor):
        return 2 * tensor


class Tied(nn.Module):
    """A table whose weight is also that of the last layer, which has a bias, and a layer between them."""

    def __init__(self):
        super().__init__()
        self.table, self.middle, self.head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.middle(self.table(x)))


# --- what is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "computed",
    [
        parametrizations.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
def test_layers_with_computed_weights_stay_dense_and_are_listed(computed):
    for _ in range(20):
        net = nn.Sequential(*(computed(nn.Linear(8, 8)) for _ in range(4)), nn.Linear(8, 8)).eval()
        x = torch.randn(2, 8)
        y = net(x)
        dctps.sparsify(net, 0.3, **PRETRAINED)
        assert torch.equal(net(x), y)
        assert list(tuned_weights(net)) == ["4"]
        reasons = dict(dctps.report(net).left_dense)
        assert all("computed from other parameters" in reasons[f"{i}"] for i in range(4))


def pruned(layer):
    prune.l1_unstructured(layer, "bias", 0.5)


def parametrised(layer):
    parametrize.register_parametrization(layer, "bias", Doubled())


def as_buffer(layer):
    bias = layer.bias.detach()
    del layer.bias
    layer.register_buffer("bias", bias)


def as_attribute(layer):
    size = len(layer.bias)
    del layer.bias
    layer.bias = torch.randn(1).expand(size)


@pytest.mark.parametrize("computed", [pruned, parametrised, as_buffer, as_attribute])
@pytest.mark.parametrize("train_alpha", [None, True])
def test_a_bias_that_is_no_parameter_is_not_lost(computed, train_alpha):
    torch.manual_seed(0)
    for layer, x in (
        (nn.Linear(8, 8), torch.randn(3, 8)),
        (nn.Conv2d(4, 4, 3), torch.randn(2, 4, 6, 6)),
        (nn.ConvTranspose2d(4, 4, 3), torch.randn(2, 4, 6, 6)),
    ):
        computed(layer)
        net = nn.Sequential(layer)
        y = net(x)
        dctps.sparsify(net, 0.3, **PRETRAINED, train_alpha=train_alpha)
        assert torch.equal(net(x), y)
        shaken(net)
        y = net(x)
        torch.testing.assert_close(by_hand(layer, x), y)


def by_hand(layer, x):
    """The output of torch's operator with the weight and the bias that the layer shows."""
    weight = layer.weight.detach().as_subclass(torch.Tensor)
    run = {2: F.linear, 4: F.conv_transpose2d if isinstance(layer, nn.ConvTranspose2d) else F.conv2d}[weight.dim()]
    return run(x, weight, layer.bias)


# --- names and uses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("train", ["head", "table", "head.weight", "h*"])
def test_a_tied_weight_trains_as_a_whole_under_any_of_its_names(train):
    net = dctps.sparsify(Tied(), 0.1, **PRETRAINED, train=train)
    assert list(tuned_weights(net)) == ["middle"]
    assert "table.weight" in [row.name for row in dctps.report(net).trained]
    assert isinstance(net.table.weight, nn.Parameter)


@pytest.mark.parametrize("exclude", ["head", "table", "h*", nn.Embedding])
def test_a_tied_weight_is_excluded_by_any_layer_that_uses_it(exclude):
    net = dctps.sparsify(Tied(), 0.1, **PRETRAINED, exclude=exclude)
    assert list(tuned_weights(net)) == ["middle"]


def test_a_layer_is_named_by_each_of_its_paths():
    net = nn.Module()
    net.first = net.second = nn.Linear(8, 8)
    net.last = nn.Linear(8, 8)
    dctps.sparsify(net, 0.1, **PRETRAINED, train="second")
    assert list(tuned_weights(net)) == ["last"]
    assert [row.name for row in dctps.report(net).trained] == ["first.weight", "first.bias"]


def test_integers_do_not_train():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    net.places = nn.Parameter(torch.arange(3), requires_grad=False)
    with pytest.raises(ValueError, match="matches no parameter of floating"):
        dctps.sparsify(net, 0.1, **PRETRAINED, train=("*.bias", "places"))
    assert all(p.requires_grad for p in net[0].parameters())


class Reader(nn.Module):
    """A layer that reads a parameter of another layer, under a name that nobody knows."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, x):
        return F.linear(x, self.table)


def unknown_name():
    table = nn.Embedding(10, 8)
    return nn.Sequential(table, nn.Linear(8, 8), Reader(table.weight)), ["0"]


def transposed_view():
    net = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 6), nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 8))
    net[4].weight = nn.Parameter(net[3].weight.data.t())
    return nn.Sequential(net[0], net[2], net[3], net[4]), ["2", "3"]


def buffer_in_the_same_memory():
    table = nn.Embedding(10, 8)
    net = nn.Sequential(table, nn.Linear(8, 8), Reader(None))
    del net[2].table
    net[2].register_buffer("table", table.weight.data[2:7])
    return net, ["0"]


@pytest.mark.parametrize("made", [unknown_name, transposed_view, buffer_in_the_same_memory])
def test_a_weight_that_something_else_reads_is_left_alone_with_the_reason(made):
    net, left = made()
    x = torch.arange(10)
    shaken(dctps.sparsify(net, 0.5, **PRETRAINED))
    assert not set(left) & set(tuned_weights(net))
    reasons = dict(dctps.report(net).left_dense)
    assert all("S would not reach" in reasons[name] for name in left)
    y = net(x)
    torch.testing.assert_close(dctps.densify(copy.deepcopy(net))(x), y)


def test_parameters_side_by_side_in_one_memory_do_not_overlap():
    flat = torch.randn(128)
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    for i in (0, 1):
        net[i].weight = nn.Parameter(flat[64 * i : 64 * i + 64].view(8, 8))
    assert list(tuned_weights(dctps.sparsify(net, 0.1, **PRETRAINED))) == ["0", "1"]


class TwoMatrices(nn.Module):
    """A layer with a matrix beside its weight."""

    def __init__(self):
        super().__init__()
        self.weight, self.kernel = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return x @ self.kernel @ self.weight


def test_a_matrix_beside_the_weight_is_in_the_report():
    net = dctps.sparsify(nn.Sequential(TwoMatrices()), 0.5, **PRETRAINED)
    assert list(tuned_weights(net)) == ["0"]
    reasons = dict(dctps.report(net).left_dense)
    assert "LAYER_KINDS" in reasons["0.kernel"]


# --- tables, transposed convolutions and torch's fast path ------------------------------------------------------------


class Scaled(nn.Embedding):
    """A table whose subclass reads its weight in its own way."""

    def forward(self, numbers):
        return 2 * super().forward(numbers)


@pytest.mark.parametrize("cls", [nn.EmbeddingBag, Scaled])
def test_tables_whose_gradients_are_rows_are_left_alone_where_the_sum_would_be_read(cls):
    options = {"sparse": True} | ({"mode": "sum"} if cls is nn.EmbeddingBag else {})
    net = nn.ModuleList([cls(9, 4, **options), nn.Embedding(9, 4, sparse=True), cls(9, 4), cls(9, 4, max_norm=1.0)])
    dctps.sparsify(net, 0.5, **PRETRAINED)
    assert list(tuned_weights(net)) == ["1", "2"]
    reasons = dict(dctps.report(net).left_dense)
    assert "sparse=False serves" in reasons["0"]
    assert "max_norm" in reasons["3"]
    shaken(net)
    for table in (net[1], net[2]):
        table(torch.arange(9).view(3, 3)).square().sum().backward()
        assert table.sparse_part["weight"].values.grad.abs().sum() > 0


def test_a_transposed_convolution_of_one_image_takes_an_output_size_with_channels():
    layer, x = nn.ConvTranspose2d(4, 6, 3, 2), torch.randn(4, 5, 5)
    sizes = ((6, 12, 12), (11, 12), None)
    expected = [layer(x, output_size=size) for size in sizes]
    dctps.sparsify(layer, 0.3, **PRETRAINED)
    assert all(torch.equal(layer(x, output_size=size), y) for size, y in zip(sizes, expected, strict=True))


def test_an_encoder_of_torch_takes_its_fast_path_with_a_padding_mask():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 5, 8), torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    with torch.no_grad():
        y = encoder(x, src_key_padding_mask=mask)
        dctps.sparsify(encoder, 0.2, **PRETRAINED)
        assert torch.equal(encoder(x, src_key_padding_mask=mask), y)
        shaken(encoder)
        twin = pickle.loads(pickle.dumps(encoder))
        y = encoder(x, src_key_padding_mask=mask)
        assert torch.equal(twin(x, src_key_padding_mask=mask), y)
        torch.testing.assert_close(dctps.densify(twin)(x, src_key_padding_mask=mask), y)
