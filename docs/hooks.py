"""What the site adds to the pages: the help of the commands as it is now, and links that leave docs/ as plain text."""

import os
import re
import subprocess
import sys
from typing import Any

HELP = re.compile(r"^\{\{ help (?P<command>[a-z ]+) \}\}$", re.MULTILINE)
OUTSIDE = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?:\.\./)+(?P<path>[^)]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`{{ help train }}` becomes what `dctps train --help` prints."""
    markdown = HELP.sub(lambda match: _help(match["command"]), markdown)
    return OUTSIDE.sub(lambda m: m[0] if m["path"].endswith(".md") else f"{m['text']} (`{m['path']}`)", markdown)


def _help(command: str) -> str:
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    arguments = [sys.executable, "-m", "dctps", *command.split(), "--help"]
    run = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    return f"```text\n{run.stdout.rstrip()}\n```"
