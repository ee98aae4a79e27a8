"""A linear layer of 65536 x 65536, four billion weights, is built, trained, saved and loaded on a laptop."""

import os
import resource
import sys
import time

import torch
from torch import nn

import dctps

start = time.perf_counter()
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

dctps.save(net, "huge.safetensors")
with torch.device("meta"):
    twin = nn.Sequential(nn.Linear(65536, 65536))
dctps.load("huge.safetensors", twin)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
print(f"same outputs after loading: {torch.equal(twin(x), net(x))}")
print(f"file: {os.path.getsize('huge.safetensors') / 1e3:.0f} kB, mostly the bias; peak memory: {peak:.2f} GB")
print(f"{time.perf_counter() - start:.1f} s")
