"""Which commit a result names."""

import subprocess
from pathlib import Path

import pytest

import dctps
from dctps.base import provenance as module
from dctps.base.provenance import commit, commit_of, provenance


def git(folder, *command):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *command], check=True, capture_output=True)


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (tmp_path / "results.csv").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return folder


def test_a_changed_source_is_marked_and_changed_results_are_not(package):
    clean = commit_of(package)
    assert len(clean) == 12
    (package.parents[1] / "results.csv").write_text("2")
    assert commit_of(package) == clean
    (package / "__init__.py").write_text("changed = True")
    assert commit_of(package) == f"{clean}-dirty"


def test_a_repository_around_an_installed_package_is_not_its_own(package):
    installed = package.parents[1] / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit_of(installed) is None


def test_without_a_repository_there_is_no_commit(tmp_path):
    assert commit_of(tmp_path) is None
    assert commit_of(tmp_path / "gone") is None


def test_a_change_anywhere_in_the_package_counts(monkeypatch):
    monkeypatch.setattr(module, "commit_of", str)
    assert commit.__wrapped__() == str(Path(dctps.__file__).parent)


def test_it_is_asked_once():
    assert provenance()["commit"] == commit()
    assert commit.cache_info().misses == 1
