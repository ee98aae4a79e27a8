"""The code of the README, of pages and of the examples runs and prints what they say; the help in pages is current."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dctps
from dctps.cli import COMMANDS
from dctps.core.transforms import TRANSFORMS
from helpers.processes import environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGE_OF_TRANSFORMS = (ROOT / "docs" / "transforms.md").read_text()
# a block of Python, and the block of text right after it, which is what it prints
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n?```text\n(.*?)```)?", re.DOTALL)


def check_blocks(page):
    blocks = BLOCK.findall(page)
    assert blocks
    names: dict[str, object] = {}
    for code, expected in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "page", "exec"), names)
        assert out.getvalue() == expected


def test_readme_blocks_run_in_order_and_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_blocks(README)


def test_blocks_of_the_page_of_transforms_run_in_order_and_print_what_they_say(monkeypatch):
    for name in ("dct4", "fast_dct4", "half_done"):  # the entries that the page makes; they go with the test
        monkeypatch.setitem(TRANSFORMS, name, TRANSFORMS["dct"])
    check_blocks(PAGE_OF_TRANSFORMS)


def test_blocks_of_the_page_of_federated_learning_run_in_order_and_print_what_they_say():
    check_blocks((ROOT / "docs" / "federated.md").read_text())


def test_the_support_follows_from_the_seed_alone_as_the_readme_says():
    assert "The support comes from `seed=` alone, which is 0 by default" in README

    def positions(torch_seed, **options):
        torch.manual_seed(torch_seed)
        return dctps.sparsify(dctps.models.build("lenet"), 0.01, **options).conv2.support

    assert positions(1) == positions(2) == positions(3, seed=0)
    assert positions(1) != positions(1, seed=1)


def test_as_many_weights_as_the_readme_says_and_never_none():
    assert "exactly `floor(density * weights + 1/2)` weights" in README
    for density, count in ((0.005, 1), (0.0149, 1), (0.015, 2)):
        assert dctps.sparsify(torch.nn.Linear(10, 10), density).nnz == count
    with pytest.raises(ValueError, match=r"density 0\.0049 of 100 weights is less than one"):
        dctps.sparsify(torch.nn.Linear(10, 10), 0.0049)


@pytest.mark.process
def test_the_huge_layer_takes_no_more_memory_than_the_readme_says(tmp_path):
    # The shell starts it in a process of its own; one that the tests start directly has the peak of their own process.
    example = ["sh", "-c", '"$0" "$1"; exit $?', sys.executable, ROOT / "examples" / "huge_layer.py"]
    run = subprocess.run(
        example, env={**environment(), "OMP_NUM_THREADS": "2"}, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    (peak,) = re.findall(r"peak memory: ([\d.]+) GB, of which [\d.]+ GB before the layer was built", run.stdout)
    said = re.findall(r"less\s+than ([\d.]+) GB", README)
    assert len(said) == 2
    assert all(float(peak) <= float(bound) for bound in said)
    assert not list(tmp_path.iterdir())  # its file is gone with the folder that held it


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", README)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


def test_every_command_has_its_help_in_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "commands").glob("*.md"))
    assert set(re.findall(r"<!-- help ([a-z]+)", pages)) == set(COMMANDS)
    assert "{{" not in pages


@pytest.mark.process
def test_pages_of_the_commands_have_the_help_that_the_commands_print():
    check = [sys.executable, ROOT / "docs" / "hooks.py", "--check"]
    run = subprocess.run(check, env=environment(), capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert len(path.read_text().splitlines()) <= 60
