"""Files of torch's own exporters, in programs that cannot import dctps: dense copies run, sparse networks do not."""

import copy
import shutil
import subprocess
import sys

import pytest
import torch

import dctps
from dctps.nn.dps_layer import DpsLayer
from helpers.processes import environment
from helpers.setups import batch, network, train

pytestmark = pytest.mark.process
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")
KINDS = ["program", "trace", pytest.param("package", marks=needs_compiler)]
PROGRAM = """
import sys
kind, folder, library = sys.argv[1:]
if library == "with":
    import dctps.nn.layers
else:
    sys.modules["dctps"] = None  # an import of dctps is an error from here on
import torch
if kind == "package":
    net = torch._inductor.aoti_load_package(f"{folder}/package.pt2")
elif kind == "program":
    net = torch.export.load(f"{folder}/program.pt2").module()
else:
    net = torch.jit.load(f"{folder}/trace")
torch.save([net(x) for x in torch.load(f"{folder}/inputs")], f"{folder}/outputs")
"""


def trained():
    """Return a sparse network whose values and running statistics are not those of its beginning."""
    net = network()
    train(net)
    return net.eval()


def write(net, kind, folder):
    """Write a network as the program of torch.export, as a package of AOTInductor, or as a trace."""
    x = batch()[0]
    if kind == "trace":
        torch.jit.trace(net, x).save(folder / kind)
        return
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch", max=64)},))
    file = folder / f"{kind}.pt2"
    if kind == "program":
        torch.export.save(program, file)
    else:
        torch._inductor.aoti_compile_and_package(program, package_path=str(file))


def run_elsewhere(kind, folder, library):
    """Compute batches of two sizes in a new process, with or without dctps; return the process."""
    torch.save([batch(4)[0], batch(7)[0]], folder / "inputs")
    command = [sys.executable, "-c", PROGRAM, kind, str(folder), library]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)


def assert_same_outputs(net, folder):
    for x, y in zip(torch.load(folder / "inputs"), torch.load(folder / "outputs"), strict=True):
        torch.testing.assert_close(y, net(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dense_copy_runs_without_the_library(kind, tmp_path):
    net = trained()
    write(dctps.densify(copy.deepcopy(net)), kind, tmp_path)
    found = run_elsewhere(kind, tmp_path, "without")
    assert found.returncode == 0, found.stderr
    assert_same_outputs(net, tmp_path)
    assert isinstance(net[0], DpsLayer)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_network_runs_with_the_library_only(kind, tmp_path):
    net = trained()
    write(net, kind, tmp_path)
    found = run_elsewhere(kind, tmp_path, "without")
    assert found.returncode != 0
    assert "dctps::" in found.stderr or "torch.ops.dctps." in found.stderr  # torch names the operator that is missing
    found = run_elsewhere(kind, tmp_path, "with")
    assert found.returncode == 0, found.stderr
    assert_same_outputs(net, tmp_path)
