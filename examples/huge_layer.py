"""A linear layer of 65536 x 65536, four billion weights, is built, trained, saved and loaded on a laptop."""

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import dctps


def peak_memory() -> float:
    """Return the most memory that this process has held so far, in GB; ru_maxrss has bytes on macOS, else kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


start, before = time.perf_counter(), peak_memory()
with torch.device("meta"):  # a network on the meta device has shapes only: no dense weight ever exists
    net = nn.Sequential(nn.Linear(65536, 65536))
dctps.sparsify(net, density=1e-5)
print(dctps.report(net))

optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
x, target = torch.randn(8, 65536), torch.randn(8, 65536)
for _ in range(3):
    optimiser.zero_grad()
    loss = (net(x) - target).square().mean()
    loss.backward()
    optimiser.step()
    print(f"loss {loss.item():.4f}")

with torch.device("meta"):
    twin = nn.Sequential(nn.Linear(65536, 65536))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "huge.safetensors")
    dctps.save(net, path)
    dctps.load(path, twin)
    print(f"same outputs after loading: {torch.equal(twin(x), net(x))}")
    print(f"file: {path.stat().st_size / 1e3:.0f} kB, mostly the bias")
print(f"peak memory: {peak_memory():.2f} GB, of which {before:.2f} GB before the layer was built")
print(f"{time.perf_counter() - start:.1f} s")
