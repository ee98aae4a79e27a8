"""ONNX files of fine-tuned networks: W0 + S merged, and S alone beside a base file that several tasks share."""

import copy

import pytest
import torch
from torch import nn

import dctps
from dctps import export_onnx
from dctps.export.batches import Batches
from dctps.export.check import Comparison
from dctps.nn.fine_tuned import tuned_weights
from helpers.networks import assert_unchanged, snapshot

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the onnx extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
safetensors = pytest.importorskip("safetensors")


class Transformer(nn.Module):
    """Words to classes: an embedding, torch's attention, linear layers and norms."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, 7)

    def forward(self, words):
        return self.head(self.blocks(self.table(words)).mean(1))


def convolutional():
    return nn.Sequential(
        *(nn.Conv2d(3, 40, 3, padding=1), nn.BatchNorm2d(40), nn.ReLU()),
        *(nn.Conv2d(40, 40, 3, stride=2, groups=4, bias=False), nn.BatchNorm2d(40), nn.ReLU()),
        *(nn.ConvTranspose2d(40, 12, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 7), nn.Linear(7, 3)),
    )


def base_network(kind):
    torch.manual_seed(0)
    net = Transformer() if kind == "transformer" else convolutional()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            module.running_mean.normal_()
    return net.eval()


def example(kind, batch=2):
    if kind == "transformer":
        return torch.randint(50, (batch, 9))
    return torch.randn(batch, 3, 8, 8)


HEAD = {"transformer": "head", "convolutional": "9"}
KINDS = list(HEAD)


def task(kind, seed=0, **options):
    """A network fine-tuned for a task, with random values in place of trained ones."""
    net = dctps.sparsify(base_network(kind), 0.02, offset="pretrained", seed=seed, **options)
    generator = torch.Generator().manual_seed(seed)
    for weight in tuned_weights(net).values():
        weight.part.values.data.normal_(0, 0.5, generator=generator)
        if weight.part.alpha is not None:
            weight.part.alpha.data.fill_(0.75)
    for parameter in net.parameters():
        if parameter.requires_grad and parameter.dim() > 1:
            parameter.data += 0.01
    return net


def outputs(file, x):
    """What ONNX Runtime computes with a file on disk and those to which it refers."""
    runtime = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return torch.from_numpy(runtime.run(None, {runtime.get_inputs()[0].name: x.numpy()})[0])


def assert_same(found, expected):
    assert float((found - expected).abs().max()) <= 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_merged(kind, scaled, tmp_path):
    net, x = task(kind, train_alpha=scaled), example(kind, 3)
    before = snapshot(net)
    export_onnx(net, tmp_path / "net.onnx", example(kind))
    assert_unchanged(net, before)
    assert_same(outputs(tmp_path / "net.onnx", x), net(x).detach())


@pytest.mark.parametrize("options", [{}, {"train_alpha": True}, {"float16": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_share_a_base(kind, options, tmp_path):
    base, options = tmp_path / "base.safetensors", dict(options)
    kept = {"float16": options.pop("float16", False)}
    one, two = task(kind, 1, **options), task(kind, 2, train=(HEAD[kind], "norms"), **options)
    before, reports = snapshot(one), []
    for name, net in {"one": one, "two": two}.items():
        reports.append(export_onnx(net, tmp_path / f"{name}.onnx", example(kind), base=base, **kept))
    assert_unchanged(one, before)
    written, x = base.read_bytes(), example(kind, 3)
    for report, net in zip(reports, (one, two), strict=True):
        found, expected = outputs(report.file, x), net(x).detach()
        assert_same(found, expected) if not kept["float16"] else torch.testing.assert_close(
            found, expected, rtol=0, atol=1e-2 * float(expected.abs().max())
        )
        assert (report.base, report.base_bytes) == (base, len(written))
        assert {row.why_dense for row in report.weights} == {None}
        assert {row.offset for row in report.weights} == {"pretrained"}
    assert f"refers to {base}: {len(written):,} bytes" in str(reports[0])
    export_onnx(copy.deepcopy(one), tmp_path / "again.onnx", example(kind), base=base, **kept)
    assert base.read_bytes() == written
    assert (tmp_path / "again.onnx").read_bytes() == reports[0].file.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_takes_no_dense_weight(kind, tmp_path):
    report = export_onnx(task(kind), tmp_path / "a.onnx", example(kind), base=tmp_path / "base.safetensors")
    model = onnx.load(report.file, load_external_data=False)
    inside = [t for t in model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    assert max(t.ByteSize() for t in inside) < 600
    found = onnx.load(report.file)  # with the tensors of the base file
    onnx.checker.check_model(report.file)
    net = base_network(kind)
    largest = max(net.parameters(), key=torch.Tensor.numel).detach()
    assert any(torch.equal(torch.tensor(onnx.numpy_helper.to_array(t)), largest) for t in found.graph.initializer)


def test_a_runtime_computes_the_weights_once_at_load(tmp_path):
    report = export_onnx(task("convolutional"), tmp_path / "a.onnx", example("convolutional"), base=tmp_path / "b")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(report.file, options, providers=["CPUExecutionProvider"])
    left = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph.node}
    assert left <= {"Conv", "Relu", "BatchNormalization", "ConvTranspose", "Flatten", "Reshape", "Gemm"}


def test_both_files_state_the_fingerprint_of_the_base(tmp_path):
    report = export_onnx(task("transformer"), tmp_path / "a.onnx", example("transformer"), base=tmp_path / "b")
    stated = {p.key: p.value for p in onnx.load(report.file, load_external_data=False).metadata_props}
    with safetensors.safe_open(tmp_path / "b", framework="pt") as file:
        assert file.metadata() == stated
        plain = dict(base_network("transformer").named_parameters())
        assert all(torch.equal(file.get_tensor(name), plain[name]) for name in file.keys())  # noqa: SIM118


def test_a_folder_below(tmp_path):
    (tmp_path / "shared").mkdir()
    net, x = task("convolutional"), example("convolutional")
    report = export_onnx(net, tmp_path / "a.onnx", x, base=tmp_path / "shared" / "base.safetensors")
    assert_same(outputs(report.file, x), net(x).detach())


# --- mistakes ---------------------------------------------------------------------------------------------------------


def other_weights():
    net = base_network("convolutional")
    net[0].weight.data[0, 0, 0, 0] += 1
    return dctps.sparsify(net, 0.02, offset="pretrained")


@pytest.mark.parametrize(
    ("net", "base", "options", "message"),
    [
        (other_weights, "base.safetensors", {}, "the base file of other weights.*name another file"),
        (lambda: task("convolutional"), "text", {}, "no base file.*name another file"),
        (lambda: task("convolutional"), "../outside", {}, "in the folder of .* or below"),
        (lambda: task("convolutional"), "net.onnx", {}, "not the same file"),
        (lambda: task("convolutional"), "base.safetensors", {"dense": True}, "give one of them"),
        (lambda: base_network("convolutional"), "base.safetensors", {}, "base= is for fine-tuned networks"),
    ],
)
def test_mistakes_leave_all_files_as_they_were(net, base, options, message, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    export_onnx(task("convolutional"), folder / "net.onnx", example("convolutional"), base=folder / "base.safetensors")
    (folder / "text").write_text("text")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=message):
        export_onnx(net(), folder / "net.onnx", example("convolutional"), base=folder / base, **options)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_failed_check_writes_no_base(tmp_path, monkeypatch):
    monkeypatch.setattr("dctps.export.onnx_file.compare", lambda *_: Comparison(1.0, 2.0, 0.5, Batches(1, None)))
    with pytest.raises(ValueError, match=r"differ from torch's"):
        export_onnx(task("convolutional"), tmp_path / "a.onnx", example("convolutional"), base=tmp_path / "base")
    assert not list(tmp_path.iterdir())


def test_types_are_checked_before_the_base(tmp_path):
    with pytest.raises(ValueError, match=r"torch.float64.*call \.float\(\)"):
        export_onnx(task("convolutional").double(), tmp_path / "a.onnx", example("convolutional"), base=tmp_path / "b")
    assert not list(tmp_path.iterdir())


def test_a_base_in_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="name a file"):
        export_onnx(task("convolutional"), tmp_path / "a.onnx", example("convolutional"), base=tmp_path / "no" / "base")
    assert not list(tmp_path.iterdir())
