"""What is written into the pages of docs/, and the copies of them that become a site.

`python docs/hooks.py` writes the help of each command into its page, the entry of each public name into api.md, and
tables of runs into the pages that ask for them, between two comments, so that the pages can be read where they lie,
too. With --check it writes nothing, and fails if a page is out of date.

`python docs/hooks.py --site` copies the pages to build/pages, with the figures of results/, for the generator of the
site. Links to files outside docs/ would lead nowhere there, so they become plain text. The generator finds links to
pages and headings that are not there; links to other files and pictures are checked here.
"""

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

from dctps.cli import main  # imported after the variables are set: they make the help 100 columns wide, without colours

DOCS = Path(__file__).parent
OLD = r"(?:(?!<!-- ).)*"  # what stands between two comments, and is replaced
HELP = re.compile(rf"(?P<start><!-- help (?P<of>[a-z ]+) -->\n){OLD}(?P<end><!-- end of help -->)", re.DOTALL)
API = re.compile(rf"(?P<start><!-- api (?P<of>\w+) -->\n){OLD}(?P<end><!-- end of api -->)", re.DOTALL)
TABLE = re.compile(rf"(?P<start><!-- table (?P<of>[^>]+) -->\n){OLD}(?P<end><!-- end of table -->)", re.DOTALL)
COMMENT = re.compile(r"^<!-- (?:help|api|table|end of) .*$", re.MULTILINE)
FIGURE = re.compile(r"(?P<start>\[[^\]]*\]\()\.\./results/(?=[^)]*\.png\))")  # shown or linked, in a page of docs/
OUTSIDE = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)]+)\)")
BLOCK = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)  # code, which has no links
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)[^)]*\)")


# --- what is written into the pages ---------------------------------------------------------------------------------


def filled(markdown: str) -> str:
    """Return a page with the help that commands print now, the entries of public names, and the tables of runs."""
    from reference import entry  # both are beside this file
    from tables import table

    if unpaired := len(COMMENT.findall(markdown)) - 2 * sum(len(m.findall(markdown)) for m in (HELP, API, TABLE)):
        raise ValueError(f"{unpaired} comments of a page stand alone: {', '.join(COMMENT.findall(markdown))}")
    return _fill(TABLE, _fill(API, _fill(HELP, markdown, _help), entry), table)


def _fill(mark: re.Pattern[str], markdown: str, text: Callable[[str], str]) -> str:
    return mark.sub(lambda match: f"{match['start']}{text(match['of'])}\n{match['end']}", markdown)


def _help(command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    lines = [line.rstrip() for line in text.getvalue().strip().splitlines()]
    return "\n".join(["```text", *lines, "```"])


def update(check: bool) -> int:
    """Write the texts into all pages, or only say which pages are out of date; return the exit code."""
    old = {page: page.read_text() for page in sorted(DOCS.rglob("*.md"))}
    new = {page: filled(text) for page, text in old.items()}
    changed = [page for page in old if old[page] != new[page]]
    for page in changed:
        if not check:
            page.write_text(new[page])
        print(f"{page.name} {'is out of date; run: python docs/hooks.py' if check else 'is up to date now'}")
    return int(check and bool(changed))


# --- the site -------------------------------------------------------------------------------------------------------


def stage(docs: Path, target: Path) -> int:
    """Copy the pages and pictures of a folder, and the figures of results/ beside it; return the exit code."""
    shutil.rmtree(target, ignore_errors=True)
    pages = {page.relative_to(docs): adapted(page.read_text()) for page in sorted(docs.rglob("*.md"))}
    pictures = {path.relative_to(docs.parent if path.parent != docs else docs): path for path in _pictures(docs)}
    for name in [*pages, *pictures]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
    for name, path in pictures.items():
        shutil.copyfile(path, target / name)
    for name, text in pages.items():
        (target / name).write_text(text)
    missing = [link for name, text in pages.items() for link in _missing(target, name, text)]
    for link in missing:
        print(link, file=sys.stderr)
    return int(bool(missing))


def adapted(markdown: str) -> str:
    """Return a page with links to files outside docs/ adapted to the site, and with space for a help of 100 columns."""
    wide = "---\nhide: [toc]\n---\n" if HELP.search(markdown) else ""
    markdown = FIGURE.sub(r"\g<start>results/", markdown)
    return wide + OUTSIDE.sub(lambda m: m[0] if m["path"].endswith(".md") else f"{m['text']} (`{m['path']}`)", markdown)


def _pictures(docs: Path) -> Iterator[Path]:
    yield from sorted(docs.glob("*.png"))
    yield from sorted((docs.parent / "results").glob("*.png"))


def _missing(folder: Path, name: Path, text: str) -> Iterator[str]:
    """Give an error for each link of a page to a file of the site that is not there."""
    for link in LINK.finditer(BLOCK.sub("", text)):
        target = link["target"]
        if "://" not in target and not (folder / name.parent / target).is_file():
            yield f"docs/{name} has a link to {target}, which is not there"


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(stage(DOCS, DOCS.parent / "build" / "pages") if "--site" in arguments else update("--check" in arguments))
