"""Marks of tests that run with every choice of something, or only where something is installed."""

import importlib.util

import pytest

from dctps.methods.subspace.projections import PROJECTIONS
from dctps.ops.functional import backends

every_backend = pytest.mark.parametrize("backend", backends())
every_projection = pytest.mark.parametrize("kind", PROJECTIONS)
needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="needs the demo extra for the digits"
)


def needs_package(name):
    """Skip a test where a package that dctps can be compared with is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"needs {name}, a peer of dctps bench step"
    )
