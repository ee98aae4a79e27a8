"""`dctps inspect PATH`: what a file or a run folder is, what is in it, and where its bytes go."""

from pathlib import Path
from typing import Annotated

import tyro


def inspect(path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]) -> None:
    """Show what a file or the folder of a run is, what is in it, and how many bytes each part takes.

    Args:
        path: File that dctps.save wrote, folder of a run or a file in it, or any safetensors file.
    """
    from dctps.cli.inspection import show

    show(path)
