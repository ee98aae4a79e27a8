"""Offsets against their definition, for every combination of options."""

import itertools

import pytest
import torch
from hypothesis import given

from dctps import OFFSETS, Offset, TransformOffset
from dctps.core.offsets import CHOICES, resolve
from dctps.core.transforms import TRANSFORMS
from helpers import oracles
from helpers.offsets import Ones, recipes, shapes
from helpers.tolerances import assert_close

RECIPES = [TransformOffset(*fields) for fields in itertools.product(TRANSFORMS, *CHOICES.values(), [0])]
SHAPES = [(5, 7), (7, 5), (1, 1), (6, 6), (4, 3, 5), (9, 2, 2, 3), (3, 4, 3, 3), (20, 1, 3, 3), (5, 2, 2, 1, 3)]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_matrices_are_the_definition(recipe):
    for shape in SHAPES:
        offset = recipe.bind(shape)
        expected = oracles.offset_weight(recipe, shape, offset.rows, offset.signs)
        assert_close(offset.matrix(torch.float64).view(shape), expected)


@given(recipes, shapes)
def test_apply_adjoint_and_factors_agree_with_the_matrix(recipe, shape):
    offset = recipe.bind(shape)
    assert isinstance(offset, Offset)
    full = offset.matrix(torch.float64)
    m, n = offset.shape
    x, v = torch.randn(3, n, dtype=torch.float64), torch.randn(3, m, dtype=torch.float64)
    assert_close(offset.apply(x), x @ full.T)
    assert_close(offset.adjoint(v), v @ full)
    assert_close((offset.apply(x) * v).sum(), (x * offset.adjoint(v)).sum())  # <Dx, v> = <x, D'v>
    if offset.separable:
        left, right = offset.factors()
        assert_close(torch.einsum("rkc,rkt->kct", left, right).flatten(1), full)
    else:
        with pytest.raises(ValueError, match=r"not separable|no addition theorem"):
            offset.factors()


@given(recipes, shapes)
def test_filters_are_orthonormal_where_nothing_is_cut(recipe, shape):
    offset = recipe.bind(shape)
    if offset.length == offset.shape[1]:  # no padding: the rows of D are rows of the transform
        full = offset.matrix(torch.float64)
        assert_close(full @ full.T, torch.eye(len(full), dtype=torch.float64))


@given(recipes, shapes)
def test_names_read_back(recipe, shape):
    assert TransformOffset.parse(recipe.name) == recipe


def test_dct_is_the_published_convention():
    """Column k of the q x q matrix c_k cos(pi k (2i + 1) / 2q) is filter k, laid out as (kh, kw, cin)."""
    for filters, channels, kh, kw in [(8, 3, 3, 3), (64, 3, 3, 3), (6, 3, 5, 5), (32, 1, 3, 3)]:
        q = max(channels * kh * kw, filters)
        full = oracles.transform_matrix("dct", q)  # [k, i]
        published = full[:filters, : kh * kw * channels].view(filters, kh, kw, channels).permute(0, 3, 1, 2)
        weight = OFFSETS["dct"].bind((filters, channels, kh, kw)).matrix(torch.float64)
        assert_close(weight.view(filters, channels, kh, kw), published)


def test_dct_of_a_linear_layer_is_the_corner_of_the_matrix():
    assert_close(OFFSETS["dct"].bind((4, 9)).matrix(torch.float64), oracles.transform_matrix("dct", 9)[:4])
    assert_close(OFFSETS["dct"].bind((9, 4)).matrix(torch.float64), oracles.transform_matrix("dct", 9)[:, :4])


def test_truncated_filters_have_the_published_norms():
    stem = OFFSETS["dct"].bind((64, 3, 3, 3)).matrix().norm(dim=1)
    depthwise = OFFSETS["dct"].bind((32, 1, 3, 3)).matrix().norm(dim=1)
    assert [round(float(n), 3) for n in (stem.min(), stem.max())] == [0.589, 0.705]
    assert [round(float(n), 2) for n in (depthwise.min(), depthwise.max())] == [0.35, 0.66]


def test_seeds_change_signs_and_rows_and_nothing_else_does():
    def matrix(**options):
        return TransformOffset("dct", **options).bind((6, 4, 3, 3)).matrix()

    assert torch.equal(matrix(seed=0), matrix(seed=1))
    for options in ({"signs": "channel"}, {"signs": "position"}, {"rows": "random"}):
        assert torch.equal(matrix(seed=1, **options), matrix(seed=1, **options))
        assert not torch.equal(matrix(seed=0, **options), matrix(seed=1, **options))


def test_seeded_choices_are_pinned():
    # files name the offset only: these choices must be the same for ever
    srht = OFFSETS["srht"].bind((5, 12))
    assert srht.rows.tolist() == [3, 4, 6, 9, 11]
    assert srht.signs.flatten().tolist() == [-1, -1, -1, -1, 1, 1, -1, 1, 1, -1, 1, -1]


def test_channel_signs_are_one_per_channel():
    signed = TransformOffset("dct", signs="channel").bind((6, 4, 3, 3)).matrix().view(6, 4, 9)
    plain = TransformOffset("dct").bind((6, 4, 3, 3)).matrix().view(6, 4, 9)
    ratio = signed / plain
    assert_close(ratio, ratio[:1, :, :1].expand_as(ratio))


def test_registry_holds_what_its_names_say():
    assert OFFSETS["dct"] == TransformOffset("dct", "spatial", "none", "lowest")
    assert OFFSETS["dct_signed"] == TransformOffset("dct", "channel", "channel", "lowest")
    assert OFFSETS["srht"] == TransformOffset("hadamard", "spatial", "channel", "random")


def test_resolving_what_users_write():
    assert resolve(None, (3, 4)) is None
    assert resolve("dct", (3, 4)).shape == (3, 4)
    assert resolve(TransformOffset("dst"), (3, 4, 2)).shape == (3, 8)
    assert resolve(Ones((3, 8)), (3, 4, 2)).shape == (3, 8)
    assert resolve(lambda shape: Ones((shape[0], 8)), (3, 4, 2)).shape == (3, 8)


def test_errors_say_what_is_possible():
    with pytest.raises(ValueError, match="unknown offset 'fft'; choose one of: dct, dct_signed"):
        resolve("fft", (3, 4))
    with pytest.raises(ValueError, match="unknown transform 'fft'; choose one of: dct, dst"):
        TransformOffset("fft")
    with pytest.raises(ValueError, match="unknown order 'row'; choose one of: spatial, channel"):
        TransformOffset(order="row")
    with pytest.raises(ValueError, match=r"shape \(3, 9\) cannot serve a weight of shape \(3, 4, 2\).*needs \(3, 8\)"):
        resolve(Ones((3, 9)), (3, 4, 2))
    with pytest.raises(ValueError, match="at least one element"):
        OFFSETS["dct"].bind((3, 0))
    with pytest.raises(ValueError, match="non-negative"):
        TransformOffset(seed=-1)
