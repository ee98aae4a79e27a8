"""The batches that an ONNX file takes: what the report says of them, and networks that decide by their size."""

import pytest
import torch
from torch import nn

from dctps import DpsLinear, export_onnx
from helpers.onnx_files import run

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs the onnx extra")


class Network(nn.Module):
    """A sparse layer, and what a test does with it and with the input."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.then = DpsLinear(6, 4, density=0.2), then

    def forward(self, *x):
        return self.then(self.layer, *x)


def from_four(layer, x):
    return layer(x) if x.shape[0] > 3 else 2 * layer(x)


def up_to_six(layer, x):
    return layer(x) if x.shape[0] <= 6 else 2 * layer(x)


def one_is_other(layer, x):
    return 2 * layer(x) if x.shape[0] == 1 else layer(x)


def even_is_other(layer, x):
    return layer(x) if x.shape[0] % 2 == 0 else 2 * layer(x)


def split(size):
    return lambda layer, x: torch.cat([layer(part) for part in x.split(size)])


def grouped(layer, x):
    return layer(x).view(-1, 8, 4).mean(1)


def of_four(layer, x):
    return layer(x).view(4, 4)


def by_table(layer, x):
    return layer(x) * [0, 1, 2, 3][x.shape[0]]


def plain(layer, x):
    return layer(x)


def added(layer, x, y):
    return layer(x) + layer(y)


@pytest.mark.parametrize(
    ("then", "samples", "words", "right"),
    [
        (plain, 1, "batches of any size$", (1, 2, 7)),
        (from_four, 4, "batches of 4 or more$", (4, 9)),
        (from_four, 2, "batches of 1 to 3$", (1, 2, 3)),
        (from_four, 1, "batches of 1 to 3$", (1, 3)),
        (up_to_six, 4, "batches of 1 to 6$", (1, 6)),
        (one_is_other, 2, "batches of 2 or more$", (2, 5)),
        (split(64), 4, "batches of 1 to 64$", (1, 64)),
        (grouped, 8, r"batches of 8 or more that the network takes \(not 9\)$", (8, 24)),
        (of_four, 4, "batches of 4 only, which the network asks for$", (4,)),
        (by_table, 1, "batches of 1 only, which the network asks for$", (1,)),
        (by_table, 3, "batches of 3 only, which the network asks for$", (3,)),
    ],
)
def test_the_report_says_which_batches_are_right(then, samples, words, right, tmp_path):
    net = Network(then).eval()
    report = export_onnx(net, tmp_path / "net.onnx", torch.randn(samples, 6))
    assert report.any_batch == (words == "batches of any size$")
    assert any(line.endswith(words.removesuffix("$").replace("\\", "")) for line in str(report).splitlines())
    for n in right:
        x = torch.randn(n, 6)
        torch.testing.assert_close(run(report.file.read_bytes(), x)[0], net(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("then", "samples", "message"),
    [
        (one_is_other, 1, "right for batches of 2 and wrong for 1: .*an example of two samples"),
        (even_is_other, 4, "right for batches of 4 and wrong for 1, 5: .* must do the same for all$"),
        (split(2), 4, "right for batches of 4 and wrong for 1, 5, 8: "),
    ],
)
def test_batches_that_torch_confuses_are_refused(then, samples, message, tmp_path, capfd):
    with pytest.raises(ValueError, match=message):
        export_onnx(Network(then), tmp_path / "net.onnx", torch.randn(samples, 6))
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""  # ONNX Runtime prints errors of its own, if it is let


def test_sixteen_bits_do_not_hide_that_one_sample_is_other(tmp_path):
    report = export_onnx(Network(one_is_other), tmp_path / "net.onnx", torch.randn(2, 6), float16=True)
    assert report.batches.smallest == 2


@pytest.mark.parametrize(("rows", "right"), [((4, 1), (7, 1)), ((1, 1), (7, 7)), ((2, 2), (1, 1))])
def test_a_row_for_all_samples(rows, right, tmp_path):
    net = Network(added).eval()
    report = export_onnx(net, tmp_path / "net.onnx", [torch.randn(n, 6) for n in rows])
    assert report.any_batch
    inputs = [torch.randn(n, 6) for n in right]
    torch.testing.assert_close(run(report.file.read_bytes(), *inputs)[0], net(*inputs).detach(), rtol=1e-4, atol=1e-5)


def test_a_file_for_one_size_says_so_itself(tmp_path):
    report = export_onnx(Network(of_four), tmp_path / "net.onnx", torch.randn(4, 6))
    assert [d.dim_value for d in onnx.load(report.file).graph.input[0].type.tensor_type.shape.dim] == [4, 6]


def test_a_vector_without_a_batch_is_of_its_size_only(tmp_path):
    report = export_onnx(DpsLinear(6, 4, density=0.2), tmp_path / "net.onnx", torch.randn(6))
    assert str(report.batches) == "batches of 6 only, which the network asks for"
