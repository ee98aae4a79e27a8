"""States of fine-tuned networks that would be wrong: what is refused, and that a refusal changes nothing."""

import copy
import pickle

import pytest
import torch
from torch import nn

import dctps
from dctps import Adapter
from dctps.nn.fine_tuned import FineTuned, tuned_weights
from helpers.finetuning import shaken
from helpers.networks import assert_unchanged, cnn, snapshot

PRETRAINED = {"offset": "pretrained"}


def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def tuned(**options):
    return shaken(dctps.sparsify(base(), 0.2, **PRETRAINED, **options))


class Unchanged:
    """Checks that the modules, tensors and flags of a network are the same behind the block."""

    def __init__(self, net):
        self.net = net

    def look(self):
        return [type(m) for m in self.net.modules()], [p.requires_grad for p in self.net.parameters()]

    def __enter__(self):
        self.before = snapshot(self.net), self.look()

    def __exit__(self, *error):
        assert_unchanged(self.net, self.before[0])
        assert self.look() == self.before[1]


# --- what trains and is not said to ----------------------------------------------------------------------------------


def test_what_trains_but_would_not_be_in_the_file_is_refused(tmp_path):
    net = tuned()
    net[2].requires_grad_(True)
    with Unchanged(net), pytest.raises(ValueError, match=r": 2\.weight, 2\.bias; name them in"):
        dctps.save(net, tmp_path / "adapter.safetensors")
    with Unchanged(net), pytest.raises(ValueError, match="would not hold them"):
        dctps.detach(net)
    net[2].requires_grad_(False)
    net.append(nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"3\.weight, 3\.bias"):
        Adapter.of(net)
    net[3].requires_grad_(False)
    assert len(Adapter.of(net).terms) == 1
    assert not list(tmp_path.iterdir())


def test_a_module_that_trained_as_a_whole_and_is_gone_is_named():
    net = tuned(train="2.bias")
    net[2] = nn.Identity()
    with Unchanged(net), pytest.raises(ValueError, match=r"'2\.bias' trained as a whole"):
        dctps.detach(net)


# --- wrappers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_a_network_in_a_wrapper_is_fine_tuned_as_the_network(wrap, tmp_path):
    net, x = base(), torch.randn(3, 8)
    outer = wrap(net)
    assert dctps.sparsify(outer, 0.2, **PRETRAINED, train="2.bias") is outer
    shaken(outer)
    y = net(x)
    dctps.save(outer, tmp_path / "adapter.safetensors")
    assert torch.equal(dctps.load(tmp_path / "adapter.safetensors", base())(x), y)
    assert [row.name for row in dctps.report(outer).layers] == ["0", "2"]
    dctps.densify(outer)
    assert type(net[0]) is nn.Linear
    assert dctps.unmerge(outer) is outer
    assert torch.equal(net(x), y)
    dctps.detach(outer)
    assert torch.equal(net(x), base()(x))


# --- merged networks -------------------------------------------------------------------------------------------------


def test_a_merged_network_can_be_copied_and_pickled_and_unmerged_afterwards(tmp_path):
    net, x = tuned(train="2.bias", train_alpha=True), torch.randn(3, 8)
    y = net(x)
    dctps.densify(net)
    torch.save(net, tmp_path / "net.pt")
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(tmp_path / "net.pt", weights_only=False)]
    for other in copies:
        assert torch.equal(dctps.unmerge(other)(x), y)
        assert torch.equal(Adapter.of(other).attach(base())(x), y)
    assert type(net[0]) is nn.Linear


def test_a_network_that_was_fine_tuned_again_is_not_unmerged():
    net, x = dctps.densify(tuned()), torch.randn(3, 8)
    first = net(x)
    shaken(dctps.sparsify(net, 0.2, seed=1, **PRETRAINED))
    y = net(x)
    with Unchanged(net), pytest.raises(ValueError, match="is fine-tuned now"):
        dctps.unmerge(net)
    assert torch.equal(net(x), y)
    dctps.detach(net)
    assert torch.equal(net(x), first)
    dctps.detach(dctps.unmerge(net))
    assert torch.equal(net(x), base()(x))


def elsewhere(net, places):
    outside = min(set(range(128)) - set(places))
    with torch.no_grad():
        net[0].weight.view(-1)[outside] += 5


@pytest.mark.parametrize(
    "change", [elsewhere, lambda net, _: net.double(), lambda net, _: net.__setitem__(0, nn.Linear(8, 5))]
)
def test_any_change_of_a_merged_weight_is_noticed(change):
    net = tuned()
    places = net[0].sparse_part["weight"].positions.tolist()
    change(dctps.densify(net), places)
    with Unchanged(net), pytest.raises(ValueError, match="'0' has changed"):
        dctps.unmerge(net)


def test_a_merged_network_whose_head_was_replaced_is_not_unmerged():
    net = dctps.densify(tuned(train="2"))
    net[2] = nn.Linear(16, 7)
    with Unchanged(net), pytest.raises(ValueError, match=r"'2.weight' was of shape \(4, 16\) .* \(7, 16\)"):
        dctps.unmerge(net)


# --- sums ------------------------------------------------------------------------------------------------------------


def test_a_weight_that_is_whole_in_one_state_and_sparse_in_another_does_not_add_up():
    one, two = Adapter.of(tuned(train="2")), Adapter.of(tuned(seed=3))
    net = tuned(seed=4)
    with Unchanged(net), pytest.raises(ValueError, match=r"'2\.weight' as a whole and also as W0"):
        (one + two).attach(net)


def test_adapters_are_added_by_sum():
    one, two = Adapter.of(tuned()), Adapter.of(tuned(seed=3))
    x = torch.randn(2, 8)
    assert torch.equal(sum([one, two]).attach(base())(x), (one + two).attach(base())(x))
    with pytest.raises(TypeError):
        3 + one


def with_statistics(scale):
    """An adapter of a network whose running variances have become those of inputs of this scale."""
    torch.manual_seed(0)
    net = dctps.sparsify(cnn(), 0.1, **PRETRAINED)
    for _ in range(30):
        net(scale * torch.randn(16, 3, 8, 8))
    return Adapter.of(net)


def test_a_sum_never_has_a_negative_variance():
    small, large = with_statistics(0.1), with_statistics(5.0)
    torch.manual_seed(0)
    net = cnn().eval()
    with pytest.warns(UserWarning, match=r"'1\.running_var' negative.*recalibrate"):
        (small - large).attach(net)
    assert torch.equal(net[1].running_var, torch.ones(16))
    assert bool(net(torch.randn(2, 3, 8, 8)).isfinite().all())
    (0.5 * small + 0.5 * large).attach(net)
    means = [adapter.terms[0][1].rest["1.running_var"] for adapter in (small, large)]
    torch.testing.assert_close(net[1].running_var, (means[0] + means[1]) / 2)


# --- what cannot be done is refused before anything is done -----------------------------------------------------------


def test_a_network_whose_head_was_replaced_is_not_detached():
    net, other = tuned(train="2"), Adapter.of(tuned(seed=3))
    net[2] = nn.Linear(16, 7)
    with Unchanged(net), pytest.raises(ValueError, match=r"'2.weight' was of shape \(4, 16\)"):
        dctps.detach(net)
    with Unchanged(net), pytest.raises(ValueError, match=r"shape \(7, 16\)"):
        other.attach(net)
    assert isinstance(net[0], FineTuned)


def test_a_buffer_that_was_resized_is_not_restored_half():
    net = base()
    net.register_buffer("seen", torch.zeros(2))
    dctps.sparsify(net, 0.2, **PRETRAINED)
    net.seen = torch.zeros(5)
    with Unchanged(net), pytest.raises(ValueError, match=r"'seen' was of shape \(2,\)"):
        dctps.detach(net)
    net.seen = torch.ones(2)
    dctps.detach(net)
    assert torch.equal(net.seen, torch.zeros(2))


class Named(nn.Linear):
    """A layer whose subclasses must be given a name."""

    def __init_subclass__(cls, *, name):
        super().__init_subclass__()


class Holder(nn.Linear):
    """A layer with an attribute of the name of S."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.sparse_part = 3


@pytest.mark.parametrize(("cls", "message"), [(Named, "has no subclasses"), (Holder, "an attribute 'sparse_part'")])
def test_a_class_that_cannot_be_fine_tuned_is_refused_before_anything_is_frozen(cls, message):
    net = nn.Sequential(nn.Linear(8, 8), cls(8, 8))
    with Unchanged(net), pytest.raises(ValueError, match=message):
        dctps.sparsify(net, 0.3, **PRETRAINED)
    dctps.sparsify(net, 0.3, **PRETRAINED, exclude=cls)
    assert list(tuned_weights(net)) == ["0"]


def test_an_adapter_is_not_attached_around_a_part_that_is_fine_tuned():
    whole = nn.Sequential(base(), nn.Linear(4, 2))
    adapter = Adapter.of(dctps.sparsify(copy.deepcopy(whole), 0.2, **PRETRAINED))
    dctps.sparsify(whole[0], 0.2, **PRETRAINED)
    with Unchanged(whole), pytest.raises(ValueError, match="only a part of this network is fine-tuned"):
        adapter.attach(whole)
    dctps.detach(whole[0])
    adapter.attach(whole)
    dctps.detach(whole)
    assert all(p.requires_grad for p in whole.parameters())


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", torch.float8_e4m3fn, torch.int8, torch.complex64])
def test_types_that_no_file_has_are_named(dtype, tmp_path):
    with pytest.raises(dctps.CheckpointError, match=r"is no type of values in a file; there are: torch\.float32"):
        dctps.save(tuned(), tmp_path / "adapter.safetensors", dtype=dtype)


@pytest.mark.parametrize("positions", [range(3, 10), range(4, 11), range(8), range(1, 8), [0, 15], []])
def test_zeros_that_fill_up_an_export_do_not_come_back_and_real_ones_do(positions, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4))
    other = copy.deepcopy(net)
    support = dctps.Support((4, 4), torch.tensor(list(positions), dtype=torch.long))
    dctps.sparsify(net, supports={"0": support}, **PRETRAINED)
    for fill in (False, True):  # all values are zero, then none
        if fill:
            shaken(net)
        dctps.export_shira(net, tmp_path)
        dctps.import_shira(tmp_path, other)
        assert other[0].sparse_part["weight"].support == support
        assert torch.equal(other[0].sparse_part["weight"].values, net[0].sparse_part["weight"].values)
