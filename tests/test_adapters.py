"""Adapters: files without W0, the fingerprint of the base, attaching and taking away, weighted sums."""

import copy
import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import Adapter, CheckpointError, Support
from dctps.checkpoint.contents import digest_of, read
from dctps.nn.fine_tuned import FineTuned, tuned_weights
from helpers.finetuning import KINDS, Head, shaken
from helpers.mutations import mutated
from helpers.networks import assert_unchanged, cnn, snapshot

PRETRAINED = {"offset": "pretrained", "train": ("6", "norms")}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adapter.safetensors"


def bases(seed=0):
    torch.manual_seed(seed)
    return cnn()


def tuned(density=0.05, seed=0, steps=3, **options):
    """A network that was fine-tuned for some steps; its running statistics have moved."""
    net = dctps.sparsify(bases(), density, **{**PRETRAINED, **options}, seed=seed)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 8, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    return net.eval()


def states_equal(a, b):
    state, other = a.state_dict(), b.state_dict()
    return state.keys() == other.keys() and all(torch.equal(state[key], other[key]) for key in state)


@given(
    density=st.floats(0.01, 1),
    scaled=st.booleans(),
    seeded=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(max_examples=20)
def test_save_load_and_detach_are_exact(tmp_path_factory, density, scaled, seeded, dtype):
    path = tmp_path_factory.mktemp("adapters") / "adapter.safetensors"
    base = bases().to(dtype)
    net = dctps.sparsify(copy.deepcopy(base), density, **PRETRAINED, train_alpha=scaled)
    if not seeded:
        part = net[0].sparse_part["weight"]
        part.move(Support(part.support.shape, Support.sample(part.support.shape, part.nnz, 77).positions), part.values)
    shaken(net)
    net[1].running_mean += 1
    dctps.save(net, path)
    other = copy.deepcopy(base)
    before = snapshot(other)
    assert dctps.load(path, other) is other
    assert states_equal(net, other)
    assert [p.requires_grad for p in net.parameters()] == [p.requires_grad for p in other.parameters()]
    adapter = dctps.detach(other)
    assert_unchanged(other, before)
    assert [p.requires_grad for p in other.parameters()] == [True] * len(list(other.parameters()))
    assert states_equal(adapter.attach(other), net)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_has_a_file(kind, path):
    layer, x = KINDS[kind](3, 4)
    base = nn.Sequential(layer)
    net = shaken(dctps.sparsify(copy.deepcopy(base), 0.5, offset="pretrained"))
    dctps.save(net, path)
    assert torch.equal(dctps.load(path, base)(x), net(x))


def test_the_file_holds_what_trains_and_never_the_base(path):
    net = tuned()
    dctps.save(net, path)
    contents = read(path)
    trained = {"1.weight", "1.bias", "6.weight", "6.bias"}
    moved = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert contents.rest.keys() == trained | moved
    untouched = tuned(steps=0)
    dctps.save(untouched, path)
    assert read(path).rest.keys() == trained


@pytest.mark.parametrize(("dtype", "width"), [(None, 4), (torch.float16, 2)])
def test_a_value_takes_four_bytes_or_two_and_the_rest_of_the_file_is_small(dtype, width, path):
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(72)), nn.Linear(64, 3))
    dctps.sparsify(net, 0.1, offset="pretrained", train="72")
    shaken(net)
    dctps.save(net, path, dtype=dtype)
    other = sum(row.size for row in dctps.report(net).trained)
    assert path.stat().st_size <= width * dctps.report(net).nnz + 16 * 1024 + 4 * other
    values = torch.cat([w.part.values.detach() for w in tuned_weights(net).values()])
    base = copy.deepcopy(net)
    dctps.detach(base)
    dctps.load(path, base)
    found = torch.cat([w.part.values.detach() for w in tuned_weights(base).values()])
    assert torch.equal(found, values if dtype is None else values.half().float())


def test_values_that_float16_cannot_hold_are_refused(path):
    net = tuned()
    with torch.no_grad():
        net[0].sparse_part["weight"].values[0] = 1e6
    with pytest.raises(CheckpointError, match="too large for torch"):
        dctps.save(net, path, dtype=torch.float16)
    assert not path.exists()


# --- several adapters ------------------------------------------------------------------------------------------------


def test_adapters_are_switched_added_and_subtracted():
    x = torch.randn(2, 3, 8, 8)
    nets = [tuned(seed=seed).double() for seed in (1, 2)]
    one, two = map(Adapter.of, nets)
    net = bases().double()
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    for adapter, trained in ((one, nets[0]), (two, nets[1]), (one, nets[0])):
        adapter.attach(net).eval()
        assert torch.equal(net(x.double()), trained(x.double()))
    (0.7 * one + 0.3 * two).attach(net)
    merged = dctps.densify(copy.deepcopy(net))
    dense = [dict(dctps.densify(copy.deepcopy(n)).named_parameters()) for n in nets]
    for name, p in merged.named_parameters():
        expected = weights[name] + 0.7 * (dense[0][name] - weights[name]) + 0.3 * (dense[1][name] - weights[name])
        torch.testing.assert_close(p, expected, rtol=1e-10, atol=1e-10)
    (one + two - two).attach(net)
    dctps.densify(net)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p, dense[0][name], rtol=1e-10, atol=1e-10)
    assert repr(one - two).startswith("Adapter(states=2, weights=2, nnz=")


def test_what_was_attached_trains_on(path):
    dctps.save(tuned(), path)
    net = dctps.load(path, bases())
    before = [p.detach().clone() for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    net(torch.randn(4, 3, 8, 8)).square().mean().backward()
    optimizer.step()
    assert len(before) == 6
    assert not any(map(torch.equal, before, [p for p in net.parameters() if p.requires_grad]))


def test_a_tied_weight_is_in_the_file_once(path):
    net = shaken(dctps.sparsify(Head(9, 4), 0.5, offset="pretrained"))
    dctps.save(net, path)
    assert [entry.name for entry in read(path).entries] == ["table"]
    base = copy.deepcopy(net)
    dctps.detach(base)
    dctps.load(path, base)
    assert base.table.sparse_part["weight"] is base.last.sparse_part["weight"]


# --- what does not fit -----------------------------------------------------------------------------------------------


def other_head():
    net = bases()
    net[6] = nn.Linear(32, 11)
    return net


def other_type():
    net = bases()
    net[0] = nn.Identity()
    return net


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bases(seed=1), "other weights W0"),
        (lambda: bases().double(), "other weights W0"),
        (other_head, r"'6.bias' has shape \(11,\), the adapter \(10,\)"),
        (other_type, "no weight '0'"),
        (lambda: nn.Linear(3, 3), "no weight '0'"),
        (lambda: nn.Sequential(nn.Conv2d(3, 16, 5), *bases()[1:]), r"weight '0' has shape \(16, 3, 5, 5\)"),
        (lambda: dctps.sparsify(bases(), 0.1), "no weight '0'"),
    ],
)
def test_an_adapter_of_another_base_is_refused_and_the_network_stays(build, message, path):
    dctps.save(tuned(), path)
    net = build()
    before = snapshot(net)
    flags = [p.requires_grad for p in net.parameters()]
    with pytest.raises(CheckpointError, match=message):
        dctps.load(path, net)
    assert_unchanged(net, before)
    assert [p.requires_grad for p in net.parameters()] == flags
    assert not any(isinstance(m, FineTuned) for m in net.modules())


def test_a_refused_adapter_leaves_the_one_that_is_attached(path):
    net = tuned(seed=3)
    other = dctps.sparsify(bases(seed=9), 0.1, **PRETRAINED)
    dctps.save(other, path)
    before = snapshot(net)
    with pytest.raises(CheckpointError, match="strict=False"):
        dctps.load(path, net)
    assert_unchanged(net, before)


def test_a_near_relative_is_used_with_a_warning(path):
    dctps.save(tuned(), path)
    near = bases(seed=1)
    with pytest.warns(UserWarning, match="other weights W0"):
        dctps.load(path, near, strict=False)
    assert list(tuned_weights(near)) == ["0", "3.0"]


def test_networks_without_an_adapter_say_so(path):
    with pytest.raises(ValueError, match="not fine-tuned"):
        Adapter.of(cnn())
    with pytest.raises(ValueError, match="not fine-tuned"):
        dctps.detach(dctps.sparsify(cnn(), 0.1))
    with pytest.raises(CheckpointError, match="only a part"):
        dctps.save(tuned()[3], path)
    dctps.save(dctps.sparsify(cnn(), 0.1), path)
    with pytest.raises(CheckpointError, match="whole network"):
        Adapter.read(path)
    with pytest.raises(ValueError, match="whole network"):
        dctps.load(path, cnn(), strict=False)


def rewritten(source, target, change, tensors=lambda t: t):
    """The same file with another manifest and other tensors, and a digest that is right."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(source, "pt") as file:
        manifest = json.loads(file.metadata()["dctps"])
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(manifest)
    held = tensors(held)
    text = json.dumps(manifest)
    save_file(held, target, {"dctps": text, "digest": digest_of(text, held)})


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.pop("base"),
        lambda m: m.update(base=3),
        lambda m: m.update(base=None),
        lambda m: m.update(version=1),
        lambda m: m.update(version=4),
        lambda m: m.update(layers=[]),
        lambda m: m.update(layers=m["layers"][:1]),
        lambda m: m.update(layers=m["layers"] * 2),
        lambda m: m.update(defaults=[]),
        lambda m: m["defaults"].update(offset="dct"),
        lambda m: m["defaults"].update(offset=None),
        lambda m: m["defaults"].update(train_alpha=True),
        lambda m: m["defaults"].update(dtype="float16"),
        lambda m: m["layers"][0].update(nnz=m["layers"][0]["nnz"] + 1),
        lambda m: m["layers"][0].update(shape=[16, 3, 9]),
        lambda m: m["layers"][0].update(shape=[16, 3, 3, 2**61]),
        lambda m: m["layers"][0].update(seed=None),
        lambda m: m["layers"][0].update(seed=-1),
        lambda m: m["layers"][0].update(name="6"),
        lambda m: m["layers"][0].update(name=""),
        lambda m: m["layers"][0].update(surprise=1),
    ],
)
def test_manifests_that_say_something_else_are_refused(change, path, tmp_path):
    dctps.save(tuned(), path)
    rewritten(path, tmp_path / "other.safetensors", change)
    net = bases()
    before = snapshot(net)
    with pytest.raises(CheckpointError):
        dctps.load(tmp_path / "other.safetensors", net)
    assert_unchanged(net, before)
    assert not any(isinstance(m, FineTuned) for m in net.modules())


@pytest.mark.parametrize("seed", range(40))
def test_mutated_and_half_files_are_refused_or_mean_the_same_and_nothing_is_half_attached(seed, path, tmp_path):
    rng = random.Random(seed)
    net, broken = tuned(steps=0), tmp_path / "broken.safetensors"
    dctps.save(net, path)
    content = bytearray(path.read_bytes())
    if seed % 4 == 0:
        broken.write_bytes(content[: rng.randrange(len(content))])
    elif seed % 4 == 1:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        broken.write_bytes(content)
    else:
        part = rng.choice(["layers", "layers", "defaults"])
        rewritten(path, broken, lambda manifest: manifest.update({part: mutated(rng, manifest[part], PLAIN_JUNK)}))
    base = bases()
    before = snapshot(base)
    try:
        dctps.load(broken, base)
    except CheckpointError:
        assert_unchanged(base, before)
        assert not any(isinstance(m, FineTuned) for m in base.modules())
    else:  # the mutation has changed nothing that counts
        assert states_equal(base, net)


PLAIN_JUNK = [None, True, 0, -1, 1.5, 2**63, "", "x", [], {}, [1], {"a": 1}]
