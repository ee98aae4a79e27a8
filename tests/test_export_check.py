"""The check of ONNX files: outputs that are not finite, several outputs, other types, and the caller's settings."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dctps import DpsLinear, export_onnx
from dctps.export.capture import capture
from dctps.export.check import compare
from dctps.export.gaps import INFINITE, Gap, gap, worst_ratio
from helpers.onnx_files import run

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs the onnx extra")

NAN, INF = float("nan"), float("inf")


class Network(nn.Module):
    """A sparse layer, and what a test does with it and with the input."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.norm, self.then = DpsLinear(6, 4, density=0.2), nn.LayerNorm(4), then

    def forward(self, x):
        return self.then(self, x)


@pytest.mark.parametrize(
    ("found", "expected", "difference", "largest"),
    [
        ([1.0, 2.0], [1.5, 2.0], 0.5, 2.0),
        ([NAN, NAN], [1.0, 2.0], INFINITE, 2.0),
        ([NAN, 2.0], [NAN, 3.0], 1.0, 3.0),
        ([INF, 2.0], [INF, 2.0], 0.0, 2.0),
        ([INF, 2.0], [-INF, 2.0], INFINITE, 2.0),
        ([1.0, 2.0], [NAN, 2.0], INFINITE, 2.0),
        ([INF, 2.0], [1e38, 2.0], INFINITE, 1e38),
        ([[1.0, 2.0]], [1.0, 2.0], INFINITE, 2.0),
        ([True, False], [True, True], 1.0, 1.0),
        ([3, 4], [3, 7], 3.0, 7.0),
    ],
)
def test_the_gap_of_an_output(found, expected, difference, largest):
    made = gap(np.array(found), torch.tensor(expected))
    assert made.difference == pytest.approx(difference)
    assert made.largest == pytest.approx(largest)


def test_each_output_is_measured_by_its_own_largest_value():
    assert worst_ratio([Gap(0.01, 100.0), Gap(0.05, 1.0)]) == pytest.approx(0.05)
    assert worst_ratio([Gap(1e-5, 100.0), Gap(1e-7, 1e-7)]) < 1e-5  # float32 leaves no more of a sum of hundreds


def test_a_file_of_other_numbers_in_a_small_output_is_refused(tmp_path):
    captured = capture(Network(lambda net, x: (1000 * net.layer(x), net.layer(x))).eval(), torch.randn(2, 6))
    report = export_onnx(captured.network, tmp_path / "net.onnx", torch.randn(2, 6))
    other = dataclasses.replace(captured, network=Network(lambda net, x: (1000 * net.layer(x), 1.1 * net.layer(x))))
    other.network.layer = captured.network.layer
    found = compare(report.file.read_bytes(), other)
    assert found.ratio == pytest.approx(0.1, rel=0.1)
    assert found.largest < 100


@pytest.mark.parametrize(
    "then",
    [
        lambda net, x: torch.sqrt(net.layer(x)),
        lambda net, x: torch.log(x.abs().round()),
        lambda net, x: net.layer(x).masked_fill(x[:, :4] > 0, -INF),
    ],
)
def test_outputs_that_are_finite_in_part(then, tmp_path):
    report = export_onnx(Network(then), tmp_path / "net.onnx", torch.randn(3, 6))
    assert 0 <= report.difference <= 1e-5 * report.largest


def beyond_normal_numbers(net, x):
    return net.layer(torch.log(x - 50))


def test_the_example_itself_is_compared(tmp_path):
    export_onnx(Network(beyond_normal_numbers), tmp_path / "net.onnx", 51 + torch.rand(2, 6))
    with pytest.raises(ValueError, match=r"output 1 of 1 has no finite number in torch.*give an example"):
        export_onnx(Network(beyond_normal_numbers), tmp_path / "other.onnx", torch.zeros(2, 6))
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("dense", [False, True])
def test_a_network_that_draws_random_numbers_is_refused(dense, tmp_path):
    with pytest.raises(ValueError, match=r"returns other outputs each time.*training=self\.training"):
        export_onnx(Network(lambda net, x: F.dropout(net.layer(x))), tmp_path / "a", torch.randn(2, 6), dense=dense)


def everything(net, x):
    y = net.layer(x)
    return y, y.argmax(1), y > 0, net.norm.weight, y, x


def test_outputs_of_all_types_and_origins(tmp_path):
    net, x = Network(everything).eval(), torch.randn(3, 6)
    export_onnx(net, tmp_path / "net.onnx", x)
    for found, expected in zip(run((tmp_path / "net.onnx").read_bytes(), x), net(x), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)


# --- settings of the caller -----------------------------------------------------------------------------------------


def ones(net, x):
    return net.norm(net.layer(x)) + torch.ones(4)


SETTINGS = {
    "the meta device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_caller_change_nothing(name, tmp_path):
    net, x = Network(ones).eval(), torch.randn(2, 6)
    export_onnx(net, tmp_path / "a.onnx", x)
    with SETTINGS[name]():
        report = export_onnx(net, tmp_path / "b.onnx", x)
    assert report.difference <= 1e-5 * report.largest
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_default_type_of_the_caller_changes_nothing_and_stays(tmp_path):
    net, x = Network(ones).eval(), torch.randn(2, 6)
    torch.set_default_dtype(torch.float64)
    try:
        export_onnx(net, tmp_path / "net.onnx", x)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert run((tmp_path / "net.onnx").read_bytes(), x)[0].dtype == torch.float32
