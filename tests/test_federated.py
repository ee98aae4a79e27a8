"""Federated learning: lists of arrays there and back, exact averages, packets, error feedback, what is refused."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import federated
from dctps.federated.packets import _packet
from helpers.networks import assert_unchanged, cnn, snapshot
from helpers.tolerances import assert_close

MAKERS = {
    "offset": lambda net: dctps.sparsify(net, 0.2),
    "fixed alpha": lambda net: dctps.sparsify(net, 0.2, train_alpha=False),
    "no offset": lambda net: dctps.sparsify(net, 0.2, offset=None),
    "sparse norms": lambda net: dctps.sparsify_norms(dctps.sparsify(net, 0.2), 0.5),
    "dense": lambda net: net,
    "fine-tuned": lambda net: dctps.sparsify(net, 0.2, offset="pretrained", train=("6", "norms")),
    "fine-tuned, alpha": lambda net: dctps.sparsify(net, 0.2, offset="pretrained", alpha=1.0, train_alpha=True),
}


def network(kind, seed=0):
    """A network in float64; all networks of a kind start from the same weights."""
    torch.manual_seed(0)
    net = MAKERS[kind](cnn().double())
    torch.manual_seed(seed)
    return net


def trained(net, seed):
    """Change what trains, and the running statistics, as a training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    net.train()
    for _ in range(1 + seed % 3):
        net(torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64))
    return net


def dense_state(net):
    """The slow definition of what a network is: the state of its dense copy, W = alpha D + S or W0 + S written out."""
    plain = dctps.densify(copy.deepcopy(net)) if any(hasattr(m, "positions") for m in net.modules()) else net
    return plain.state_dict()


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=5)  # for each of seven kinds; each builds and densifies up to five networks
@given(weights=st.lists(st.floats(0.1, 100), min_size=1, max_size=4))
def test_the_average_of_arrays_is_the_average_of_the_dense_weights(kind, weights):
    clients = [trained(network(kind), seed) for seed in range(len(weights))]
    server = network(kind)
    mean = federated.average([federated.arrays(net) for net in clients], weights)
    found = dense_state(federated.set_arrays(server, mean))
    states = [dense_state(net) for net in clients]
    for name, tensor in found.items():
        expected = sum(w * state[name].double() for w, state in zip(weights, states, strict=True)) / sum(weights)
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, expected, rtol=1e-12, atol=1e-12)
        else:
            assert abs(tensor.item() - expected.item()) <= 0.5 + 1e-9


@pytest.mark.parametrize("kind", MAKERS)
def test_arrays_there_and_back_give_the_same_outputs(kind):
    net, other = trained(network(kind), 1).eval(), network(kind).eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert not torch.equal(net(x), other(x))
    assert torch.equal(federated.set_arrays(other, federated.arrays(net))(x), net(x))


def test_only_what_trains_is_sent():
    whole = sum(p.numel() for p in cnn().parameters())
    sizes = {kind: sum(a.size for a in federated.arrays(network(kind))[1:]) for kind in MAKERS}
    statistics = 2 * 16 + 1
    assert sizes["dense"] == whole + statistics
    nnz = {kind: dctps.report(network(kind)).nnz for kind in ("offset", "fine-tuned")}
    biases, norms = 32 + 10, 2 * 16
    assert sizes["offset"] == nnz["offset"] + 3 + biases + norms + statistics
    assert sizes["fixed alpha"] == sizes["offset"] - 3
    assert sizes["fine-tuned"] == nnz["fine-tuned"] + (32 * 10 + 10) + norms + statistics


def test_arrays_are_copies():
    net = network("offset")
    sent = federated.arrays(net)
    before = [array.copy() for array in sent]
    trained(net, 0)
    assert all(np.array_equal(a, b) for a, b in zip(sent, before, strict=True))


def test_bfloat16_and_wrapped_networks():
    net = trained(network("offset"), 0).bfloat16()
    before = net[0].values.detach().clone()
    sent = federated.arrays(nn.DataParallel(net))
    assert sent[1].dtype == np.float32
    with torch.no_grad():
        net[0].values.zero_()
    federated.set_arrays(nn.DataParallel(net), sent)
    assert torch.equal(net[0].values, before)


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(own, arrays, message):
    before = snapshot(own)
    with pytest.raises(ValueError, match=message):
        federated.set_arrays(own, arrays)
    assert_unchanged(own, before)


def other_network(change):
    """Arrays of a network that differs in one thing."""
    torch.manual_seed(0)
    plain = cnn().double()
    makers = {
        "seed": lambda: dctps.sparsify(plain, 0.2, seed=1),
        "offset": lambda: dctps.sparsify(plain, 0.2, offset="dct"),
        "no offset": lambda: dctps.sparsify(plain, 0.2, offset=None),
        "frozen": lambda: dctps.sparsify(plain, 0.2).requires_grad_(False),
        "density": lambda: dctps.sparsify(plain, 0.3),
    }
    return federated.arrays(makers[change]())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed", "another network.*same density and seed"),
        ("offset", "another network"),
        ("no offset", "arrays, the network has"),
        ("frozen", "arrays, the network has"),
        ("density", r"array 1 \(0.values\) has the shape"),
    ],
)
def test_arrays_of_another_network_are_refused_and_change_nothing(change, message):
    refused(network("offset"), other_network(change), message)


def test_other_frozen_weights_and_other_fixed_alphas_are_refused():
    own = network("fine-tuned")
    torch.manual_seed(1)
    other = MAKERS["fine-tuned"](cnn().double())
    refused(own, federated.arrays(other), "frozen weights")
    own, other = network("fixed alpha"), network("fixed alpha")
    other[0].alpha.mul_(2)
    refused(own, federated.arrays(other), "another network")


def test_what_is_no_list_of_arrays_is_refused():
    net = network("offset")
    good = federated.arrays(net)
    refused(net, [], "list of NumPy arrays")
    refused(net, good[1:], "list of NumPy arrays")
    refused(net, good[:-1], "there are")
    refused(net, [torch.from_numpy(a) for a in good], "one with Tensor")
    refused(net, [*good[:-1], np.array([None])], "array of object")
    refused(net, [good[0], good[1].astype(int), *good[2:]], "is of int64")
    with pytest.raises(TypeError, match="arguments are swapped"):
        federated.set_arrays(good, net)


def test_an_average_of_different_networks_is_refused():
    one, other = federated.arrays(network("offset")), other_network("seed")
    with pytest.raises(ValueError, match="another network"):
        federated.average([one, other])
    mixed = [(a + b) / 2 for a, b in zip(one, other, strict=True)]  # by code that does not look at the digest
    refused(network("offset"), mixed, "another network")
    for weights in ([1.0], [1.0, -1.0], [0.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="weights are 2 numbers"):
            federated.average([one, one], weights)
    with pytest.raises(ValueError, match="nothing to average"):
        federated.average([])


def test_averages_by_other_code_pass_and_integers_are_rounded():
    clients = [federated.arrays(trained(network("offset"), seed)) for seed in (1, 2)]
    mean = [0.3 * a + 0.7 * b for a, b in zip(*clients, strict=True)]  # a float of the digest and of the counter
    net = federated.set_arrays(network("offset"), [np.asarray(array, dtype=np.float32) for array in mean])
    expected = federated.set_arrays(network("offset"), federated.average(clients, [0.3, 0.7]))
    assert_close(net[0].values.float(), expected[0].values.float())
    assert net[1].num_batches_tracked.item() == expected[1].num_batches_tracked.item() == 3  # 0.3 * 2 + 0.7 * 3 = 2.7


# --- packets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MAKERS)
def test_a_whole_packet_is_exact(kind):
    sent = federated.arrays(trained(network(kind), 1))
    packet = federated.pack(sent)
    assert len(packet) == 1 + sum(array.nbytes for array in sent)
    back = federated.unpack(packet, federated.arrays(network(kind)))
    assert all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(sent, back, strict=True))


numbers = st.floats(-1e30, 1e30, allow_nan=False, allow_subnormal=True)
steps = st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=5)


@pytest.mark.parametrize("kind", federated.KINDS)
@given(steps=steps)
def test_the_sum_of_updates_and_the_residual_is_the_sum_of_the_true_updates(kind, steps):
    digest = np.arange(16, dtype=np.uint8)
    sender, zero = federated.Sender(kind), [digest, np.zeros(5), np.zeros((), dtype=np.int64)]
    decoded = np.zeros(5)
    for count, step in enumerate(steps):
        packet = sender.pack(zero, [digest, np.array(step), np.array(count)])
        _, update, counter = federated.unpack(packet, zero)
        assert counter == count
        decoded += update
        sender = federated.Sender(kind, sender.residual)  # stored and resumed
    true = np.sum(steps, axis=0)
    size = np.abs(steps).sum()  # float64 rounds each of a few sums of numbers of this size
    np.testing.assert_allclose(decoded + sender.residual[1], true, rtol=0, atol=1e-14 * size)


@pytest.mark.parametrize(("kind", "error"), [("float16", 2**-11), ("int8", 0.5 / 127)])
def test_an_update_is_as_close_as_its_bits_allow_and_as_small(kind, error):
    before, after = (federated.arrays(trained(network("offset"), seed)) for seed in (0, 4))
    packet = federated.Sender(kind).pack(before, after)
    for old, new, found in zip(before[1:], after[1:], federated.unpack(packet, before)[1:], strict=True):
        largest = np.abs(new - old).max()
        # the scale is rounded to float32, by 2^-24
        np.testing.assert_allclose(found, new, rtol=0, atol=1.001 * error * largest)
    floats = [a for a in before[1:] if a.dtype.kind == "f"]
    width = {"float16": 2, "int8": 1}[kind]
    assert len(packet) == 17 + 8 + sum(4 + width * a.size for a in floats)


@pytest.mark.parametrize("kind", federated.KINDS)
def test_rounding_without_feedback_would_lose_what_feedback_keeps(kind):
    """A small number beside a large one, in each update: int8 alone never sends it."""
    digest, total = np.zeros(16, dtype=np.uint8), np.zeros(2)
    zero, step = [digest, np.zeros(2)], [digest, np.array([1.0, 1e-3 / 3])]
    sender = federated.Sender(kind)
    for _ in range(100):
        total += federated.unpack(sender.pack(zero, step), zero)[1]
    assert abs(total[1] - 100 * 1e-3 / 3) <= 0.5 / 127 + 1e-6


def test_an_update_without_a_change_and_one_of_no_numbers():
    digest = np.zeros(16, dtype=np.uint8)
    zero = [digest, np.zeros(3), np.zeros(0)]
    sender = federated.Sender("int8")
    assert all(np.array_equal(a, b) for a, b in zip(federated.unpack(sender.pack(zero, zero), zero), zero, strict=True))


@pytest.mark.parametrize("kind", ["whole", *federated.KINDS])
def test_damaged_packets_are_refused(kind):
    one, other = federated.arrays(network("offset")), other_network("seed")
    packet = federated.pack(one) if kind == "whole" else federated.Sender(kind).pack(one, one)
    with pytest.raises(ValueError, match="another network"):
        federated.unpack(packet, other)
    for length in (0, 10, 17, 20, len(packet) - 1):
        with pytest.raises(ValueError, match="fewer than this network needs"):
            federated.unpack(packet[:length], one)
    with pytest.raises(ValueError, match="this network needs"):
        federated.unpack(np.append(packet, np.uint8(0)), one)
    unknown = packet.copy()
    unknown[16] = 77
    with pytest.raises(ValueError, match="unknown kind 77"):
        federated.unpack(unknown, one)
    with pytest.raises(ValueError, match="list of NumPy arrays"):
        federated.unpack(packet, [])
    for wrong in (packet.tobytes(), packet[None], packet.astype(int)):
        with pytest.raises(ValueError, match="array of bytes"):
            federated.unpack(wrong, one)


@pytest.mark.parametrize("kind", ["whole", *federated.KINDS])
def test_every_flipped_bit_is_found(kind):
    one, other = (federated.arrays(trained(network("offset"), seed)) for seed in (0, 1))
    packet = federated.pack(other) if kind == "whole" else federated.Sender(kind).pack(one, other)
    rng = np.random.default_rng(0)
    for place in (*range(24), *rng.integers(24, len(packet), 60)):
        damaged = packet.copy()
        damaged[place] ^= 1 << rng.integers(8)
        with pytest.raises(ValueError, match=r"is damaged, or belongs to another|belongs to another|kind|bytes"):
            federated.unpack(damaged, one)
    federated.unpack(packet, one)


def test_updates_that_are_not_finite_are_refused_and_the_residual_stays():
    before = federated.arrays(network("offset"))
    sender = federated.Sender("int8")
    sender.pack(before, federated.arrays(trained(network("offset"), 1)))
    kept = sender.residual
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="diverged"):
            sender.pack(before, [before[0], before[1] + number, *before[2:]])
    with pytest.raises(ValueError, match="too large"):
        sender.pack(before, [before[0], before[1] + 1e300, *before[2:]])
    assert sender.residual is kept
    digest, zero, infinite = np.arange(16, dtype=np.uint8), np.zeros(1, dtype="i1"), np.array(np.inf, dtype="<f4")
    for code, content in ((2, [infinite.tobytes(), zero.tobytes()]), (0, [infinite.tobytes()])):
        with pytest.raises(ValueError, match="numbers that are not finite; leave that network out"):
            federated.unpack(_packet(digest, code, content), [digest, np.zeros(1, dtype=np.float32)])


def test_whole_arrays_that_are_not_finite_are_neither_packed_nor_set():
    net = network("offset")
    sent = federated.arrays(net)
    for number in (float("nan"), float("inf")):
        bad = [*sent[:2], sent[2] + number, *sent[3:]]
        refused(net, bad, "numbers that are not finite; leave that network out")
        with pytest.raises(ValueError, match="numbers that are not finite"):
            federated.pack(bad)
    huge = [*sent[:2], sent[2] + 1e300, *sent[3:]]
    refused(network("offset").float(), huge, "too large for float32")


@pytest.mark.parametrize("kind", [">f8", np.longdouble, "<f2", ">f4"])
def test_arrays_of_other_types_and_bytes_are_set_as_a_whole(kind):
    sent = [array.astype(kind) for array in federated.arrays(trained(network("offset"), 1))]
    net = federated.set_arrays(network("offset"), [sent[0].astype(np.uint8), *sent[1:]])
    for found, array in zip(federated.arrays(net)[1:], sent[1:], strict=True):
        assert found.dtype.isnative
        assert np.array_equal(found, array.astype(np.float64))


def test_integers_of_any_size_stay_what_they_are():
    net = nn.Linear(2, 2)
    net.register_buffer("seeds", torch.tensor([2**53 + 1, 2**63 - 1, -(2**62) - 1, 7]))
    sent = federated.arrays(net)
    other = [array.copy() for array in sent]
    other[-1][-1] = 10
    federated.set_arrays(net, sent)
    assert net.seeds.tolist() == [2**53 + 1, 2**63 - 1, -(2**62) - 1, 7]
    federated.set_arrays(net, federated.average([sent, other], weights=[0.3, 0.7]))
    assert net.seeds.tolist() == [2**53 + 1, 2**63 - 1, -(2**62) - 1, 9]


def test_a_residual_of_another_network_and_an_unknown_kind_are_refused():
    one, other = federated.arrays(network("offset")), other_network("seed")
    sender = federated.Sender("int8")
    sender.pack(one, one)
    with pytest.raises(ValueError, match="residual of the sender does not fit"):
        sender.pack(other, other)
    with pytest.raises(ValueError, match="kind of update 'int4'"):
        federated.Sender("int4")


def test_updates_train_a_network_as_whole_arrays_do_up_to_what_is_on_its_way():
    """Three rounds of two clients: the server's network is the exact one minus the mean of the residuals."""
    exact, server = (federated.arrays(network("offset")) for _ in range(2))
    senders = [federated.Sender("int8") for _ in range(2)]
    for number, (client, sender) in itertools.product(range(3), enumerate(senders)):
        step = [
            np.asarray(a + (number + 1) * (client + 1) * np.sin(np.arange(a.size)).reshape(a.shape))
            for a in server[1:-1]
        ]
        after = [server[0], *step, server[-1]]
        exact = [exact[0], *(e + (a - s) for e, a, s in zip(exact[1:], after[1:], server[1:], strict=True))]
        server = federated.unpack(sender.pack(server, after), server)
    missing = [a + b for a, b in zip(*(sender.residual[1:] for sender in senders), strict=True)]
    for e, s, rest in zip(exact[1:], server[1:], missing, strict=True):
        np.testing.assert_allclose(s + rest, e, rtol=1e-12, atol=1e-12)


def test_numbers_that_are_not_finite_are_not_averaged():
    bad = federated.arrays(cnn())
    bad[1] = np.full_like(bad[1], np.nan)
    with pytest.raises(ValueError, match="numbers that are not finite; leave that network out"):
        federated.average([bad, federated.arrays(cnn())], weights=[0, 1])
