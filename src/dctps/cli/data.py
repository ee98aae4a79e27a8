"""`dctps data get NAME`: the official files of a data set."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from dctps.data.download import get


def data_get(name: Annotated[str, tyro.conf.Positional], root: Path | None = None) -> None:
    """Fetch the official files of a data set, check their checksums, and say where they are.

    A download that broke off goes on where it stopped. Files that are there already are not fetched again.

    Args:
        name: cifar10, cifar100, tiny_imagenet, mnist or fashion_mnist (digits come with scikit-learn).
        root: folder of all data sets; $DCTPS_DATA or ~/.cache/dctps if not given.
    """
    paths = get(name, root)
    console = Console(soft_wrap=True)  # a path broken over lines cannot be copied
    if not paths:
        console.print(f"{name} come with scikit-learn: nothing to fetch.")
    for path in paths:
        console.print(str(path), highlight=False, markup=False)
