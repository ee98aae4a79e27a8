"""`sparsify(all_kinds=True)`: attention, transposed convolutions and other layers that read weights alpha D + S."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import RigL, Support, TransformOffset, sparsify
from dctps.checkpoint.contents import CheckpointError
from dctps.nn.built_layer import BuiltLayer, built_parts
from helpers.networks import assert_unchanged, snapshot
from helpers.offsets import recipes


class Standardised(nn.Conv2d):
    """A convolution that subtracts from each filter its mean."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


class Foreign(nn.Module):
    """A layer of somebody else, which uses its weight twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return (x @ self.weight).tanh() @ self.weight.T


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, **options)
        self.sizes = options.get("kdim", 8), options.get("vdim", 8)

    def forward(self, x):
        keys, values = (x[..., :1].expand(*x.shape[:-1], size) * torch.arange(1, size + 1) for size in self.sizes)
        return self.inner(x, keys, values)[0]


class Cell(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = self.cell(x)
        state = self.cell(x, state)
        return state[0] if isinstance(state, tuple) else state


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.form = nn.Bilinear(4, 5, 3)

    def forward(self, x):
        return self.form(x, x[:, :1] + torch.arange(5))


def stored_transposed():
    conv1d = pytest.importorskip("transformers.pytorch_utils", reason="needs the transformers extra").Conv1D
    return conv1d(6, 4)


KINDS = {  # a plain network, the shape of its input, the names of its matrices
    "attention": (Attention, (3, 5, 8), ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj"]),
    "attention of several sizes": (
        lambda: Attention(kdim=4, vdim=6, add_bias_kv=True),
        (3, 5, 8),
        ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj"],
    ),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5), [""]),
    "transposed 2d": (lambda: nn.ConvTranspose2d(4, 6, (3, 2), padding=1, groups=2), (2, 4, 5, 4), [""]),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 3, 2, dilation=2, bias=False), (2, 2, 3, 3, 2), [""]),
    "rnn cell": (lambda: Cell(nn.RNNCell(4, 5)), (3, 4), ["cell.weight_ih", "cell.weight_hh"]),
    "lstm cell": (
        lambda: Cell(nn.LSTMCell(4, 5)),
        (3, 4),
        [f"cell.weight_{kind}_{gate}" for kind in ("ih", "hh") for gate in range(4)],
    ),
    "gru cell": (
        lambda: Cell(nn.GRUCell(4, 5)),
        (3, 4),
        [f"cell.weight_{kind}_{gate}" for kind in ("ih", "hh") for gate in range(3)],
    ),
    "bilinear": (Pair, (3, 4), ["form"]),
    "subclass": (lambda: Standardised(3, 5, 3), (2, 3, 6, 6), [""]),
    "foreign": (Foreign, (3, 6), [""]),
    "transformers' Conv1D": (stored_transposed, (3, 4), [""]),
}


def network(kind, **options):
    """A plain network of float64, and one of the same other parameters that is sparse, with random values."""
    make, shape, _ = KINDS[kind]
    torch.manual_seed(0)
    plain = make().double()
    net = sparsify(copy.deepcopy(plain), 0.3, all_kinds=True, **options)
    return plain, filled(net), torch.randn(shape, dtype=torch.float64)


def filled(net):
    for _, part in built_parts(net):
        part.values.data.normal_()
        if part.alpha is not None:
            part.alpha.data.uniform_(0.5, 2)
    return net


def definition(part):
    """D and W = alpha D + S of a part as matrices, from the name of its offset."""
    shape, flat = part.geometry.weight_shape, torch.zeros(part.support.size, dtype=torch.float64)
    flat[part.positions.long()] = part.values.detach()
    if part.offset is None:
        return None, flat.view(shape)
    D = TransformOffset.parse(part.offset.name).bind(shape).matrix(torch.float64).view(shape)
    return D, part.alpha.detach() * D + flat.view(shape)


def defined(net):
    """The plain network with the weights of the definition."""
    dense = dctps.densify(copy.deepcopy(net))
    for (path, layer), (_, other) in zip(net.named_modules(), copy.deepcopy(net).named_modules(), strict=True):
        if isinstance(layer, BuiltLayer):
            for weight, names in layer.parts:
                stacked = torch.cat([definition(layer.part(name))[1] for name in names])
                dense.get_submodule(path).get_parameter(weight).data.copy_(stacked)
        assert type(layer) is type(other)
    return dense


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def check_against_definition(net, x):
    """The outputs and all gradients are those of the plain network with the weights of the definition."""
    dense = defined(net)
    close(net(x), dense(x))
    for model in (net, dense):
        model.zero_grad()
        model(x).square().sum().backward()
    for path, layer in net.named_modules():
        for weight, names in layer.parts if isinstance(layer, BuiltLayer) else ():
            G = dense.get_submodule(path).get_parameter(weight).grad
            for part, own in zip(map(layer.part, names), G.chunk(len(names)), strict=True):
                close(part.values.grad, own.flatten()[part.positions.long()])
                if part.alpha is not None:
                    close(part.alpha.grad, (own * definition(part)[0]).sum().view(1))
    others = dict(dense.named_parameters())
    for name, parameter in net.named_parameters():
        if name in others:
            close(parameter.grad, others[name].grad)


@pytest.mark.parametrize("offset", ["dct_signed", "dct", "hadamard", None])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_computes_with_alpha_d_plus_s(kind, offset):
    _, net, x = network(kind, offset=offset)
    names = [f"inner.{name}" if "attention" in kind else name for name in KINDS[kind][2]]
    assert sorted(name for name, _ in built_parts(net)) == sorted(names)
    check_against_definition(net, x)


@given(
    axes=st.integers(1, 3),
    groups=st.integers(1, 2),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    padding=st.integers(0, 1),
    recipe=recipes,
    density=st.floats(0.05, 1),
)
@settings(max_examples=40, deadline=None)
def test_transposed_convolutions(axes, groups, sizes, padding, recipe, density):
    c, k, kernel, stride, dilation = sizes
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1]
    layer = kind(c * groups, k * groups, kernel, stride, padding, groups=groups, dilation=dilation).double()
    support = Support.sample(tuple(layer.weight.shape), max(1, round(density * layer.weight.numel())), seed=1)
    net = filled(sparsify(layer, supports={"": support}, offset=recipe, all_kinds=True))
    x = torch.randn(2, c * groups, *([4] * axes), dtype=torch.float64)
    check_against_definition(net, x)
    # it is the adjoint of the convolution with the same weight
    W, y = definition(net.sparse_part["weight"])[1], net(x) - net.bias.view(-1, *[1] * axes)
    z = torch.randn_like(y)
    back = (F.conv1d, F.conv2d, F.conv3d)[axes - 1](z, W, None, stride, padding, dilation, groups)
    close((y * z).sum(), (x * back).sum())


@given(embed=st.sampled_from([(4, 1), (4, 2), (6, 3)]), recipe=recipes, batch_first=st.booleans(), bias=st.booleans())
@settings(max_examples=20, deadline=None)
def test_attention(embed, recipe, batch_first, bias):
    size, heads = embed
    net = Attention.__new__(Attention)
    nn.Module.__init__(net)
    net.inner, net.sizes = nn.MultiheadAttention(size, heads, batch_first=batch_first, bias=bias), (size, size)
    net = filled(sparsify(net.double(), 0.4, offset=recipe, all_kinds=True))
    check_against_definition(net, torch.randn(3, 5, size, dtype=torch.float64))


def test_attention_without_gradients_takes_the_fast_path_of_torch():
    net = filled(sparsify(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 0.3, all_kinds=True)).eval()
    x = torch.randn(3, 5, 8)
    expected = net(x)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected)


# --- D ----------------------------------------------------------------------------------------------------------------


def test_each_projection_has_an_orthogonal_offset():
    """A third of the rows of one large DCT is next to singular, so there are three D."""
    net = sparsify(nn.MultiheadAttention(32, 4), 0.1, offset="dct", all_kinds=True, alpha=1)
    for block in net.in_proj_weight.detach().chunk(3):
        torch.testing.assert_close(torch.linalg.svdvals(block), torch.ones(32))
    one_D = TransformOffset("dct").bind((96, 32)).matrix()
    assert torch.linalg.svdvals(one_D[:32])[-1] < 1e-3


def test_projections_begin_apart_where_the_offset_is_random():
    for offset, apart in (("dct_signed", True), ("dct", False), (TransformOffset(rows="random"), False)):
        net = sparsify(nn.MultiheadAttention(32, 4), 0.1, offset=offset, all_kinds=True)
        q, k, v = net.in_proj_weight.detach().chunk(3)
        assert [torch.equal(q, k), torch.equal(k, v), torch.equal(q, v)] == [not apart] * 3


# --- what stays as it is ----------------------------------------------------------------------------------------------


class Words(nn.Module):
    """Every kind in one network, with a table, a tied weight and a frozen one."""

    def __init__(self):
        super().__init__()
        self.table, self.bag = nn.Embedding(20, 8), nn.EmbeddingBag(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.up, self.norm = nn.ConvTranspose1d(8, 6, 2, stride=2), nn.BatchNorm1d(6)
        self.cell, self.tied, self.frozen = nn.GRUCell(6, 8), Foreign(), nn.ConvTranspose1d(6, 6, 1)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight
        self.tied.other = self.tied.weight
        self.frozen.weight.requires_grad_(False)

    def forward(self, words):
        y = self.norm(self.up(self.block(self.table(words)).transpose(1, 2)))
        y = self.frozen(self.tied(y.transpose(1, 2)).transpose(1, 2))
        return self.head(self.cell(y.mean(2))) + self.bag(words).sum(1, keepdim=True)


def words(**options):
    torch.manual_seed(0)
    return filled(sparsify(Words(), 0.1, all_kinds=True, **options))


NUMBERS = torch.arange(10).view(2, 5)


def test_what_cannot_be_built_stays_dense_with_the_reason():
    left = dict(dctps.report(words()).left_dense)
    assert left["table"] == left["bag"] == "a table that is looked up, not a matrix that is multiplied"
    assert set(left) == {"table", "bag", "tied", "frozen", "head"}


def test_without_the_argument_nothing_changes():
    net = sparsify(Words(), 0.1)
    assert {row.name for row in dctps.report(net).layers} == {"block.linear1", "block.linear2"}
    assert not any(isinstance(m, BuiltLayer) for m in net.modules())


def test_the_report_counts_all_matrices():
    net = words()
    report = dctps.report(net)
    assert report.nnz == report.asked.nnz == round(0.1 * report.size)
    assert report.size == sum(m.support.size for m in net.modules() if isinstance(m, dctps.nn.dps_layer.DpsLayer))
    assert report.sizes.parameters == sum(p.numel() for p in Words().parameters())
    assert "block.self_attn.q_proj_weight" in str(report)


def test_exclude_and_supports():
    net = sparsify(Words(), 0.1, all_kinds=True, exclude=("block.*", "cell"))
    assert [row.name for row in dctps.report(net).layers] == ["up"]
    support = Support.sample((8, 6, 2), 5, seed=0)
    net = sparsify(Words(), supports={"up": support}, all_kinds=True)
    assert net.up.sparse_part["weight"].support == support
    assert type(net.cell) is nn.GRUCell
    plain = Words()
    before, one = snapshot(plain), {"block.self_attn.k_proj_weight": Support.sample((8, 8), 5, seed=0)}
    with pytest.raises(ValueError, match=r"q_proj_weight' is stored in one weight with others"):
        sparsify(plain, supports=one, all_kinds=True)
    assert_unchanged(plain, before)


def test_without_an_offset_the_values_are_those_of_the_weight():
    plain = Words()
    old = plain.block.self_attn.in_proj_weight.detach().clone(), plain.up.weight.detach().clone()
    net = sparsify(plain, 0.5, all_kinds=True, offset=None)
    for new, before in zip((net.block.self_attn.in_proj_weight, net.up.weight), old, strict=True):
        assert 0 < (new == before).sum() < new.numel()
        assert torch.equal(new[new != 0], before[new != 0])


def test_densify_gives_the_plain_network_back():
    net = words().eval()
    expected, names = net(NUMBERS), [name for name, _ in Words().named_parameters()]
    dense = dctps.densify(copy.deepcopy(net))
    assert [name for name, _ in dense.named_parameters()] == names
    assert [type(m) for m in dense.modules()] == [type(m) for m in Words().modules()]
    torch.testing.assert_close(dense(NUMBERS), expected)
    with pytest.raises(ValueError, match="part of a layer; densify the network"):
        dctps.densify(net.up.sparse_part["weight"])


def test_a_weight_refuses_changes():
    with pytest.raises(RuntimeError, match="would change a weight that is built at each access"):
        nn.init.zeros_(words().up.weight)


def test_a_weight_cannot_be_replaced():
    net = sparsify(nn.Sequential(nn.ConvTranspose2d(8, 6, 3)), 0.1, all_kinds=True)
    with pytest.raises(AttributeError, match="weight of ConvTranspose2d cannot be replaced, because it is alpha D"):
        net[0].weight = nn.Parameter(torch.zeros(8, 6, 3, 3))
    assert "0.weight" not in dict(net.named_parameters())


def test_norms_of_several_axes_stay_as_they_are():
    net = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm((4, 8)), nn.LayerNorm((4, 8)))
    sparsify(net, 0.2, all_kinds=True)
    assert all(torch.equal(norm.weight, torch.ones(4, 8)) for norm in net[1:])


def test_densify_that_fails_changes_nothing():
    net = sparsify(nn.Sequential(nn.ConvTranspose2d(8, 6, 3), nn.ConvTranspose2d(6, 6, 3)), 0.1, all_kinds=True)
    part = net[1].sparse_part["weight"]
    part.values.data = part.values.data[:-1]
    with pytest.raises(RuntimeError):
        dctps.densify(net)
    assert all(isinstance(layer, BuiltLayer) for layer in net)


# --- files, copies, states --------------------------------------------------------------------------------------------


def test_files(tmp_path):
    net = words().eval()
    dctps.save(net, tmp_path / "net.safetensors")
    with torch.device("meta"):
        empty = Words()
    empty.frozen.weight.requires_grad_(False)
    for other in (Words(), empty, words(seed=0)):
        loaded = dctps.load(tmp_path / "net.safetensors", other).eval()
        assert torch.equal(loaded(NUMBERS), net(NUMBERS))
        assert str(dctps.report(loaded)).splitlines()[:15] == str(dctps.report(net)).splitlines()[:15]


class Wider(Words):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose1d(8, 6, 3, stride=2)


class OtherCell(Words):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)


class OtherNorm(Words):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Wider, r"its weight 'up' has shape \(8, 6, 3\), the file \(8, 6, 2\)"),
        (OtherCell, "its weight 'cell.weight_ih_0'|is stored in one weight"),
        (OtherNorm, "norm"),
        (lambda: nn.Linear(2, 2), "no layer that could read the weight"),
    ],
)
def test_a_file_that_does_not_fit_leaves_the_network_as_it_was(make, message, tmp_path):
    dctps.save(words(), tmp_path / "net.safetensors")
    other = make()
    before, kinds = snapshot(other), [type(m) for m in other.modules()]
    parameters = [id(p) for p in other.parameters()]
    with pytest.raises(CheckpointError, match=message):
        dctps.load(tmp_path / "net.safetensors", other)
    assert_unchanged(other, before)
    assert [type(m) for m in other.modules()] == kinds
    assert [id(p) for p in other.parameters()] == parameters


@pytest.mark.parametrize("passed", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
def test_copies(passed):
    net = words().eval()
    other = passed(net)
    assert torch.equal(other(NUMBERS), net(NUMBERS))
    other.up.sparse_part["weight"].values.data.add_(1)
    assert not torch.equal(other.up.weight, net.up.weight)
    assert type(other.up) is type(net.up)


def test_states():
    net, other = words().eval(), words(seed=1).eval()
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(NUMBERS), net(NUMBERS))
    with pytest.raises(RuntimeError, match="belongs to a layer with"):
        words(offset="dct").load_state_dict(net.state_dict())


def test_meta():
    with torch.device("meta"):
        net = Words()
        net.tied = Foreign()
    net = sparsify(net, 0.1, all_kinds=True)
    assert isinstance(net.tied, BuiltLayer)  # it has no reset_parameters, and needs none
    assert not any(t.is_meta for t in (*net.parameters(), *net.buffers()))
    assert net(NUMBERS).isfinite().all()


def test_compiled():
    net = words().eval()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(NUMBERS), net(NUMBERS))


def test_transformers_folders(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the transformers extra")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    net = filled(sparsify(transformers.GPT2LMHeadModel(config), 0.2, all_kinds=True)).eval()
    assert {name for name, _ in built_parts(net)} == {
        f"transformer.h.0.{name}" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    net.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(NUMBERS).logits, net(NUMBERS).logits)


# --- training ---------------------------------------------------------------------------------------------------------


def trained(net, step):
    for seed in range(4):
        torch.manual_seed(seed)
        net(torch.randint(20, (8, 5))).square().mean().backward()
        step()
        net.zero_grad()
    return net


@pytest.mark.parametrize("method", [dctps.SET, dctps.DSR])
def test_rewiring_moves_the_values(method):
    net = words()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    before = {name: part.positions.clone() for name, part in built_parts(net)}
    rewire = method(net, optimiser, stop=100, every=1, drop_fraction=0.5)
    trained(net, rewire.step)
    now = {name: part.positions for name, part in built_parts(net)}
    moved = {name for name, places in now.items() if not torch.equal(places, before[name])}
    assert {"up", "block.self_attn.q_proj_weight", "cell.weight_hh_2"} <= moved
    with pytest.raises(ValueError, match="dense gradient"):
        RigL(net, optimiser, stop=100, every=1)


def test_density_and_groups():
    net = words()
    optimiser = torch.optim.Adam(dctps.param_groups(net, 0.1), lr=1e-3)
    decayed = {id(p) for group in optimiser.param_groups if group["weight_decay"] for p in group["params"]}
    part = net.up.sparse_part["weight"]
    assert id(part.values) in decayed
    assert id(part.alpha) not in decayed
    dctps.set_density(net, 0.2, optimiser)
    trained(net, optimiser.step)
    assert dctps.report(net).nnz == round(0.2 * dctps.report(net).size)


# --- ONNX -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["attention", "transposed 2d", "lstm cell", "subclass"])
def test_onnx_files_hold_the_recipes(kind, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the onnx extra")
    _, net, x = network(kind)
    report = dctps.export_onnx(net.float(), tmp_path / "net.onnx", x.float())
    assert sorted(row.name for row in report.weights) == sorted(name for name, _ in built_parts(net))
    assert {row.why_dense for row in report.weights} == {None}
    assert report.difference <= 1e-4 * report.largest


def test_support_from_numpy_masks():
    mask = np.zeros((8, 6, 2), dtype=bool)
    mask[0] = True
    net = sparsify(Words(), supports={"up": Support.from_mask(torch.from_numpy(mask))}, all_kinds=True)
    assert net.up.sparse_part["weight"].nnz == 12
