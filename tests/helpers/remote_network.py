"""A program: a network that trains on the device `remote`, and what `auto` measures there.

python -m helpers.remote_network
"""

import copy
import math

import helpers.remote_device as remote  # isort: skip  (registers the device, before any other import uses it)
import torch
from torch import nn

import dctps
from dctps.nn import prunable
from dctps.ops import measurement, stored_times

prunable.Tensor = remote.Remote  # a tensor of the device is a subclass here, which an ordinary tensor is not


def plain():
    first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, groups=16)
    return nn.Sequential(first, nn.BatchNorm2d(16), nn.ReLU(), second, nn.Flatten(), nn.Linear(576, 10)).to("remote")


def batch():
    return torch.randn(4, 3, 8, 8).to("remote"), torch.tensor([1, 2, 3, 4]).to("remote")


def train(rewiring=None, dtype=None, **options):
    """A network after a few steps."""
    net = dctps.sparsify(plain(), 0.1, **options)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    stepper = rewiring(net, optimizer, stop=20, every=2) if rewiring else optimizer
    x, labels = batch()
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("remote", dtype, enabled=dtype is not None):
            y = net(x)
        loss = nn.functional.cross_entropy(y.float(), labels)
        loss.backward()
        stepper.step()
    assert math.isfinite(loss.item())
    return net


def check_training():
    train(offset=None)
    train(dtype=torch.bfloat16)
    for rewiring in (dctps.RigL, dctps.SET):
        train(rewiring)
    net, (x, _) = train().eval(), batch()
    assert torch.equal(copy.deepcopy(net)(x).to("cpu"), net(x).to("cpu"))
    dctps.report(net)


def check_pruning():
    for method in set(dctps.METHODS) - {"synflow"}:  # SynFlow computes in float64
        dctps.prune(plain(), method, 0.3, batches=[batch()], input_shape=(3, 8, 8))


def check_measurement():
    layer, x = dctps.DpsLinear(64, 32, nnz=5, device="remote"), torch.randn(4, 64).to("remote")
    for fastest in ("dense", "torch"):
        stored_times._times.clear()
        stored_times.cache_file().unlink(missing_ok=True)
        remote.waits.clear()
        measurement._milliseconds, real = clock(fastest), measurement._milliseconds
        assert layer.chosen_backend(x) == fastest
        measurement._milliseconds = real
        ((name, times),) = stored_times.used_times().items()
        assert name.endswith(" 0 True False remoteRemoteOne"), name
        assert set(times) == {"dense", "torch", "plain"}
        assert len(remote.waits) >= 2 * 3 * (1 + measurement.REPEATS)  # before and after each run
    dctps.DpsLinear(64, 32, nnz=5)(torch.randn(4, 64))
    assert len(stored_times.used_times()) == 2  # the times of the processor have another name


def clock(fastest):
    """A clock that runs everything on the device, and finds this backend to be the fastest."""
    real = measurement._milliseconds

    def milliseconds(run, device):
        assert device.type == "remote"
        real(run, device)
        return 1.0 if run.args[0] == fastest else 2.0

    return milliseconds


if __name__ == "__main__":
    torch.manual_seed(0)
    check_training()
    check_pruning()
    check_measurement()
    print("done")
