"""Settings of all tests: hypothesis without deadlines (the first call of a transform loads libraries); what is skipped.

At the end of a run a list says how many tests were skipped and why. Tests marked `required_in_ci` are not skipped but
fail where the environment has CI=true.
"""

import os
from collections import Counter

os.environ["DCTPS_TUNE"] = "0"  # a choice by measurement would make tests depend on the moment

import hypothesis
import pytest
import torch

pytest.register_assert_rewrite("helpers")
collect_ignore_glob = ["helpers/remote_*.py"]  # programs that change torch for the process which imports them

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


# --- what is skipped ------------------------------------------------------------------------------------------------


def pytest_configure(config):
    mark = "required_in_ci(install): where CI=true this test fails instead of being skipped, and says what to install"
    config.addinivalue_line("markers", mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Turn the skip of a test that is required where CI=true into a failure."""
    report = yield
    mark = item.get_closest_marker("required_in_ci")
    if mark and report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"This test must run where CI=true, but would be skipped: {_reason(report)}. {mark.args[0]}"
    return report


def _reason(report):
    _, _, text = report.longrepr  # file, line, text
    return text.removeprefix("Skipped: ").removesuffix(".")


def pytest_terminal_summary(terminalreporter):
    """List what was skipped by reason, the most frequent reason first: whole files, then tests."""
    reports = terminalreporter.stats.get("skipped", [])
    if reports:
        terminalreporter.section("skipped")
    for kind, noun in ((pytest.CollectReport, "whole file"), (pytest.TestReport, "test")):
        skipped = {(report.nodeid, _reason(report)) for report in reports if isinstance(report, kind)}
        for reason, count in Counter(sorted(reason for _, reason in skipped)).most_common():
            terminalreporter.line(f"{count} {noun}{'s' if count > 1 else ''}: {reason}")
