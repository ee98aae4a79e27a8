"""Accelerators: an emulated device finds tensors that were left on the CPU, in every route and its derivatives.

Nothing here has run on a real accelerator.
"""

import subprocess
import sys

import pytest

from dctps.ops.offset_torch import OFFSET_PRODUCTS
from helpers.processes import environment

ROUTES = {"dense": {"dense"}, "torch": {"sparse", *OFFSET_PRODUCTS}}


def output(tmp_path, *command, **variables):
    result = subprocess.run(
        [sys.executable, "-m", *command],
        env={**environment(), "DCTPS_CACHE": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


@pytest.mark.process
@pytest.mark.parametrize("backend", ROUTES)
def test_every_route_runs_on_the_device_alone(backend, tmp_path):
    assert set(output(tmp_path, "helpers.remote_layers", backend)) == ROUTES[backend]


@pytest.mark.process
def test_networks_train_and_auto_measures_on_the_device(tmp_path):
    assert output(tmp_path, "helpers.remote_network", DCTPS_TUNE="1") == ["done"]
