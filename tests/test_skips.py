"""What is skipped is listed at the end of a run, and is a failure where it must run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

TESTS = """
import pytest

required = pytest.mark.required_in_ci("Install a flux capacitor.")

@required
@pytest.mark.skipif(True, reason="no flux capacitor here")
def test_one(): pass

@required
def test_two():
    pytest.skip("no flux capacitor here")

@required
def test_three(): pass

@required
@pytest.mark.xfail(reason="known")
def test_four(): assert False

def test_five():
    pytest.skip("not today")
"""
WHOLE_FILE = "import pytest\npytest.skip('no plutonium', allow_module_level=True)\n"


def run(folder, ci, *options):
    """Run tests under our conftest.py, with or without CI=true: the exit code and what is printed."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_a.py").write_text(TESTS)
    (folder / "test_b.py").write_text(WHOLE_FILE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PYTEST"))}
    environment |= {"CI": ci} if ci else {}
    flags = "-q", "-p", "no:cacheprovider", "--strict-markers", "--doctest-modules"
    command = [sys.executable, "-m", "pytest", *flags, *options]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return ran.returncode, ran.stdout


def listed(out):
    """The lines of the list at the end."""
    return re.split(r"=+ skipped =+\n", out)[1].splitlines()


def test_skips_are_listed_by_reason(tmp_path):
    code, out = run(tmp_path, ci="")
    assert code == 0
    assert listed(out)[:3] == ["1 whole file: no plutonium", "2 tests: no flux capacitor here", "1 test: not today"]


def test_required_tests_fail_where_ci_would_skip_them(tmp_path):
    code, out = run(tmp_path, "true", "-n", "2")
    assert code == 1
    said = "This test must run where CI=true, but would be skipped: no flux capacitor here. Install a flux capacitor."
    assert out.count(f"{said}\n") >= 2
    assert re.search("1 failed, 1 passed, 2 skipped, 1 xfailed, 1 error", out)  # error: skipped before it began
    assert listed(out)[:2] == ["1 whole file: no plutonium", "1 test: not today"]
