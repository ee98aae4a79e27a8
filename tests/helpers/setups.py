"""What the tests of other people's set-ups share: networks, steps, processes, and libraries that may be missing."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import dctps
from helpers.processes import environment

required = pytest.mark.required_in_ci("Install the test extra: pip install '.[test]'.")


def library(name):
    """Return a library of others, or skip the test."""
    return pytest.importorskip(name, reason=f"needs {name}, which is part of the test extra")


def network(density=0.1, **options):
    """Return a small sparse network with BatchNorm, the same in every call."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10)
    )
    return dctps.sparsify(net, density, **options)


def batch(size=4):
    """Return a batch of images and labels."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, 8, 8, generator=generator), torch.arange(size) % 10


def train(net, optimizer=None, steps=3, after=lambda: None):
    """Train some steps and return the last loss."""
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=1e-2)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        after()
    return loss.item()


def assert_same_network(net, other):
    """Check that two networks have the same supports and give the same outputs, to the last bit."""
    x, _ = batch()
    for a, b in zip(net.modules(), other.modules(), strict=True):
        assert getattr(a, "positions", torch.empty(0)).equal(getattr(b, "positions", torch.empty(0)))
    with torch.no_grad():
        assert torch.equal(net.eval()(x), other.eval()(x))


PREAMBLE = """
import gc, os, sys
from pathlib import Path
import torch, dctps
import torch.distributed as dist
from torch import nn
from helpers.setups import batch, network, train
rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
"""
END = """
dist.barrier()  # a process that leaves while the other still talks to it may abort that one
sys.stdout.flush()
os._exit(0)
"""


def run_processes(code, folder, count):
    """Run a program in `count` processes of one group, with the names of the preamble; return what they print."""
    program = folder / "program.py"
    program.write_text(PREAMBLE + textwrap.dedent(code) + END)
    running = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(count), str(folder)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    outputs = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0] * count, "\n".join(outputs)
    return outputs
