"""All code of the README and the examples runs, and prints what the README says it prints."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# a block of Python, and the block of text right after it, which is what it prints
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n?```text\n(.*?)```)?", README, re.DOTALL)


def test_readme_blocks_run_in_order_and_print_what_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert BLOCKS
    names: dict[str, object] = {}
    for code, expected in BLOCKS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), names)
        assert out.getvalue() == expected


def test_readme_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)", README)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert len(path.read_text().splitlines()) <= 60
