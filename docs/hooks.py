"""What the site adds to the pages: the help of the commands as it is now, and links that leave docs/ as plain text."""

import contextlib
import io
import os
import re
from typing import Any

os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}

from dctps.cli import main  # after the words above, which say how wide and plain the help is

HELP = re.compile(r"^\{\{ help (?P<command>[a-z ]+) \}\}$", re.MULTILINE)
OUTSIDE = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`{{ help train }}` becomes what `dctps train --help` prints."""
    markdown = HELP.sub(lambda match: _help(match["command"]), markdown)
    return OUTSIDE.sub(lambda m: m[0] if m["path"].endswith(".md") else f"{m['text']} (`{m['path']}`)", markdown)


def _help(command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return f"```text\n{text.getvalue().rstrip()}\n```"
