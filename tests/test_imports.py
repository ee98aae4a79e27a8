"""The import of dctps: it comes at once and brings every public name, to Python and to type checkers."""

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import dctps
from helpers.imports import checked_imports

LAZY = ["dctps", "dctps.train", "dctps.bench"]
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", LAZY)
def test_the_table_of_names_is_what_type_checkers_see(name):
    package = importlib.import_module(name)
    assert checked_imports(package) == package.PLACES
    assert sorted(package.PLACES) == sorted(package.__all__)


@pytest.mark.parametrize("name", LAZY)
def test_every_public_name_is_there_and_listed(name):
    package = importlib.import_module(name)
    for public in package.__all__:
        assert public in dir(package)
        assert getattr(package, public) is not None


def test_a_name_is_the_object_of_its_module():
    from dctps.core.offsets import OFFSETS
    from dctps.train.session import fit

    assert dctps.OFFSETS is OFFSETS
    assert dctps.train.fit is fit
    assert dctps.data is sys.modules["dctps.data"]


@pytest.mark.parametrize("name", LAZY)
def test_a_name_that_is_not_there(name):
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing
    assert not hasattr(package, "nothing")


def run(code: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.process
def test_the_import_is_clean_and_brings_no_torch():
    assert run("import sys, dctps, dctps.train; print('torch' in sys.modules)", "-W", "error") == "False\n"


@pytest.mark.process
def test_the_layers_come_without_a_warning_and_without_torchs_compiler():
    unwanted = "{'torch._dynamo', 'sympy'}"
    code = f"import sys; from dctps import sparsify; print(sorted({unwanted} & set(sys.modules)))"
    assert run(code, "-W", "error") == "[]\n"


@pytest.mark.process
def test_names_work_as_a_user_writes_them():
    code = "import dctps; print(dctps.train.fit.__name__, dctps.data.load.__name__, dctps.models.build.__name__)"
    assert run(code) == "fit load build\n"
    assert run("from dctps import *; print(sparsify.__name__, train.fit.__name__)") == "sparsify fit\n"


def test_the_version_has_one_source():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert dctps.__version__ == importlib.metadata.version("dctps") == stated


USER_FILE = """
import dctps
from dctps import sparsify
from dctps.train import Settings

version: str = dctps.__version__
reveal_type(sparsify)
reveal_type(Settings().density)
dctps.sparsfy
"""


@pytest.mark.process
def test_mypy_sees_the_types_in_a_users_file(tmp_path):
    """dctps lies in an environment of the user's as it would be installed; without py.typed its types do not count."""
    pytest.importorskip("mypy", reason="needs the dev extra")
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "dctps").symlink_to(Path(dctps.__file__).parent, target_is_directory=True)
    (tmp_path / "user.py").write_text(USER_FILE)
    command = [sys.executable, "-m", "mypy", "--python-executable", str(tmp_path / "env" / "bin" / "python")]
    options = ["--cache-dir", str(tmp_path / "cache"), "--no-incremental", "user.py"]
    found = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    assert "py.typed" not in found.stdout, found.stdout
    lines = found.stdout.splitlines()
    assert "def (model:" in lines[0], found.stdout
    assert '"float | None"' in lines[1] or "Union[builtins.float, None]" in lines[1], found.stdout
    assert 'has no attribute "sparsfy"' in lines[2], found.stdout
