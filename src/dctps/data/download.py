"""Fetching the official files: with a progress bar, their checksums, and going on where a download broke off."""

import contextlib
import dataclasses
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from dctps.data.dataset import DataError
from dctps.data.sources import data_root, needed

NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
ATTEMPTS, TIMEOUT, BLOCK = 10, 30, 1 << 18  # tries, seconds without a byte, bytes read at once


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file on a server, and what it must be."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name


CIFAR = "https://www.cs.toronto.edu/~kriz/"
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FILES: dict[str, tuple[Remote, ...]] = {
    "cifar10": (Remote(f"{CIFAR}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
    "cifar100": (Remote(f"{CIFAR}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
    "tiny_imagenet": (Remote("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
    "mnist": (
        Remote(f"{MNIST}train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb72873"),
        Remote(f"{MNIST}train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        Remote(f"{MNIST}t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        Remote(f"{MNIST}t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion_mnist": (
        Remote(f"{FASHION}train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Remote(f"{FASHION}train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        Remote(f"{FASHION}t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        Remote(f"{FASHION}t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "digits": (),  # they come with scikit-learn
    "digits32": (),
}


def get(name: str, root: str | os.PathLike[str] | None = None) -> list[Path]:
    """The official files of a data set in root/<name>/, fetched unless they are there with the right checksum."""
    if name not in FILES:
        raise DataError(f"unknown data set {name!r}; those that can be fetched are: {', '.join(FILES)}")
    folder = (data_root(root) / name).absolute()
    return [_get(remote, folder) for remote in FILES[name]]


def _get(remote: Remote, folder: Path) -> Path:
    pooch: Any = needed("pooch", "pooch", "data")
    download = _Resuming(folder / f"{remote.name}.part")
    try:
        options = {"known_hash": f"md5:{remote.md5}", "fname": remote.name, "path": folder, "downloader": download}
        return Path(pooch.retrieve(remote.url, **options))
    except NETWORK as error:
        kept = f"; the part received is kept in {download.part}, from which the same command goes on"
        raise DataError(
            f"cannot fetch {remote.url} ({error}): try again later, or fetch it elsewhere and put it into "
            f"{folder}{kept if download.part.exists() else ''}"
        ) from error
    except ValueError as error:  # pooch has deleted what it received
        raise DataError(
            f"{remote.url} is not the official file: its checksum is not the md5 {remote.md5} ({error}); try again, "
            f"or put the right file into {folder}"
        ) from error


@dataclasses.dataclass(frozen=True)
class _Resuming:
    """A downloader for pooch, which collects the bytes in `part` and hands them over when they are complete."""

    part: Path

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        with _progress(self.part.stem) as (progress, task):
            for _ in range(ATTEMPTS):
                before = self._size()
                try:
                    self._go_on(url, progress, task)
                    break
                except NETWORK:
                    if self._size() <= before:  # nothing came at all, or the server refused
                        raise
            else:
                raise ConnectionError(f"the connection broke {ATTEMPTS} times")
        os.replace(self.part, output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _go_on(self, url: str, progress: Progress, task: TaskID) -> None:
        """Fetch what is missing; an error if the connection ends before the file does."""
        with self._ask(url) as response:
            start = self._size() if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
            length = response.headers.get("Content-Length")
            total = None if length is None else start + int(length)
            progress.update(task, completed=start, total=total)
            with self.part.open("ab" if start else "wb") as file:
                while block := response.read(BLOCK):
                    file.write(block)
                    progress.advance(task, len(block))
        if total is not None and self._size() < total:
            raise ConnectionError(f"the connection ended after {self._size():,} of {total:,} bytes")

    def _ask(self, url: str) -> Any:
        """The answer of the server to a request for the bytes after those of the part."""
        request = urllib.request.Request(url, headers={"User-Agent": "dctps"})
        if self._size():
            request.add_header("Range", f"bytes={self._size()}-")
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            self.part.unlink()  # nothing comes after it, yet it was not taken for complete: begin again
            return self._ask(url)


@contextlib.contextmanager
def _progress(name: str) -> Iterator[tuple[Progress, TaskID]]:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress, progress.add_task(name, total=None)
