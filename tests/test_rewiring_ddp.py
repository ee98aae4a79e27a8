"""Rewiring in several processes: all hold the same supports after every update, those of one process alone."""

import textwrap
from pathlib import Path

import pytest
import torch

from dctps import SET, RigL
from dctps.methods.rewiring.process_group import Peers
from helpers.processes import torchrun
from helpers.rewiring import OPTIMISERS, batch, network

ITERATIONS = 18
CASES = {
    "rigl": (RigL, {}),
    "rigl, plain wrapper": (RigL, {}),
    "rigl, channels last": (RigL, {}),
    "rigl, several batches": (RigL, {"gradient_batches": 3}),
    "rigl, accumulating": (RigL, {"accumulate": True}),
    "set": (SET, {}),
    "rigl, last bits differ": (RigL, {}),
}


def run(case: str, rank: int, world: int, wrap) -> list[dict]:
    """The states after each iteration; each process has its share of the batch."""
    method, options = CASES[case]
    net = network()
    rewire = method(net, OPTIMISERS["adam"](net.parameters()), stop=ITERATIONS, every=4, **options)
    parallel = wrap(net, case)
    history = []
    for t in range(1, ITERATIONS + 1):
        rewire.zero_grad()
        x = batch(t, 8)[rank::world]
        if case == "rigl, channels last":
            x = x.contiguous(memory_format=torch.channels_last)
        if case == "rigl, accumulating":
            first, second = x.chunk(2)
            with parallel.no_sync() if world > 1 else torch.enable_grad():
                loss(parallel, first, world).backward()
            loss(parallel, second, world).backward()
        else:
            loss(parallel, x, world).backward()
        if case == "rigl, last bits differ" and rank:
            with torch.no_grad():
                for layer in rewire.layers.values():
                    layer.values += 0.5 * torch.randn_like(layer.values)  # far more than a bit
        rewire.step()
        if case == "rigl, last bits differ" and world > 1:
            for parameter in net.parameters():
                torch.distributed.broadcast(parameter.data, 0)
        history.append({key: value.clone() for key, value in net.state_dict().items()})
    assert rewire.updates == 4
    return history


def loss(net, x, world):
    """Its mean over the processes, which DistributedDataParallel takes, is that over all eight."""
    return net(x).square().sum() * world / 8


SCRIPT = """
    import sys, torch, pathlib
    import test_rewiring_ddp as t
    from dctps import DSR, RigL
    from dctps.train.processes import Processes, processes
    torch.set_num_threads(1)
    early = t.network()
    made_early = RigL(early, torch.optim.SGD(early.parameters(), lr=0.1), stop=9, every=1)

    def wrap(net, case):
        plain = torch.nn.parallel.DistributedDataParallel
        return plain(net) if case == "rigl, plain wrapper" else group.parallel(net)

    def error_of(run):
        try:
            run()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with processes(torch.device("cpu")) as group:
        results = {case: t.run(case, group.rank, group.world, wrap) for case in t.CASES}
        t.loss(early, t.batch(1), 1).backward()
        results["early"] = error_of(made_early.step)
        net = t.network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        results["dsr"] = error_of(lambda: DSR(net, optimizer, stop=200))
        rewire = RigL(net, optimizer, stop=9, every=1)
        x = t.batch(1) * (float("nan") if group.rank else 1)  # one process alone has a bad image
        t.loss(group.parallel(net), x, 1).backward()
        results["bad"] = error_of(rewire.step)
        torch.save(results, pathlib.Path(sys.argv[1]) / f"rank{group.rank}")
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What both of two processes have seen."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    run = torchrun(str(script), str(folder))
    assert run.returncode == 0, run.stderr[-3000:]
    return [torch.load(Path(folder) / f"rank{rank}") for rank in (0, 1)]


@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_all_processes_hold_the_same_network_after_every_iteration(case, ranks):
    first, second = (rank[case] for rank in ranks)
    assert len(first) == ITERATIONS
    for mine, theirs in zip(first, second, strict=True):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert not torch.equal(first[0]["3._extra_state"], first[-1]["3._extra_state"])


@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_two_processes_follow_one(case, ranks):
    """Sums in another order differ in float64's last bits, 1e-16, and no two magnitudes are that close: the supports
    are equal; values may have drifted by what 18 steps of Adam, which divides by small moments, make of it."""
    alone = run(case, 0, 1, lambda net, case: net)
    for mine, theirs in zip(alone, ranks[0][case], strict=True):
        for key, tensor in mine.items():
            if "_extra_state" in key:
                assert torch.equal(theirs[key], tensor)
            else:
                torch.testing.assert_close(theirs[key], tensor, rtol=1e-8, atol=1e-11)


@pytest.mark.process
def test_what_cannot_be_is_said_in_every_process(ranks):
    for rank in ranks:
        assert rank["early"].startswith("RuntimeError: there are several processes now")
        assert rank["dsr"].startswith("ValueError: DSR changes how many weights a layer has")
    first, second = (rank["bad"] for rank in ranks)
    assert first == "RuntimeError: the dense gradient of layer '0' is not finite in iteration 1"
    assert second == "RuntimeError: iteration 1 cannot rewire; the first process says why"


def test_alone():
    peers, tensor = Peers(), torch.arange(3)
    assert peers.first
    assert peers.total(tensor) is tensor
    assert peers.as_the_first(tensor) is tensor
