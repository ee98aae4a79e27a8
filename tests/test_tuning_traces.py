"""`auto` while torch.compile and torch.export trace: measured, or as measured before; sizes that vary stay free."""

import gc
import json
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import dctps
from dctps import DpsConv2d, DpsLinear
from dctps.ops import stored_times
from helpers.tuning import ALL, FAST, UNDISTURBED, forget, isolate, measuring, surroundings

OPERATORS = {"dense": "dctps.weight", "native": "dctps.multiply", "torch": "dctps.multiply"}
OTHER = {"dense": FAST, FAST: "dense"}


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)
    gc.collect()  # a rewiring that another test has dropped while it watched keeps networks from being compiled
    torch._dynamo.reset()


def compiled_operators(layer, *inputs, **options):
    """The names of the operators in the graph that torch.compile makes, which also computes the right numbers."""
    seen = []

    def backend(graph, example):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    compiled = torch.compile(layer, backend=backend, fullgraph=True, **options)
    for x in inputs:
        torch.testing.assert_close(compiled(x), layer(x))
    return seen


def exported_operators(layer, *inputs, **options):
    program = torch.export.export(layer, inputs[:1], **options)
    for x in inputs:
        torch.testing.assert_close(program.module()(x), layer(x))
    return [str(node.target) for node in program.graph.nodes]


ROWS = torch.export.Dim("rows")
WAYS = {
    "compile": (compiled_operators, {"dynamic": False}),
    "compile, any batch": (compiled_operators, {"dynamic": True}),
    "export": (exported_operators, {"strict": False}),
    "strict export": (exported_operators, {"strict": True}),
    "export, any batch": (exported_operators, {"strict": False, "dynamic_shapes": ({0: ROWS},)}),
    "strict export, any batch": (exported_operators, {"strict": True, "dynamic_shapes": ({0: ROWS},)}),
}


def layers():
    small = DpsConv2d(8, 8, 3, nnz=5)
    return [
        (DpsLinear(64, 32, nnz=5), (4, 64)),
        (small, (4, 8, 5, 5)),
        (DpsLinear(64, 32, nnz=5, offset=None), (4, 64)),
    ]


@pytest.mark.parametrize("favourite", ["dense", FAST])
@pytest.mark.parametrize("way", WAYS)
def test_a_trace_takes_the_backend_that_was_measured(way, favourite, monkeypatch):
    asked = measuring(monkeypatch, **{favourite: 1.0, OTHER[favourite]: 2.0})
    operators, options = WAYS[way]
    for layer, shape in layers():
        batches = [shape, (6, *shape[1:])] if "any batch" in way else [shape]
        found = operators(layer, *(torch.randn(batch) for batch in batches), **options)
        assert any(OPERATORS[favourite] in name for name in found), found
        assert not any(OPERATORS[OTHER[favourite]] in name for name in found), found
    assert asked[: 3 * len(ALL)] == ALL * 3  # at the first trace, which comes before the layer's own pass
    forget(monkeypatch)
    measured = len(asked)
    torch._dynamo.reset()
    for layer, shape in layers():  # now the times are in the file
        operators(layer, torch.randn(shape), **options)
    assert len(asked) == measured


def test_a_layer_that_ran_before_is_not_measured_in_a_trace(monkeypatch):
    asked = measuring(monkeypatch, dense=1.0, **{FAST: 2.0})
    layer, x = DpsConv2d(8, 8, 3, nnz=5), torch.randn(4, 8, 5, 5).contiguous(memory_format=torch.channels_last)
    layer(x)
    assert "dctps.weight" in str(compiled_operators(layer, x))
    assert "dctps.weight" in str(exported_operators(layer, x))
    assert asked == ALL


def test_one_graph_serves_all_batches(monkeypatch):
    measuring(monkeypatch, dense=1.0, **{FAST: 2.0})
    layer, graphs = DpsLinear(64, 32, nnz=5), []
    compiled = torch.compile(layer, backend=lambda graph, _: graphs.append(graph) or graph, dynamic=True)
    for rows in (4, 7, 100):
        compiled(torch.randn(rows, 64))
    assert len(graphs) == 1


@pytest.mark.parametrize("strict", [True, False])
def test_a_size_that_only_the_data_tell_is_left_to_the_rule(strict, monkeypatch):
    asked = measuring(monkeypatch)

    class Selected(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = DpsLinear(64, 32, nnz=5)

        def forward(self, x):
            return self.layer(x[x[:, 0] > 0])

    program = torch.export.export(Selected(), (torch.randn(9, 64),), strict=strict)
    assert "dctps.weight" in str(program.graph)
    assert asked == []


def test_a_fake_tensor_outside_of_a_trace_is_not_measured(monkeypatch):
    asked = measuring(monkeypatch, dense=2.0, **{FAST: 1.0})
    layer = DpsLinear(64, 32, nnz=5)

    def choice():
        with FakeTensorMode():
            return layer.chosen_backend(torch.empty(4, 64))

    assert choice() == "dense"  # by the rule
    assert asked == []
    layer(torch.randn(4, 64))
    assert choice() == FAST


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_converted_network_is_measured_compiled_and_trained(backend, monkeypatch):
    seen = surroundings(monkeypatch)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.Flatten())
    net = dctps.sparsify(nn.Sequential(*net, nn.Linear(576, 10)), 0.1)
    x, before = torch.randn(2, 3, 8, 8), torch.get_rng_state()
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    y = compiled(x)
    y.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    assert seen == [UNDISTURBED] * 3  # before the network itself has run
    net.zero_grad()
    expected = net(x)
    expected.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradients, [parameter.grad for parameter in net.parameters()], rtol=1e-4, atol=1e-4)
    times = json.loads(stored_times.cache_file().read_text())
    assert len(times) == 3
    assert all(0 < ms < math.inf for table in times.values() for ms in table.values())
    assert all(set(table) == set(ALL) for table in times.values())


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_network_is_measured_on_numbers(strict, monkeypatch):
    seen = surroundings(monkeypatch)
    net = dctps.sparsify(nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(576, 10)), 0.1).eval()
    x = torch.randn(2, 3, 8, 8)
    program = torch.export.export(net, (x,), strict=strict)
    assert seen == [UNDISTURBED] * 2
    torch.testing.assert_close(program.module()(x), net(x))


def test_modes_and_autocast_of_a_trace_count(monkeypatch):
    measuring(monkeypatch, dense=1.0, **{FAST: 2.0})
    layer = DpsLinear(64, 32, nnz=5)

    def run(x):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return layer(x)

    torch.compile(run, backend="eager", fullgraph=True)(torch.randn(4, 64))
    (case,) = stored_times._times
    assert (case.dtype, case.gradients) == (torch.bfloat16, False)
