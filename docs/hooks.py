"""The help of the commands in the pages of docs/commands, and hooks of mkdocs.

`python docs/hooks.py` writes the help of each command into its page, between two comments, so that the pages can be
read where they lie, too. With --check it writes nothing, and fails if a page is out of date.

The hooks add the figures of results/ to the site. Links to files outside docs/ would lead nowhere there, so they become
plain text.
"""

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

from dctps.cli import main  # imported after the variables are set: they make the help 100 columns wide, without colours

PAGES = Path(__file__).parent / "commands"
HELP = re.compile(r"(?P<start><!-- help (?P<command>[a-z ]+) -->\n).*?(?P<end><!-- end of help -->)", re.DOTALL)
FIGURE = re.compile(r"(?P<start>\[[^\]]*\]\()\.\./results/(?=[^)]*\.png\))")  # shown or linked, in a page of docs/
OUTSIDE = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)]+)\)")


# --- the help in the pages ------------------------------------------------------------------------------------------


def with_help(markdown: str) -> str:
    """Return a page with what `dctps COMMAND --help` prints now between each `<!-- help COMMAND -->` and its end."""
    return HELP.sub(lambda match: f"{match['start']}{_help(match['command'])}\n{match['end']}", markdown)


def _help(command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    lines = [line.rstrip() for line in text.getvalue().strip().splitlines()]
    return "\n".join(["```text", *lines, "```"])


def update(check: bool) -> int:
    """Write the help into all pages, or only say which pages are out of date; return the exit code."""
    old = {page: page.read_text() for page in sorted(PAGES.glob("*.md"))}
    new = {page: with_help(text) for page, text in old.items()}
    changed = [page for page in old if old[page] != new[page]]
    for page in changed:
        if not check:
            page.write_text(new[page])
        print(f"{page.name} {'is out of date; run: python docs/hooks.py' if check else 'has its help now'}")
    return int(check and bool(changed))


# --- hooks of mkdocs ------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the figures of results/ to the files of the site."""
    from mkdocs.structure.files import File

    for path in sorted((Path(config.config_file_path).parent / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt links to files outside docs/."""
    markdown = FIGURE.sub(r"\g<start>results/", markdown)
    return OUTSIDE.sub(lambda m: m[0] if m["path"].endswith(".md") else f"{m['text']} (`{m['path']}`)", markdown)


if __name__ == "__main__":
    sys.exit(update(check="--check" in sys.argv[1:]))
