"""Settings of all tests: hypothesis without deadlines (the first call of a transform loads libraries)."""

import os

os.environ["DCTPS_TUNE"] = "0"  # a choice by measurement would make tests depend on the moment

import hypothesis
import pytest
import torch

pytest.register_assert_rewrite("helpers")

if "PYTEST_XDIST_WORKER" in os.environ:  # two sets of threads on the same cores would only wait for one another
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of processes that tests start

hypothesis.settings.register_profile("default", deadline=None, max_examples=100, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def path(tmp_path):
    """Where a network may be saved."""
    return tmp_path / "net.safetensors"
