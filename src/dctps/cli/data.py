"""`dctps data get NAME`: download the official files of a data set."""

from pathlib import Path
from typing import Annotated

import tyro

from dctps.cli.flags import parse

HELP = """usage: dctps data get NAME [--root PATH]

Download the official files of a data set: cifar10, cifar100, tiny_imagenet, mnist or fashion_mnist.

dctps data get --help says more."""


def data(arguments: list[str]) -> None:
    """Run `get`, the only subcommand, or say how it is called."""
    if arguments[:1] == ["get"]:
        parse(data_get, "data get", arguments[1:])
        return
    print(HELP)
    raise SystemExit(0 if arguments in ([], ["-h"], ["--help"]) else 2)


def data_get(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")], root: Path | None = None
) -> None:
    """Download the official files of a data set, check their checksums, and print where they are.

    A download that broke off goes on where it stopped. Files that are there already are not downloaded again.

      dctps data get cifar10

    Args:
        name: The data set: cifar10, cifar100, tiny_imagenet, mnist or fashion_mnist. Digits come with scikit-learn.
        root: Folder of all data sets. The default is $DCTPS_DATA if it is set, else ~/.cache/dctps.
    """
    from rich.console import Console

    from dctps.data.download import get

    paths = get(name, root)
    console = Console(soft_wrap=True)  # a path broken over lines cannot be copied
    if not paths:
        console.print(f"{name} come with scikit-learn: nothing to download.")
    for path in paths:
        console.print(str(path), highlight=False, markup=False)
