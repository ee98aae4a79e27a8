"""Set-ups of torch's own tools. The first sentence of each test is a row of the table in docs/compatibility.md."""

import copy
import io
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import dctps
from dctps.nn.dps_layer import DpsLayer
from helpers.processes import environment
from helpers.setups import assert_same_network, batch, library, network, required, run_processes, train

# --- averages, copies, states -----------------------------------------------------------------------------------------


def test_ema():
    """EMA by `AveragedModel`, with or without buffers: works; the positions are never averaged."""
    for use_buffers in (True, False):
        net = network()
        ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
        train(net, after=lambda net=net, ema=ema: ema.update_parameters(net), steps=50)
        assert torch.equal(ema.module[0].positions, net[0].positions)
        assert train(ema.module) < 5


def test_ema_while_weights_move():
    """EMA while a rewiring moves weights: refused in a forward pass of the average; average after the last move."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    rewire = dctps.SET(net, optimizer, stop=20, every=2)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(net, rewire, steps=6, after=lambda: ema.update_parameters(net))
    with pytest.raises(RuntimeError, match="belong to other positions"):
        ema(batch()[0])


def test_swa():
    """SWA by `AveragedModel` and `update_bn`: works."""
    net = network()
    swa = AveragedModel(net)
    train(net, after=lambda: swa.update_parameters(net), steps=5)
    update_bn([batch()[0]], swa)
    assert swa.eval()(batch()[0]).isfinite().all()


def test_average_of_states():
    """An average of state_dicts, as in federated learning: works between equal supports; different ones are refused."""
    one, two, other = network(), network(), network(seed=1)
    train(two)
    states = [net.state_dict() for net in (one, two, other)]
    one.load_state_dict({key: (states[0][key].double() + states[1][key].double()) / 2 for key in states[0]})
    with pytest.raises(RuntimeError, match="different supports"):
        one.load_state_dict({key: (states[0][key].double() + states[2][key].double()) / 2 for key in states[0]})


def test_deepcopy():
    """`copy.deepcopy`: works; the copies share nothing."""
    net = network()
    other = copy.deepcopy(net)
    assert_same_network(net, other)
    train(other.train())
    assert not torch.equal(net[0].values, other[0].values)


def test_pickle():
    """`pickle`, and `torch.save` of a whole network: works."""
    net, file = network(), io.BytesIO()
    assert_same_network(net, pickle.loads(pickle.dumps(net)))
    torch.save(net, file)
    file.seek(0)
    assert_same_network(net, torch.load(file, weights_only=False))


def test_state_dict():
    """`torch.save` of a state_dict, loaded with weights_only: works; another shape, offset or density is refused."""
    net, other, file = network(), network(seed=1), io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert_same_network(net, other)
    for options in ({"offset": "dst"}, {"density": 0.2}):
        with pytest.raises(RuntimeError, match=r"belongs to a layer with|sparsify with the same density"):
            network(**options).load_state_dict(net.state_dict())


def test_safetensors(tmp_path):
    """A state_dict in a safetensors file (`save_model`, `load_model`): works; another offset is refused."""
    from safetensors.torch import load_model, save_model

    net, other = network(), network(seed=1)
    save_model(net, tmp_path / "net.safetensors")
    assert load_model(other, tmp_path / "net.safetensors") == (set(), [])
    assert_same_network(net, other)
    with pytest.raises(RuntimeError, match="belongs to a layer with"):
        load_model(network(offset="dct"), tmp_path / "net.safetensors")


def test_distributed_checkpoint(tmp_path):
    """Distributed checkpoints (`torch.distributed.checkpoint`): works; another offset is refused."""
    net, other = network(), network(seed=1)
    dcp.save({"model": net.state_dict()}, checkpoint_id=tmp_path / "a", no_dist=True)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "a", no_dist=True)
    other.load_state_dict(state["model"])
    assert_same_network(net, other)
    foreign = network(offset="dst")
    state = {"model": foreign.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / "a", no_dist=True)
    with pytest.raises(RuntimeError, match="belongs to a layer with"):
        foreign.load_state_dict(state["model"])


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_ddp(tmp_path):
    """DistributedDataParallel: works; processes with different supports are refused at the first forward pass."""
    code = """
    net = network()
    parallel = nn.parallel.DistributedDataParallel(net)
    train(parallel)
    both = [torch.empty_like(net[0].values) for _ in range(count)]
    dist.all_gather(both, net[0].values.detach())
    assert torch.equal(*both)
    other = nn.parallel.DistributedDataParallel(network(seed=rank))
    try:
        other(batch()[0])
        print("accepted")
    except RuntimeError as error:
        print("refused" if "belong to other positions" in str(error) else error)
    """
    first, second = run_processes(code, tmp_path, 2)
    assert first.endswith("accepted\n")  # the first process has the support that all values now belong to
    assert second.endswith("refused\n")


FSDP = """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
    import torch.distributed.checkpoint as dcp

    def sharded(seed):
        net = network(seed=seed)
        for layer in (net[0], net[4]):
            fully_shard(layer)
        return fully_shard(net)

    net = sharded(0)
    train(net, steps=5)
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(net, options=options)
    alone = network()
    train(alone, steps=5)
    for key, tensor in alone.state_dict().items():  # all processes have the same batch
        if rank == 0:
            torch.testing.assert_close(state[key], tensor)
    dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=folder / "checkpoint")
    other = sharded(1)
    part = {"model": get_model_state_dict(other)}
    dcp.load(part, checkpoint_id=folder / "checkpoint")
    set_model_state_dict(other, part["model"])
    with torch.no_grad():
        assert torch.equal(other.eval()(batch()[0]), net.eval()(batch()[0]))
    assert torch.equal(other[0].positions, net[0].positions)
    train(other.train())
"""


@pytest.mark.process
@pytest.mark.parametrize("count", [1, 2])
def test_fsdp(count, tmp_path):
    """FSDP2 (`fully_shard`), one process or several: trains as one process does, saves and loads; no rewiring."""
    run_processes(FSDP, tmp_path, count)


def test_sync_batchnorm():
    """`SyncBatchNorm.convert_sync_batchnorm`: works; after `sparsify_norms` it is refused."""
    net = nn.SyncBatchNorm.convert_sync_batchnorm(network())
    assert isinstance(net[1], nn.SyncBatchNorm)
    with pytest.raises(TypeError):
        nn.SyncBatchNorm.convert_sync_batchnorm(dctps.sparsify_norms(network(), 0.5))


# --- compilers and exports --------------------------------------------------------------------------------------------


def test_compile():
    """`torch.compile`: works."""
    net = network()
    compiled = torch.compile(copy.deepcopy(net), backend="aot_eager", fullgraph=True)
    x, _ = batch()
    torch.testing.assert_close(compiled(x), net(x))
    train(compiled)


LOADED = """
import sys, torch, dctps.nn.layers
folder = sys.argv[1]
x = torch.load(f"{folder}/x.pt")
load = {
    "trace": lambda: torch.jit.load(f"{folder}/net.ts"),
    "export": lambda: torch.export.load(f"{folder}/net.pt2").module(),
    "package": lambda: torch._inductor.aoti_load_package(f"{folder}/package.pt2"),
}
net = load[sys.argv[2]]()
torch.save(net(x), f"{folder}/y.pt")
"""


def outputs_elsewhere(folder, kind, x):
    """Return the outputs of a saved network in another process."""
    torch.save(x, folder / "x.pt")
    command = [sys.executable, "-c", LOADED, str(folder), kind]
    subprocess.run(command, check=True, env=environment(), timeout=200)
    return torch.load(folder / "y.pt")


@pytest.mark.process
def test_export(tmp_path):
    """`torch.export`: works; another program imports `dctps.nn.layers` before it loads the file."""
    net, (x, _) = network().eval(), batch()
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    torch.testing.assert_close(outputs_elsewhere(tmp_path, "export", x), net(x))


@pytest.mark.process
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")
def test_package(tmp_path):
    """A package of AOTInductor: works; another program imports `dctps.nn.layers` before it loads the file."""
    net, (x, _) = network().eval(), batch()
    program = torch.export.export(net, (x,))
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "package.pt2"))
    torch.testing.assert_close(outputs_elsewhere(tmp_path, "package", x), net(x))


@pytest.mark.process
def test_trace(tmp_path):
    """`torch.jit.trace`: works; another program imports `dctps.nn.layers` before it loads the file."""
    net, (x, _) = network().eval(), batch()
    torch.jit.trace(net, x).save(tmp_path / "net.ts")
    torch.testing.assert_close(outputs_elsewhere(tmp_path, "trace", x), net(x))


def test_script():
    """`torch.jit.script`: refused; script a dense copy, `dctps.densify(copy.deepcopy(net))`."""
    net = network()
    with pytest.raises(RuntimeError, match="cannot compile a DpsConv2d; script a dense copy"):
        torch.jit.script(net)
    torch.jit.script(dctps.densify(copy.deepcopy(net)))
    assert isinstance(net[0], DpsLayer)


@required
@pytest.mark.process
def test_onnx(tmp_path):
    """`torch.onnx.export`: refused; use `dctps.export_onnx`, or export a dense copy."""
    library("onnxscript")
    net = network().eval()
    with pytest.raises(Exception, match=r"dctps\.densify\(copy\.deepcopy\(net\)\) first"):
        torch.onnx.export(net, (batch()[0],), tmp_path / "net.onnx")
    torch.onnx.export(dctps.densify(copy.deepcopy(net)), (batch()[0],), tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").exists()


# --- ways of computing ------------------------------------------------------------------------------------------------


def test_autocast():
    """Autocast (bfloat16, float16) with or without a GradScaler: works."""
    net = network()
    optimizer, (x, y) = torch.optim.Adam(net.parameters(), lr=1e-2), batch()
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert net[0].values.grad.dtype == torch.float32


def test_per_sample_gradients():
    """`torch.func` (grad, vmap, jvp, `functional_call`): works, with W built for it."""
    net = network().eval()
    parameters, (x, y) = dict(net.named_parameters()), batch()

    def loss(parameters, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(net, parameters, (x[None],)), y[None])

    each = torch.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    nn.functional.cross_entropy(net(x), y).backward()
    torch.testing.assert_close(each["0.values"].mean(0), net[0].values.grad)


def test_ensemble():
    """An ensemble by `stack_module_state` and vmap: works if the members share their supports; else it is refused."""
    x, _ = batch()

    def outputs(nets):
        state = torch.func.stack_module_state([net.eval() for net in nets])
        base = copy.deepcopy(nets[0]).to("meta")
        return torch.vmap(lambda *s: torch.func.functional_call(base, s, (x,)))(*state)

    nets = [network(), network()]
    train(nets[1])
    torch.testing.assert_close(outputs(nets), torch.stack([net(x) for net in nets]))
    with pytest.raises(RuntimeError, match="belong to other positions"):
        outputs([network(), network(seed=1)])


def test_gradient_checkpointing():
    """Gradient checkpointing: works."""
    net, (x, _) = network(), batch()
    y = torch.utils.checkpoint.checkpoint_sequential(net, 2, x, use_reentrant=False)
    y.sum().backward()
    assert net[0].values.grad is not None


def test_clipping_and_schedules():
    """Clipping of gradients, accumulation, learning-rate schedules, any optimiser of torch: works."""
    for make in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam):
        net = network()
        optimizer = make(dctps.param_groups(net, weight_decay=0.01), lr=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=4, cycle_momentum=False)
        for _ in range(3):
            nn.functional.cross_entropy(net(batch()[0]), batch()[1]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def test_channels_last_and_casts():
    """`.to()` with another type, device or memory format, and the meta device: works; positions follow."""
    net = network()
    net.to(memory_format=torch.channels_last).double().bfloat16().float()
    net(batch()[0].to(memory_format=torch.channels_last))
    state = net.state_dict()
    other = network(seed=1).to("meta").to_empty(device="cpu")
    other.load_state_dict(state)
    assert_same_network(net, other)
