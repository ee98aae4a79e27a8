"""Batches: equal to a slow loop over samples, whatever the batch one starts at and the number of ranks."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dctps.data import Batches, split
from dctps.data.batches import epoch_generator

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def data(count=23, size=(6, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 256, (count, 3, *size), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count)  # the label of a sample is its index


def oracle(image, top, left, flipped, padding):
    """float64 (3, height, width): one sample, pixel by pixel."""
    channels, height, width = image.shape
    out = np.zeros((channels, height, width))
    for channel, i, j in itertools.product(range(channels), range(height), range(width)):
        row, column = i + top - padding, (width - 1 - j if flipped else j) + left - padding
        inside = 0 <= row < height and 0 <= column < width
        value = int(image[channel, row, column]) if inside else 0
        out[channel, i, j] = (value / 255 - MEAN[channel]) / STD[channel]
    return out


@pytest.mark.parametrize(("padding", "flip"), [(0, False), (0, True), (2, False), (4, True)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_equal_a_slow_loop_over_the_samples(padding, flip, channels_last):
    images, labels = data()
    indices = list(range(1, 22))
    options = {"padding": padding, "flip": flip, "shuffle": True, "seed": 3, "channels_last": channels_last}
    batches = Batches(images, labels, indices, 8, MEAN, STD, **options)

    def drawn(purpose, limit):
        return torch.randint(limit, (len(images),), generator=epoch_generator(3, 7, purpose)).tolist()

    top, left, flipped = drawn("top", 2 * padding + 1), drawn("left", 2 * padding + 1), drawn("flip", 2)
    seen = []
    for x, y in batches.epoch(7):
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert x.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        for sample, i in zip(x, y.tolist(), strict=True):
            expected = oracle(images[i], top[i], left[i], flip and flipped[i], padding)
            np.testing.assert_allclose(sample.numpy(), expected, rtol=0, atol=2e-6)
        seen += y.tolist()
    assert sorted(seen) == indices
    assert seen != indices


def test_every_crop_and_both_directions_occur_equally_often():
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5).expand(18_000, 1, 5, 5).contiguous()
    batches = Batches(image, torch.zeros(18_000).long(), range(18_000), 1000, [0.0], [1 / 255], padding=1, flip=True)
    corners = torch.cat([x[:, 0, [2, 2], [1, 3]] for x, _ in batches.epoch(0)]).round().long()  # two pixels tell all
    counts = corners.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 9 * 2
    assert 850 < int(counts.min()) <= int(counts.max()) < 1150  # 1000 +- 5 standard deviations


def collected(batches, epoch, start=0):
    return [(x.clone(), y.clone()) for x, y in batches.epoch(epoch, start)]


def assert_same(first, second):
    assert len(first) == len(second)
    for (x, y), (other_x, other_y) in zip(first, second, strict=True):
        assert torch.equal(y, other_y)
        assert torch.equal(x, other_x)


@settings(max_examples=60)
@given(
    count=st.integers(0, 40),
    batch=st.integers(1, 17),
    padding=st.integers(0, 3),
    flip=st.booleans(),
    shuffle=st.booleans(),
    world=st.integers(1, 5),
    seed=st.integers(0, 2**40),
    pick=st.data(),
)
def test_resuming_and_ranks_give_bit_for_bit_the_same_samples(count, batch, padding, flip, shuffle, world, seed, pick):
    images, labels = data(40)
    options = {"padding": padding, "flip": flip, "shuffle": shuffle, "seed": seed}
    whole = Batches(images, labels, torch.arange(count), batch, MEAN, STD, **options)
    all_batches = collected(whole, 5)
    assert len(whole) == len(all_batches) == -(-count // batch)
    start = pick.draw(st.integers(0, len(whole)))
    assert_same(collected(whole, 5, start), all_batches[start:])
    ranks = [
        collected(Batches(images, labels, range(count), batch, MEAN, STD, rank=r, world=world, **options), 5)
        for r in range(world)
    ]
    for shares, (x, y) in zip(zip(*ranks, strict=True), all_batches, strict=True):
        sizes = [len(share[1]) for share in shares]
        assert max(sizes) - min(sizes) <= 1
        assert torch.equal(torch.cat([share[0] for share in shares]), x)
        assert torch.equal(torch.cat([share[1] for share in shares]), y)


def test_a_sample_does_not_depend_on_the_batch_size_or_the_other_samples():
    images, labels = data(40)
    options = {"padding": 2, "flip": True, "shuffle": True}

    def samples(indices, batch):
        batches = collected(Batches(images, labels, indices, batch, MEAN, STD, **options), 2)
        return {int(i): sample for x, y in batches for i, sample in zip(y, x, strict=True)}

    few, many = samples([3, 11, 30], 2), samples(range(40), 7)
    assert all(torch.equal(few[i], many[i]) for i in few)


def test_epochs_and_seeds_differ_and_the_images_stay():
    images, labels = data()
    before = images.clone()
    options = {"padding": 2, "flip": True, "shuffle": True}
    batches = Batches(images, labels, range(23), 23, MEAN, STD, **options)
    (first, order), (second, other) = collected(batches, 0)[0], collected(batches, 1)[0]
    assert not torch.equal(order, other)
    assert not torch.equal(first[order.argsort()], second[other.argsort()])
    reseeded = Batches(images, labels, range(23), 23, MEAN, STD, seed=1, **options)
    assert not torch.equal(collected(reseeded, 0)[0][1], order)
    assert_same(collected(batches, 0), [(first, order)])
    assert torch.equal(images, before)


def test_without_shuffling_the_order_is_that_of_the_indices():
    images, labels = data()
    batches = Batches(images, labels, torch.tensor([5, 2, 9]), 2, MEAN, STD)
    assert [y.tolist() for _, y in batches.epoch(0)] == [[5, 2], [9]]
    expected = (images[5].double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(next(batches.epoch(0))[0][0].double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(23, 3, 6, 5)}, "images must be uint8"),
        ({"labels": torch.arange(22)}, "one number per image, 23"),
        ({"indices": [0, 23]}, "not index 23"),
        ({"indices": [-1]}, "not index -1"),
        ({"batch_size": 0}, "batch_size 0"),
        ({"padding": -1}, "padding -1"),
        ({"rank": 2, "world": 2}, "rank 2 of 2"),
    ],
)
def test_what_cannot_be_batched_is_refused(changes, message):
    images, labels = data()
    arguments = {"images": images, "labels": labels, "indices": [1], "batch_size": 2, "mean": MEAN, "std": STD}
    with pytest.raises(ValueError, match=message):
        Batches(**(arguments | changes))


def test_a_start_beyond_the_epoch_is_refused_at_once():
    images, labels = data()
    batches = Batches(images, labels, range(23), 8, MEAN, STD)
    assert list(batches.epoch(0, start=3)) == []
    for start in (-1, 4):
        with pytest.raises(ValueError, match=f"batch {start}; an epoch has batches 0 to 2"):
            batches.epoch(0, start=start)


# --- splits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "taken"), [("exact", 5000), ("paper", 4999)])
def test_a_split_is_the_start_of_numpy_s_legacy_permutation(rule, taken):
    train, validation = split(50_000, seed=4, rule=rule)
    order = np.arange(50_000)
    np.random.RandomState(4).shuffle(order)
    assert validation.tolist() == order[:taken].tolist()
    assert train.tolist() == order[taken:].tolist()
    assert train.dtype == validation.dtype == torch.int64


def test_split_pinned():
    assert split(10, seed=0, fraction=0.3)[1].tolist() == [2, 8, 4]
    assert [len(part) for part in split(20, seed=0, rule="paper")] == [19, 1]  # 1 - 0.9 is below 0.1


def test_a_split_that_is_not_possible_is_refused():
    with pytest.raises(ValueError, match="unknown rule 'half' of a split; choose one of: exact, paper"):
        split(10, seed=0, rule="half")
    with pytest.raises(ValueError, match=r"fraction of 1\.0"):
        split(10, seed=0, fraction=1.0)
