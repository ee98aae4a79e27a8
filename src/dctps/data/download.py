"""Fetching the official files of data sets: checksums, a progress bar, and resuming downloads that broke off."""

import contextlib
import dataclasses
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import DownloadColumn, Progress, TaskID, TransferSpeedColumn

from dctps.base.extras import needed
from dctps.base.progress import progress_bar
from dctps.base.registry import unknown
from dctps.data import DATASETS
from dctps.data.dataset import DataError, Remote
from dctps.data.sources import data_root

NETWORK = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
ATTEMPTS = 10
TIMEOUT = 30  # seconds without a byte
BLOCK = 1 << 18  # bytes that are read at once


def get(name: str, root: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the paths of the official files of a data set in root/<name>/.

    Files that are not there, or have a wrong checksum, are fetched.
    """
    if name not in DATASETS:
        raise DataError(unknown("data set", name, DATASETS))
    folder = (data_root(root) / name).absolute()
    return [_fetch(remote, folder) for remote in DATASETS[name].files]


def _fetch(remote: Remote, folder: Path) -> Path:
    pooch: Any = needed("pooch", "a download")
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
    except ValueError as error:  # the checksum is wrong, and pooch has deleted the file
        raise DataError(
            f"{remote.url} is not the official file: its checksum is not the md5 {remote.md5} ({error}); try again, "
            f"or put the right file into {folder}"
        ) from error


@dataclasses.dataclass(frozen=True)
class _Resuming:
    """A downloader for pooch that collects the bytes in the file `part` and hands it over when it is complete."""

    part: Path

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        with _progress(self.part.stem) as (progress, task):
            for _ in range(ATTEMPTS):
                before = self._size()
                try:
                    self._continue(url, progress, task)
                    break
                except NETWORK:
                    if self._size() <= before:  # nothing came at all, or the server refused
                        raise
            else:
                raise ConnectionError(f"the connection broke {ATTEMPTS} times")
        os.replace(self.part, output_file)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str, progress: Progress, task: TaskID) -> None:
        """Fetch the bytes that are missing; raise ConnectionError if the connection ends before the file does."""
        with self._request(url) as response:
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

    def _request(self, url: str) -> Any:
        """Ask the server for the bytes that come after those of the part; return its answer."""
        request = urllib.request.Request(url, headers={"User-Agent": "dctps"})
        if self._size():
            request.add_header("Range", f"bytes={self._size()}-")
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            self.part.unlink()  # the part is as long as the file, but it is not the file: begin again
            return self._request(url)


@contextlib.contextmanager
def _progress(name: str) -> Iterator[tuple[Progress, TaskID]]:
    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as progress:
        yield progress, progress.add_task(name, total=None)
