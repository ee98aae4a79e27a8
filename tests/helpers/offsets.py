"""Offsets that tests draw or make up."""

import torch
from hypothesis import strategies as st

from dctps import TransformOffset
from dctps.core.offsets import CHOICES
from dctps.core.transforms import TRANSFORMS

recipes = st.builds(
    TransformOffset, st.sampled_from(list(TRANSFORMS)), *map(st.sampled_from, CHOICES.values()), st.integers(0, 9)
)
shapes = st.tuples(st.integers(1, 20), st.integers(1, 8), st.lists(st.integers(1, 4), max_size=3)).map(
    lambda s: (s[0], s[1], *s[2])
)


class Ones:
    """A user's own offset: every entry is one."""

    def __init__(self, shape):
        self.shape = shape

    def apply(self, x):
        return x.sum(-1, keepdim=True).expand(*x.shape[:-1], self.shape[0])

    def adjoint(self, v):
        return v.sum(-1, keepdim=True).expand(*v.shape[:-1], self.shape[1])

    def matrix(self):
        return torch.ones(self.shape)
