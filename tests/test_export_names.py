"""Names of inputs and outputs of ONNX files, which may be those of values inside of the graph."""

import pytest
import torch
from torch import nn

from dctps import DpsLinear, export_onnx
from dctps.export.graph import Graph
from helpers.onnx_files import run

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
pytest.importorskip("onnxscript", reason="needs the onnx extra")
pytest.importorskip("onnxruntime", reason="needs the onnx extra")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = DpsLinear(6, 6, density=0.2)


class Operators(Network):
    def forward(self, relu, mean):
        return (self.layer(relu).relu() + mean).mean(1)


class Ends(Network):
    def forward(self, output, input):
        return self.layer(output) + input


class Letters(Network):
    def forward(self, a, a_):
        return self.layer(a).relu() + self.layer(a_) * a


class Weights(Network):
    def forward(self, weights_0, kwargs_weights_0):
        return self.layer(weights_0).relu() + kwargs_weights_0


class Branches(Network):
    def forward(self, relu, x):
        made = torch.cond(x.sum() > 0, lambda y: self.layer(y).relu(), lambda y: -2 * self.layer(y).relu(), (x,))
        return made + relu


@pytest.mark.parametrize("kind", [Operators, Ends, Letters, Weights, Branches])
def test_inputs_have_the_names_of_their_arguments(kind, tmp_path):
    net = kind().eval()
    names = kind.forward.__code__.co_varnames[1:3]
    export_onnx(net, tmp_path / "net.onnx", {name: torch.randn(2, 6) for name in names})
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [value.name for value in graph.input] == list(names)
    for sign in (1, -1):
        inputs = [sign * torch.rand(3, 6) for _ in names]
        expected = net(**dict(zip(names, inputs, strict=True))).detach()
        torch.testing.assert_close(
            run((tmp_path / "net.onnx").read_bytes(), *inputs)[0], expected, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", [f"{'abcdefgh'[i]}{'_' * j}" for i in range(8) for j in range(2)])
def test_short_names_are_no_names_of_inputs(name):
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        network (float[2] {name}, float[2] {name}_) => (float[2] output) {{
            one = Relu({name})
            two = Relu({name}_)
            three = Add(one, two)
            output = Add(three, one)
        }}"""
    )
    onnx.checker.check_model(Graph(made).model(), full_check=True)


def test_values_inside_of_branches_are_renamed():
    made = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        network (bool c, float[2] x) => (float[2] z) {
            y = If (c) <
                then_branch = one () => (float[2] inner) { inner = Relu(x) },
                else_branch = two () => (float[2] other) { inner = Neg(x)  other = Neg(inner) }
            >
            z = Neg(y)
        }"""
    )
    graph = Graph(made)
    graph.free(["inner", "y"])
    assert not {"inner", "y"} & graph.names()
    graph.rename("x", "inner")
    onnx.checker.check_model(graph.model(), full_check=True)
