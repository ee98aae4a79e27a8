"""The site of docs/: it has every public name, a link that leads nowhere is an error, and it asks no other host."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dctps
from helpers.processes import environment

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text()
SETTINGS = (ROOT / "mkdocs.yml").read_text()
REFERENCE = runpy.run_path(str(ROOT / "docs" / "reference.py"))
BUILD = [["docs/hooks.py", "--site"], ["-m", "zensical", "build", "--strict"]]  # as `make docs`
ELSEWHERE = re.compile(r"""(?:<(?:script|img|iframe)[^>]*src|<link[^>]*href)=["']?(?:https?:)?//[^>]*""")


def test_every_public_name_is_in_the_reference_once():
    assert sorted(re.findall(r"<!-- api (\w+) -->", PAGE)) == sorted(dctps.__all__)


@pytest.mark.parametrize("name", dctps.__all__)
def test_every_public_name_has_a_docstring_that_begins_with_a_sentence(name):
    first = REFERENCE["docstring"](name).partition("\n")[0]
    assert re.fullmatch(r"[A-Z]\S*( \S+){2,}\.", first), f"{name} has the first line {first!r}"


def test_a_class_without_a_docstring_does_not_borrow_that_of_its_base(monkeypatch):
    monkeypatch.setattr(dctps, "DpsConv1d", type("Undescribed", (dctps.DpsConv2d,), {}))
    assert REFERENCE["docstring"]("DpsConv1d") == ""


def test_headings_of_the_reference_have_different_anchors():
    headings = [heading.strip("`").lower() for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)]
    assert len(set(headings)) == len(headings)


def test_docstrings_become_markdown():
    text = "Draw `a * b` from 2 * 3.\n\nn: the number, see\n    docs/file.md.\nm: `sparsify` has it.\n\n>>> 1\n1"
    assert list(REFERENCE["_blocks"](text)) == [
        "Draw `a * b` from 2 \\* 3.",
        "- `n`: the number, see [file](file.md).\n- `m`: [`sparsify`](#sparsify) has it.",
        "```pycon\n>>> 1\n1\n```",
    ]


def test_every_page_is_in_the_navigation():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r": (\S+\.md)$", SETTINGS, re.MULTILINE)) == pages


def build(folder: Path, text: str) -> subprocess.CompletedProcess:
    """Build a site with the settings of ours, one page with this text, another page and a figure."""
    pytest.importorskip("zensical", reason="needs the docs extra")
    for name, content in {"docs/index.md": f"# First\n\n{text}\n", "docs/other.md": "# Second\n\n## There\n"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / "results").mkdir()
    shutil.copy(ROOT / "docs" / "demo.png", folder / "results" / "figure.png")
    shutil.copy(ROOT / "docs" / "hooks.py", folder / "docs" / "hooks.py")
    (folder / "mkdocs.yml").write_text(SETTINGS.partition("nav:\n")[0])
    for command in BUILD:
        run = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment(), capture_output=True, text=True, timeout=100
        )
        if run.returncode:
            break
    return run


BROKEN = [
    "other.md#here",
    "#here",
    "nowhere.md",
    "nowhere.png",
    "../results/nowhere.png",
    "other",
    "../README.md",
    "/other.md",
]


@pytest.mark.process
@pytest.mark.parametrize("target", BROKEN)
def test_a_link_that_leads_nowhere_is_an_error(target, tmp_path):
    run = build(tmp_path, f"A [link]({target}).")
    assert run.returncode == 1
    assert target.removeprefix("../") in re.sub(r"\x1b\[[\d;]*m", "", run.stderr)  # without colours


@pytest.mark.process
def test_a_site_with_good_links_is_built_and_asks_no_other_host(tmp_path):
    text = "[Good](other.md#there), [rows](../results/rows.csv), `[code](gone.md)`.\n\n![figure](../results/figure.png)"
    run = build(tmp_path, text)
    assert run.returncode == 0, run.stderr
    site = tmp_path / "build" / "site"
    page = (site / "index.html").read_text()
    assert (site / "results" / "figure.png").is_file()
    assert 'href="other.html#there"' in page
    assert "rows (<code>results/rows.csv</code>)" in page
    assert "prefers-color-scheme: dark" in page
    assert (site / "search.json").is_file()
    assert ELSEWHERE.findall(page) == []
