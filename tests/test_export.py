"""ONNX files: recipes against the definition of D, every offset and kind of layer, BatchNorm, sizes, mistakes."""

import functools
import itertools
import math
import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import OFFSETS, DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear, TransformOffset, export_onnx
from dctps.core.offsets import CHOICES
from dctps.core.transforms import TRANSFORMS, HasForm
from dctps.export.batches import Batches
from dctps.export.check import Comparison
from dctps.export.recipe import gap_code, offset_recipe, weight_recipe
from helpers.networks import assert_unchanged, cnn, snapshot
from helpers.offsets import Ones, recipes, shapes
from helpers.onnx_files import computed, folded_operators, run
from helpers.transforms import Dct4, FastDct4

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnx.reference", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs the onnx extra")

WITH_FORM = [name for name, transform in TRANSFORMS.items() if isinstance(transform, HasForm)]  # these have a recipe
ALL = [TransformOffset(t, *choice, seed=3) for t in WITH_FORM for choice in itertools.product(*CHOICES.values())]
RELATIVE = 1e-4  # of the largest output: float32 gives about 1e-6
SHAPES = [(7, 5), (12, 1, 3, 3), (6, 4, 5), (5, 3, 2, 3, 2), (40, 2, 3, 3)]  # the last has more rows than columns
SHAPES += [(1, 5), (2, 6), (3, 1), (2, 3, 2, 2)]  # few rows, of which one has another norm


def assert_same(found, expected):
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= RELATIVE * float(expected.abs().max())


def filled(model, seed=0):
    """A network with random numbers in place of zeros, as a trained one has them."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("running_var"):
            tensor.data.uniform_(0.5, 2, generator=generator)
        elif name.endswith(("values", "bias", "alpha", "running_mean", "bn.weight")):
            tensor.data.normal_(0.5, 0.5, generator=generator)
    return model


# --- recipes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_recipe_is_the_matrix_of_its_offset(shape):
    offsets = [recipe.bind(shape) for recipe in ALL]
    for offset, found in zip(offsets, computed(*map(offset_recipe, offsets)), strict=True):
        torch.testing.assert_close(found, offset.matrix(), rtol=0, atol=2e-6, msg=offset.name)


@given(recipe=recipes.filter(lambda recipe: recipe.transform in WITH_FORM), shape=shapes)
@settings(max_examples=25)
def test_generated_recipes_are_the_matrices_of_their_offsets(recipe, shape):
    offset = recipe.bind(shape)
    torch.testing.assert_close(computed(offset_recipe(offset))[0], offset.matrix(), rtol=0, atol=2e-6)


def test_long_angles_keep_their_digits():
    offset = TransformOffset("dct", rows="random").bind((64, 20_000))
    torch.testing.assert_close(computed(offset_recipe(offset))[0], offset.matrix(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("offset", [None, "dct"])
@pytest.mark.parametrize("nnz", [1, 5, 30])
def test_the_weight_of_a_layer(offset, nnz):
    layer = filled(DpsLinear(6, 5, nnz=nnz, offset=offset))
    recipe = None if offset is None else offset_recipe(layer.offset)
    scale = np.array([0.0 if offset is None else layer.alpha.item()], dtype=np.float32)
    call = weight_recipe((5, 6), recipe, scale, layer.positions.numpy().astype(np.int64), layer.values.detach().numpy())
    torch.testing.assert_close(computed(call)[0], layer.dense_weight().detach(), rtol=0, atol=2e-6)


def test_gaps_are_bridged_by_zeros():
    gaps, values = gap_code(np.array([3, 5, 600]), np.array([1.0, 2.0, 3.0], dtype=np.float32))
    assert gaps.dtype == np.uint16  # two further entries of five bytes would be longer
    assert gaps.tolist() == [3, 2, 595]
    gaps, values = gap_code(np.arange(0, 3000, 10), np.ones(300, dtype=np.float16))
    assert (gaps.dtype, len(values)) == (np.uint8, 300)
    gaps, values = gap_code(np.array([70_000]), np.array([4.0], dtype=np.float32))
    assert (gaps.tolist(), values.tolist()) == ([65_535, 4465], [0.0, 4.0])


@given(st.sets(st.integers(0, 500_000), max_size=40).map(sorted))
def test_gaps_give_the_positions_back(positions):
    values = np.arange(1, len(positions) + 1, dtype=np.float32)
    gaps, padded = gap_code(np.array(positions, dtype=np.int64), values)
    at = np.cumsum(gaps.astype(np.int64))
    assert at[padded != 0].tolist() == positions
    assert padded[padded != 0].tolist() == values.tolist()


# --- layers and networks --------------------------------------------------------------------------------------------


class Kinds(nn.Module):
    """Every kind of layer, each on its own, with arguments that change what they compute."""

    def __init__(self, offset):
        super().__init__()
        common = {"density": 0.1, "offset": offset}
        self.linear = DpsLinear(20, 11, **common)
        self.conv1d = DpsConv1d(5, 8, 3, padding=1, **common)
        self.conv2d = DpsConv2d(6, 9, 3, stride=2, padding=1, dilation=2, padding_mode="circular", **common)
        self.strided = DpsConv2d(6, 9, 3, stride=(2, 1), padding=(1, 2), **common)
        self.conv3d = DpsConv3d(2, 5, (1, 2, 3), **common)
        self.grouped = DpsConv2d(6, 12, 3, groups=3, bias=False, **common)
        self.depthwise = DpsConv2d(6, 6, 3, groups=6, padding="same", **common)
        self.long = DpsLinear(3, 17, **common)

    def forward(self, line, row, image, cube):
        planar = [self.conv2d(image), self.strided(image), self.grouped(image), self.depthwise(image)]
        return [self.linear(line), self.conv1d(row), *planar, self.conv3d(cube), self.long(line[..., :3])]


@pytest.mark.parametrize("offset", [*OFFSETS, None])
def test_every_offset_in_every_kind_of_layer(offset, tmp_path):
    net = filled(Kinds(offset)).eval()
    example = torch.randn(2, 4, 20), torch.randn(2, 5, 9), torch.randn(2, 6, 9, 8), torch.randn(2, 2, 4, 5, 6)
    report = export_onnx(net, tmp_path / "net.onnx", example)
    assert report.any_batch
    has_recipe = offset is None or OFFSETS[offset].transform in WITH_FORM
    assert {row.why_dense is None for row in report.weights} == {has_recipe}
    assert len(report.weights) == 8
    inputs = [torch.randn(3, *x.shape[1:]) for x in example]
    for found, expected in zip(run((tmp_path / "net.onnx").read_bytes(), *inputs), net(*inputs), strict=True):
        assert_same(found, expected.detach())


class AllRecipes(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layers = nn.ModuleList(make(density=0.1, offset=recipe) for recipe in ALL)

    def forward(self, x):
        return [layer(x) for layer in self.layers]


LAYERS = {
    "linear": (functools.partial(DpsLinear, 20, 11), (20,)),
    "conv1d": (functools.partial(DpsConv1d, 5, 8, 3, stride=2, padding=1), (5, 9)),
    "conv2d": (functools.partial(DpsConv2d, 4, 6, 3), (4, 5, 5)),
    "conv3d": (functools.partial(DpsConv3d, 2, 5, (1, 2, 3), padding=(0, 1, 1)), (2, 2, 3, 4)),
    "strided": (functools.partial(DpsConv2d, 4, 6, 3, stride=(2, 1), padding=1, dilation=(1, 2)), (4, 7, 6)),
    "grouped": (functools.partial(DpsConv2d, 6, 12, 3, groups=3, bias=False), (6, 4, 4)),
    "depthwise": (functools.partial(DpsConv2d, 6, 6, 3, groups=6, padding="same"), (6, 4, 4)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_order_signs_and_rows_in_every_kind_of_layer(kind, tmp_path):
    make, shape = LAYERS[kind]
    net, x = filled(AllRecipes(make)).eval(), torch.randn(3, *shape)
    report = export_onnx(net, tmp_path / "net.onnx", x)
    assert [row.why_dense for row in report.weights] == [None] * len(ALL)
    assert len(ALL) == len(WITH_FORM) * math.prod(map(len, CHOICES.values()))
    for found, expected in zip(run((tmp_path / "net.onnx").read_bytes(), x), net(x), strict=True):
        assert_same(found, expected.detach())


@pytest.fixture(scope="module")
def net():
    return filled(dctps.sparsify(cnn(), 0.05)).eval()


@pytest.fixture(scope="module")
def exported(net, tmp_path_factory):
    file = tmp_path_factory.mktemp("onnx") / "net.onnx"
    return export_onnx(net, file, torch.randn(1, 3, 12, 12))


def test_a_runtime_computes_the_weights_once_at_load(exported, tmp_path):
    left = set(folded_operators(exported.file.read_bytes(), tmp_path))
    assert left <= {"Conv", "Relu", "FusedConv", "GlobalAveragePool", "ReduceMean", "Flatten", "Reshape", "Gemm"}


@pytest.mark.parametrize("offset", [*OFFSETS, None])
def test_the_evaluator_of_onnx_reads_the_file(offset, tmp_path):
    net = nn.Sequential(DpsConv2d(3, 8, 3, density=0.1, offset=offset), nn.Flatten(), DpsLinear(128, 5, density=0.1))
    net, x = filled(net).eval(), torch.randn(2, 3, 6, 6)
    export_onnx(net, tmp_path / "net.onnx", x, check=False)
    found = onnx.reference.ReferenceEvaluator(str(tmp_path / "net.onnx")).run(None, {"input": x.numpy()})[0]
    assert_same(torch.from_numpy(found), net(x).detach())


def sizes(value):
    return [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]


def test_onnx_checks_the_file_and_infers_its_shapes(exported):
    model = onnx.load(exported.file)
    assert (model.opset_import[0].version, model.ir_version) == (exported.opset, exported.ir_version) == (18, 8)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    shapes = {
        v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info
    }
    assert [16, 3, 3, 3] in shapes.values()
    assert [d.dim_value or d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", 3, 12, 12]


def test_the_report_says_sizes_and_difference(exported):
    assert exported.bytes == exported.file.stat().st_size
    assert exported.difference <= RELATIVE * exported.largest
    assert f"{exported.bytes:,} bytes, with dense weights {exported.dense_bytes:,}" in str(exported)
    assert "batches of any size" in str(exported)
    assert "3 of 3" in str(exported)


def test_plain_weights(net, exported, tmp_path):
    report = export_onnx(net, tmp_path / "net.onnx", torch.randn(1, 3, 12, 12), dense=True)
    assert abs(report.bytes - exported.dense_bytes) < 100
    assert not onnx.load(report.file).functions
    assert "0 of 3" in str(report)
    x = torch.randn(5, 3, 12, 12)
    assert_same(run(report.file.read_bytes(), x)[0], net(x).detach())


def test_sixteen_bits(net, exported, tmp_path):
    report = export_onnx(net, tmp_path / "net.onnx", torch.randn(1, 3, 12, 12), float16=True)
    assert report.bytes < exported.bytes
    assert 0 < report.difference < 1e-2 * report.largest


def test_numbers_that_do_not_fit_in_sixteen_bits(tmp_path):
    layer = filled(DpsLinear(30, 20, nnz=10)).eval()
    layer.values.data[0] = 1e6
    x = torch.randn(4, 30)
    report = export_onnx(layer, tmp_path / "net.onnx", x, float16=True)
    assert report.difference < 1e-2 * report.largest


def test_the_network_stays_as_it_was(net, tmp_path):
    net.train()
    before = snapshot(net)
    export_onnx(net, tmp_path / "net.onnx", torch.randn(1, 3, 12, 12), check=False)
    assert_unchanged(net, before)
    net.eval()


def test_a_dense_network(tmp_path):
    net, x = cnn().eval(), torch.randn(2, 3, 12, 12)
    report = export_onnx(net, tmp_path / "net.onnx", x)
    assert report.bytes == report.dense_bytes
    assert_same(run(report.file.read_bytes(), x)[0], net(x).detach())


def test_inputs_by_name(tmp_path):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = filled(DpsLinear(6, 4, density=0.2))

        def forward(self, *, left, right):
            return {"sum": self.layer(left) + right}

    report = export_onnx(Sum(), tmp_path / "net.onnx", {"left": torch.randn(3, 6), "right": torch.randn(3, 4)})
    assert [value.name for value in onnx.load(report.file).graph.input] == ["left", "right"]


# --- BatchNorm ------------------------------------------------------------------------------------------------------


class Norms(nn.Module):
    """BatchNorm behind layers with and without a bias, before a layer, and twice behind the same layer."""

    def __init__(self):
        super().__init__()
        self.first_bn, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)
        self.conv_bn, self.shared = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1, bias=False)
        self.a_bn, self.b_bn = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.linear, self.linear_bn, self.dense = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Conv2d(8, 8, 3, padding=1)
        self.dense_bn = nn.BatchNorm2d(8)

    def forward(self, x):
        x = self.conv_bn(self.conv(self.first_bn(x))).relu()
        x = self.a_bn(self.shared(x)) + self.b_bn(self.shared(1 - x))
        x = self.dense_bn(self.dense(x))
        return self.linear_bn(self.linear(x.mean((2, 3))))


@pytest.mark.parametrize("sparse_norms", [False, True])
@pytest.mark.parametrize("offset", ["dct", None])
def test_batchnorm_costs_two_vectors(offset, sparse_norms, tmp_path):
    net = dctps.sparsify(Norms(), 0.1, offset=offset, exclude="dense")
    net = filled(dctps.sparsify_norms(net, 0.5) if sparse_norms else net).eval()
    x = torch.randn(4, 3, 7, 7)
    report = export_onnx(net, tmp_path / "net.onnx", x)
    graph = onnx.load(report.file).graph
    assert sum(node.op_type == "BatchNormalization" for node in graph.node) == 3  # the first one and the two behind one
    assert_same(run(report.file.read_bytes(), x)[0], net(x).detach())
    vectors = [tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 1]
    assert vectors.count((3,)) == 2  # s and t of the first BatchNorm layer, without its mean and variance


def test_a_fused_network(tmp_path):
    net, x = filled(dctps.fuse(dctps.sparsify(cnn(), 0.05))).eval(), torch.randn(2, 3, 12, 12)
    report = export_onnx(net, tmp_path / "net.onnx", x)
    assert_same(run(report.file.read_bytes(), x)[0], net(x).detach())


# --- offsets of a user ----------------------------------------------------------------------------------------------


def test_an_offset_of_the_users_own_is_stored_densely(tmp_path):
    layer, x = filled(DpsLinear(6, 4, density=0.2, offset=Ones((4, 6)))).eval(), torch.randn(3, 6)
    report = export_onnx(layer, tmp_path / "net.onnx", x)
    assert "(itself) is stored densely: Ones is an offset of your own" in str(report)
    assert_same(run(report.file.read_bytes(), x)[0], layer(x).detach())


@pytest.mark.parametrize(("transform", "has_recipe"), [(Dct4(), False), (FastDct4(), True)])
@pytest.mark.parametrize("signs", CHOICES["signs"])
def test_a_foreign_transform(transform, has_recipe, signs, tmp_path, monkeypatch):
    name = type(transform).__name__
    monkeypatch.setitem(TRANSFORMS, name, transform)
    recipe = TransformOffset(name, signs=signs, rows="random")
    layer, x = filled(DpsConv2d(4, 6, 3, density=0.1, offset=recipe)).eval(), torch.randn(2, 4, 6, 6)
    report = export_onnx(layer, tmp_path / "net.onnx", x)
    assert (report.weights[0].why_dense is None) == has_recipe
    assert_same(run(report.file.read_bytes(), x)[0], layer(x).detach())


def test_a_transform_that_contradicts_itself_is_refused(tmp_path, monkeypatch):
    class HalfDone(FastDct4):
        def entries(self, k, p, q):
            return TRANSFORMS["dct"].entries(k, p, q)

    monkeypatch.setitem(TRANSFORMS, "half_done", HalfDone())
    layer = DpsLinear(6, 4, density=0.2, offset=TransformOffset("half_done"), backend="dense")
    with pytest.raises(ValueError, match="contradicts itself"):
        export_onnx(layer, tmp_path / "net.onnx", torch.randn(3, 6))
    assert not list(tmp_path.iterdir())


# --- mistakes -------------------------------------------------------------------------------------------------------


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = DpsLinear(6, 4, density=0.2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class Loop(Branches):
    def forward(self, x):
        for _ in range(int(x[0, 0])):
            x = 2 * x
        return self.layer(x)


class NoTensor(Branches):
    def forward(self, x):
        return {"output": self.layer(x), "classes": 4}


class NoOperator(Branches):
    def forward(self, x):
        return torch.special.bessel_j0(self.layer(x))


class Keeping(Branches):
    def forward(self, x):
        self.kept = self.layer(x)
        return 2 * self.kept


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it deprecated
        return torch.jit.script(nn.Linear(6, 4))


def keeping():
    net = Keeping()
    net(torch.randn(2, 6))
    return net


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (Branches(), torch.randn(2, 6), "cannot trace it.*decide by the values of tensors"),
        (Loop(), torch.randn(2, 6), "cannot trace it.*decide by the values of tensors"),
        (NoTensor(), torch.randn(2, 6), "returns tensors, and this one returns an object of type int"),
        (NoOperator(), torch.randn(2, 6), "torch has no ONNX for it: No ONNX function found for .*bessel"),
        (scripted(), torch.randn(2, 6), "code of torch.jit.*the network of Python"),
        (keeping(), torch.randn(2, 6), "keeps a tensor that was computed with gradients .'kept'."),
        (DpsLinear(6, 4, density=0.2), torch.randn(0, 6), "at least one sample.*shape"),
        (DpsLinear(6, 4, density=0.2), None, "an object of type NoneType"),
        (DpsLinear(6, 4, density=0.2), torch.randn(2, 5), r"does not take the example input of shape \(2, 5\)"),
        (DpsLinear(6, 4, density=0.2), torch.tensor(1.0), "a tensor with a batch axis"),
        (DpsLinear(6, 4, density=0.2), [], "at least one tensor"),
        (DpsLinear(6, 4, density=0.2).double(), torch.randn(2, 6), r"torch.float64.*call \.float\(\)"),
        (nn.Linear(6, 4, device="meta"), torch.randn(2, 6), "on the meta device"),
    ],
)
def test_mistakes_leave_an_old_file_as_it_was(model, example, message, tmp_path, capfd):
    file = tmp_path / "net.onnx"
    file.write_text("old")
    with pytest.raises(ValueError, match=message):
        export_onnx(model, file, example)
    assert [f.name for f in tmp_path.iterdir()] == ["net.onnx"]
    assert file.read_text() == "old"
    assert "def forward" not in capfd.readouterr().err  # torch prints its unfinished graph


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        ("nowhere/net.onnx", FileNotFoundError, "there is no folder"),
        (".", IsADirectoryError, "is a folder; name a file"),
        ("pipe", FileExistsError, "a device or the like"),
    ],
)
def test_a_place_that_cannot_be_written(place, error, message, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(error, match=message):
        export_onnx(DpsLinear(6, 4, density=0.2), tmp_path / place, torch.randn(2, 6))
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_file_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("dctps.export.onnx_file.compare", lambda *_: Comparison(1.0, 2.0, 0.5, Batches(1, None)))
    with pytest.raises(ValueError, match=r"differ from torch's by 1, where the largest is 2.*dense=True"):
        export_onnx(DpsLinear(6, 4, density=0.2), tmp_path / "net.onnx", torch.randn(2, 6))
    with pytest.raises(ValueError, match=r"differ from torch's by 1, where the largest is 2; nothing was written$"):
        export_onnx(DpsLinear(6, 4, density=0.2), tmp_path / "net.onnx", torch.randn(2, 6), dense=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which only Linux has")
def test_a_full_disk_is_said_of_the_file(tmp_path, monkeypatch):
    def write_to_full_disk(path, content):
        with open("/dev/full", "wb") as file:
            return file.write(content)

    monkeypatch.setattr("pathlib.Path.write_bytes", write_to_full_disk)
    with pytest.raises(OSError, match=r"cannot write '.*net\.onnx': No space left"):
        export_onnx(DpsLinear(6, 4, density=0.2), tmp_path / "net.onnx", torch.randn(2, 6))
    assert not list(tmp_path.iterdir())


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_lenet_takes_twelve_kilobytes(tmp_path):
    net = filled(dctps.sparsify(dctps.models.build("lenet"), 0.01))
    assert export_onnx(net, tmp_path / "net.onnx", torch.randn(1, 3, 32, 32)).bytes <= 12_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "density", "float16", "limit"),
    [("vgg19", 1e-3, False, 200_000), ("resnet50", 1e-4, False, 300_000), ("resnet50", 1e-4, True, 150_000)],
)
def test_large_networks_take_kilobytes(model, density, float16, limit, tmp_path):
    net = filled(dctps.sparsify(dctps.models.build(model), density))
    report = export_onnx(net, tmp_path / "net.onnx", torch.randn(1, 3, 32, 32), float16=float16)
    assert report.bytes <= limit
    assert math.isfinite(report.difference)
