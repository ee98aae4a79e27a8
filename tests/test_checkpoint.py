"""The file: bit-equal round trips, its size, and errors before anything is touched."""

import json
import os
import stat
import struct
import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save as serialize
from torch import nn

import dctps
from dctps import OFFSETS, CheckpointError, DpsLinear, Support
from dctps.base.files import write_atomically
from dctps.checkpoint.contents import read
from helpers.checkpoints import assert_equal_states, rewrite, trained
from helpers.networks import assert_unchanged, cnn, snapshot
from helpers.offsets import Ones


@given(
    offset=st.sampled_from([None, *OFFSETS, "dst/channel/position/random/7"]),
    density=st.floats(0.001, 1),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    train_alpha=st.booleans(),
    seeded=st.booleans(),
    into=st.sampled_from(["plain", "sparse", "meta"]),
)
def test_save_then_load_is_bit_equal(tmp_path_factory, offset, density, dtype, train_alpha, seeded, into):
    path = tmp_path_factory.mktemp("files") / "net.safetensors"
    options = {"offset": offset, "train_alpha": train_alpha, "exclude": "3.*"}
    net = dctps.sparsify(cnn().to(dtype), density, **options)
    if not seeded:  # as after rewiring: other places than the seed's
        positions = Support.sample(net[0].support.shape, net[0].nnz, seed=77).positions
        net[0].move(Support(net[0].support.shape, positions), net[0].values)
    trained(net)
    dctps.save(net, path)
    with torch.device("meta" if into == "meta" else "cpu"):
        other = cnn().to(dtype)
    if into == "sparse":
        dctps.sparsify(other, density, **options)
    parameters = [id(p) for p in other.parameters()]
    assert dctps.load(path, other) is other
    assert_equal_states(net, other)
    assert [type(m) for m in net.modules()] == [type(m) for m in other.modules()]
    assert [p.requires_grad for p in net.parameters()] == [p.requires_grad for p in other.parameters()]
    if into == "sparse":
        assert [id(p) for p in other.parameters()] == parameters  # an optimiser still knows them


@pytest.mark.parametrize("offset", ["dct", "pretrained"])
def test_the_same_network_gives_the_same_bytes(offset, path):
    net, contents = dctps.sparsify(cnn(), 0.2, offset=offset), set[bytes]()
    net.register_buffer('quoted" ä\n\x7f', torch.ones(3))
    for _ in range(20):
        dctps.save(net, path)
        contents.add(path.read_bytes())
    assert len(contents) == 1
    (content,) = contents
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
        theirs = serialize(tensors, file.metadata())
    end = 8 + int.from_bytes(theirs[:8], "little")
    assert json.loads(content[8:end]) == json.loads(theirs[8:end])  # only the order of the metadata differs
    assert (content[:8], content[end:]) == (theirs[:8], theirs[end:])


def test_a_bare_layer_and_tied_tensors(path):
    layer = trained(dctps.sparsify(nn.Linear(9, 5), 0.3))
    dctps.save(layer, path)
    assert_equal_states(dctps.load(path, nn.Linear(9, 5)), layer)

    def tied():
        net = nn.ModuleDict({"a": nn.Embedding(6, 4), "b": nn.Linear(4, 6), "c": nn.Linear(4, 4)})
        net["b"].weight = net["a"].weight
        net["d"] = net["c"]  # one layer under two names
        return net

    net = trained(dctps.sparsify(tied(), 0.5))
    dctps.save(net, path)
    assert "b.weight" not in read(path).tensors
    for device in ("cpu", "meta"):
        with torch.device(device):
            other = tied()
        dctps.load(path, other)
        assert_equal_states(net, other)
        assert other["b"].weight is other["a"].weight
        assert other["c"] is other["d"]


def test_a_file_of_another_precision_takes_the_network_s(path):
    dctps.save(trained(dctps.sparsify(cnn().double(), 0.1)), path)
    assert {p.dtype for p in dctps.load(path, cnn()).parameters()} == {torch.float32}


def unpruned_bytes(net):
    own = ("values", "positions", "alpha")
    return sum(t.numel() * t.element_size() for n, t in net.state_dict().items() if n.split(".")[-1] not in own)


@pytest.mark.parametrize("width", [10_000, 100_000])
def test_a_million_values_take_four_bytes_with_a_seed_and_under_seven_without(width, path):
    with torch.device("meta"):
        net = nn.Sequential(*(nn.Linear(width // 2, width // 2) for _ in range(4)), nn.BatchNorm1d(8))
    dctps.sparsify(net, 1e6 / width**2)
    assert dctps.report(net).nnz == 1_000_000
    dctps.save(net, path)
    assert path.stat().st_size <= 4 * 1_000_000 + 16 * 1024 + unpruned_bytes(net)
    for layer in net:
        if isinstance(layer, DpsLinear):
            layer.seed = None
    dctps.save(net, path)
    assert path.stat().st_size <= 7 * 1_000_000 + unpruned_bytes(net)


def test_a_seed_is_kept_only_while_it_is_true(path):
    net = dctps.sparsify(cnn(), 0.1)
    dctps.save(net, path)
    assert all(entry.seed is not None for entry in read(path).entries)
    net[0].positions[-1] += 1 if net[0].positions[-1] < 16 * 27 - 1 else 0
    net[0].positions[0] = 0
    dctps.save(net, path)
    assert [entry.seed is None for entry in read(path).entries] == [True, False, False]


# --- what does not fit ----------------------------------------------------------------------------------------------


def wider():
    net = cnn()
    net[6] = nn.Linear(32, 11)
    return net


def without_norm():
    net = cnn()
    net[1] = nn.Identity()
    return net


def with_more_layers():
    return nn.Sequential(*cnn(), nn.BatchNorm1d(10))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (wider, r"layer '6' has a weight of shape \(11, 32\), the file \(10, 32\)"),
        (without_norm, r"missing in the network: \['1.bias', '1.num_batches_tracked'"),
        (with_more_layers, r"missing in the file: \['7.bias'"),
        (lambda: nn.Linear(3, 3), "no layer '0'"),
        (lambda: nn.Sequential(nn.Conv1d(3, 16, 3), *cnn()[1:]), r"shape \(16, 3, 3\), the file \(16, 3, 3, 3\)"),
        (lambda: nn.Sequential(nn.Flatten(), *cnn()[1:]), "its '0' is a Flatten"),
        (lambda: dctps.sparsify(cnn(), 0.2), r"sparse layer '0' has \(shape, nnz, offset\)"),
        (lambda: dctps.sparsify(cnn(), 0.1, offset=None), r"sparse layer '0' has \(shape, nnz, offset\)"),
    ],
)
def test_files_of_another_network_are_refused_and_the_network_stays(build, message, path):
    dctps.save(dctps.sparsify(cnn(), 0.1), path)
    net = build()
    before = snapshot(net)
    with pytest.raises(CheckpointError, match=message):
        dctps.load(path, net)
    assert_unchanged(net, before)


def test_a_file_with_fewer_sparse_layers(path):
    supports = {"0": Support.sample((16, 3, 3, 3), 5), "6": Support.sample((10, 32), 5)}
    dctps.save(dctps.sparsify(cnn(), supports={"0": supports["0"]}), path)
    with pytest.raises(CheckpointError, match="its layer '6' is sparse, in the file it is not"):
        dctps.load(path, dctps.sparsify(cnn(), supports=supports))


def set_layer(**fields):
    return lambda manifest: manifest["layers"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"manifest": lambda m: m.update(version=4)}, "format version 4, this dctps reads up to 3; upgrade"),
        ({"manifest": lambda m: m.pop("version")}, "without a version"),
        ({"manifest": lambda m: m.update(version="1")}, "without a version"),
        ({"metadata": lambda m: m.pop("dctps")}, "without a dctps manifest"),
        ({"metadata": lambda m: m.update(dctps="[" * 100_000)}, "damaged"),
        ({"metadata": lambda m: m.update(dctps="{")}, "damaged"),
        ({"metadata": lambda m: m.update(digest="0" * 32)}, "do not match their digest"),
        ({"manifest": lambda m: m.pop("layers")}, "inconsistent"),
        ({"manifest": lambda m: m["layers"].append(m["layers"][0])}, "listed twice"),
        ({"manifest": set_layer(nnz=10**15)}, "inconsistent"),
        ({"manifest": set_layer(nnz=-1)}, "inconsistent"),
        ({"manifest": set_layer(nnz=1.5)}, "inconsistent"),
        ({"manifest": set_layer(nnz=True)}, "inconsistent"),
        ({"manifest": set_layer(shape=[2**40, 2**40])}, "inconsistent"),
        ({"manifest": set_layer(shape=[])}, "inconsistent"),
        ({"manifest": set_layer(shape="ab")}, "inconsistent"),
        ({"manifest": set_layer(name=["a"])}, "inconsistent"),
        ({"manifest": set_layer(seed=-5)}, "inconsistent"),
        ({"manifest": set_layer(offset="fourier")}, "unknown offset 'fourier'"),
        ({"manifest": set_layer(offset=3)}, "inconsistent"),
        ({"manifest": set_layer(dtype="int8")}, "inconsistent"),
        ({"manifest": set_layer(colour="red")}, r"unknown keys \['colour'\]"),
        ({"manifest": lambda m: m["layers"].pop(0)}, "should hold"),
        ({"manifest": lambda m: m.update(tied={"x": "nothing"})}, "inconsistent"),
        ({"manifest": lambda m: m.update(tied=[1])}, "inconsistent"),
        ({"manifest": lambda m: m["layers"][1].pop("seed")}, "dctps/positions should hold"),
        (
            {"tensors": lambda t: t.update({"dctps/values/float32": t["dctps/values/float32"][1:].clone()})},
            "should hold",
        ),
        ({"tensors": lambda t: t.pop("dctps/alpha")}, "should hold 3 elements"),
        ({"tensors": lambda t: t.update({"dctps/extra": torch.zeros(1)})}, "should hold 0 elements"),
        ({"tensors": lambda t: t["dctps/positions"].fill_(255)}, "inconsistent"),
        ({"tensors": lambda t: t["dctps/positions"].fill_(0)}, "inconsistent"),
    ],
)
def test_inconsistent_files_say_so(change, message, path):
    net = dctps.sparsify(cnn(), 0.1)
    net[0].seed = None
    dctps.save(net, path)
    rewrite(path, **change)
    other = cnn()
    before = snapshot(other)
    with pytest.raises(CheckpointError, match=message):
        dctps.load(path, other)
    assert_unchanged(other, before)


def test_repeated_and_outlying_positions_are_found_in_a_file_with_a_right_digest(path):
    import numpy as np

    from dctps.core.elias_fano import encode

    layer = dctps.sparsify(nn.Linear(8, 4), nn_density := 4 / 32)
    assert nn_density * 32 == layer.nnz
    layer.seed = None
    dctps.save(layer, path)
    for positions, message in [([1, 2, 2, 9], "position 2 is repeated"), ([1, 2, 3, 40], "out of range|does not fit")]:
        code = encode(np.array(positions, dtype=np.int64), 32) if max(positions) < 32 else None
        if code is None:  # the largest high part that the unary code has room for, with all low bits set
            continue
        rewrite(path, tensors=lambda t, code=code: t.update({"dctps/positions": torch.from_numpy(code)}))
        with pytest.raises(CheckpointError, match=message):
            dctps.load(path, nn.Linear(8, 4))
    # a size that is no power of two leaves room in the code for positions beyond it
    layer = DpsLinear(9, 5, nnz=5)
    layer.seed = None
    dctps.save(layer, path)
    code = encode(np.array([1, 2, 3, 4, 44]), 45)
    code[:3] |= 0b00001000  # all low bits of the last position: 5 * 8 + 7 = 47
    rewrite(path, tensors=lambda t: t.update({"dctps/positions": torch.from_numpy(code)}))
    with pytest.raises(CheckpointError, match="position 47 is out of range"):
        dctps.load(path, nn.Linear(9, 5))


def test_foreign_files(path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        dctps.load(path, cnn())
    with pytest.raises(FileNotFoundError):
        dctps.load(path.parent, cnn())
    for content in (b"", b"PK\x03\x04" + bytes(100), os.urandom(1000), struct.pack("<Q", 2**62) + b"{}", b"\x80\x04."):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged or not a safetensors file"):
            dctps.load(path, cnn())


def test_what_cannot_be_saved(path):
    with pytest.raises(CheckpointError, match="no sparse layer"):
        dctps.save(cnn(), path)
    with pytest.raises(CheckpointError, match="offset of class Ones"):
        dctps.save(DpsLinear(6, 4, nnz=2, offset=Ones((4, 6))), path)

    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"not": "a tensor"}

        def set_extra_state(self, state):
            pass

    with pytest.raises(CheckpointError, match="is not a tensor of the network"):
        dctps.save(nn.Sequential(DpsLinear(3, 3, nnz=1), Extra(3, 3)), path)
    assert not path.exists()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("unequal", [False, True])
def test_two_layers_of_a_file_cannot_become_one(unequal, path):
    def separate():
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    supports = {"0": Support.sample((8, 8), 9), "1": Support.sample((8, 8), 8 + unequal)}
    dctps.save(trained(dctps.sparsify(separate(), supports=supports)), path)
    shared = nn.Linear(8, 8)
    net = nn.Sequential(shared, shared)
    before = snapshot(net)
    with pytest.raises(CheckpointError, match="'0' and '1' are one and the same, in the file they are two"):
        dctps.load(path, net)
    assert_unchanged(net, before)


def test_two_tensors_of_a_file_cannot_become_one(path):
    def build():
        return nn.ModuleDict({"a": nn.Embedding(4, 4), "b": nn.Embedding(4, 4), "c": nn.Linear(4, 4)})

    dctps.save(trained(dctps.sparsify(build(), 0.5)), path)
    net = build()
    net["b"].weight = net["a"].weight
    before = snapshot(net)
    with pytest.raises(
        CheckpointError, match=r"'a.weight' and 'b.weight' are one and the same, in the file they differ"
    ):
        dctps.load(path, net)
    assert_unchanged(net, before)


def test_sparse_layers_on_meta_are_neither_saved_nor_loaded_into(path):
    net = dctps.sparsify(cnn(), 0.1)
    dctps.save(net, path)
    net.to("meta")
    assert "alpha on meta" in repr(net)
    assert str(dctps.report(net))
    with pytest.raises(CheckpointError, match="on the meta device"):
        dctps.load(path, net)
    with pytest.raises(CheckpointError, match="on the meta device"):
        dctps.save(net, path)


def test_wrapped_networks_are_saved_under_their_own_names(path):
    net = trained(dctps.sparsify(cnn(), 0.1))
    for wrapped in (nn.DataParallel(net), torch.compile(net)):
        dctps.save(wrapped, path)
        assert_equal_states(dctps.load(path, cnn()), net)
        assert dctps.load(path, wrapped) is wrapped


def test_load_checks_its_own_arguments_first(path):
    dctps.save(dctps.sparsify(cnn(), 0.1), path)
    with pytest.raises(ValueError, match="unknown backend") as error:
        dctps.load(path, cnn(), backend="typo")
    assert not isinstance(error.value, CheckpointError)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        dctps.save(dctps.sparsify(cnn(), 0.1), path.parent / "missing" / "net")


# --- atomic writes --------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_no_trace(path):
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_permissions_and_links_are_kept(path):
    path.write_text("old")
    path.chmod(0o640)
    link = path.parent / "link"
    link.symlink_to(path)
    write_atomically(link, lambda temporary: temporary.write_text("new"))
    assert path.read_text() == "new"
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    fresh = path.parent / "fresh"
    write_atomically(fresh, lambda temporary: temporary.write_text("x"))
    reference = path.parent / "reference"
    reference.write_text("x")
    assert fresh.stat().st_mode == reference.stat().st_mode


KILL = """
    import os, random, signal, sys, time
    import torch, dctps
    from torch import nn
    torch.set_num_threads(1)
    path = sys.argv[1]
    def build():
        with torch.device("meta"):
            return nn.Linear(4000, 4000)
    nets = [dctps.sparsify(build(), 0.05) for _ in range(2)]
    for number, net in enumerate(nets):
        net.values.data.fill_(number + 1)
        net.seed = None
    start = time.perf_counter()
    dctps.save(nets[0], path)
    duration = time.perf_counter() - start
    random.seed(0)
    outcomes, interrupted = [], 0
    # 25 kills at least, and more on a busy machine until both networks were found and a kill fell into a write
    while len(outcomes) < 25 or (len(outcomes) < 500 and not (interrupted and len(set(outcomes)) == 2)):
        child = os.fork()
        if not child:
            for i in range(10**6):
                dctps.save(nets[i % 2], path)
        time.sleep(random.uniform(0, 4 * duration))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        values = dctps.load(path, build()).values
        assert values.unique().numel() == 1, "a mixture of two files"
        outcomes.append(int(values[0]))
        interrupted += len(os.listdir(os.path.dirname(path))) > 1
    dctps.save(nets[0], path)
    print(len(outcomes), len(set(outcomes)), interrupted, *os.listdir(os.path.dirname(path)))
"""


@pytest.mark.process
def test_kill_9_during_save_leaves_a_whole_file(path):
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(KILL), str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    kills, seen, interrupted, *files = run.stdout.split()
    assert int(kills) >= 25
    assert seen == "2"  # both networks were found: the children did save
    assert int(interrupted) >= 1  # a kill that fell into a write
    assert files == ["net.safetensors"]  # what they left behind is gone after the next save
