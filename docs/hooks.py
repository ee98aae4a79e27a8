"""Hooks of mkdocs. They add the help of the commands and the figures of results/ to the site.

Links to files outside docs/ would lead nowhere on the site, so they become plain text.
"""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

from dctps.cli import main  # imported after the variables are set: they make the help 100 columns wide, without colours

HELP = re.compile(r"^\{\{ help (?P<command>[a-z ]+) \}\}$", re.MULTILINE)
FIGURE = re.compile(r"(?P<start>\[[^\]]*\]\()\.\./results/(?=[^)]*\.png\))")  # shown or linked, in a page of docs/
OUTSIDE = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)]+)\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the figures of results/ to the files of the site."""
    for path in sorted((Path(config.config_file_path).parent / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace `{{ help train }}` by what `dctps train --help` prints, and adapt links to files outside docs/."""
    markdown = FIGURE.sub(r"\g<start>results/", markdown)
    markdown = HELP.sub(lambda match: _help(match["command"]), markdown)
    return OUTSIDE.sub(lambda m: m[0] if m["path"].endswith(".md") else f"{m['text']} (`{m['path']}`)", markdown)


def _help(command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return f"```text\n{text.getvalue().rstrip()}\n```"
