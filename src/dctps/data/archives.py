"""Reading files out of folders and archives by name, into memory; nothing is ever extracted to a disk."""

import contextlib
import dataclasses
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath

from dctps.data.dataset import DataError

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)

LARGEST = 1 << 29  # bytes that one file in an archive may have


@dataclasses.dataclass(frozen=True)
class Source:
    """A folder or zip archive of many files, which are named relative to it with forward slashes."""

    path: Path
    stamps: dict[str, str]  # name -> size, and time or checksum, so that a changed file has another stamp
    reader: Callable[[str], bytes]

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        try:
            return self.reader(name)
        except (*DAMAGED, NotImplementedError, RuntimeError, OSError) as error:  # zipfile raises any of them
            raise DataError(f"{self.path}: {name} cannot be read ({error}); take another copy") from error

    def under(self, prefix: str) -> "Source":
        """Return the files whose names start with `prefix`, under their names without it."""
        stamps = {name.removeprefix(prefix): s for name, s in self.stamps.items() if name.startswith(prefix)}
        return Source(self.path, stamps, lambda name: self.reader(prefix + name))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Open a folder (links are followed, hidden names left out) or a zip archive."""
    path = path.resolve()  # gives "." a name
    if path.is_dir():
        yield Source(path, dict(_walk(path)), lambda name: (path / name).read_bytes())
        return
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged or not a zip archive ({error}); take another copy") from error
    with archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
        for file in files:
            _check_size(path, file.filename, file.file_size)
        yield Source(path, {f.filename: f"{f.file_size} {f.CRC}" for f in files}, archive.read)


def _walk(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and stamp of each file below a folder."""
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                file = Path(folder, name)
                status = file.stat()
                yield file.relative_to(path).as_posix(), f"{status.st_size} {status.st_mtime_ns}"


def read_tar(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the contents of the regular files in a tar archive that have one of these names, in whichever folder."""
    contents = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:  # in one pass, as going back in a compressed file means to start again
                name = PurePosixPath(member.name).name
                file = archive.extractfile(member) if member.isfile() and name in names else None
                if file is not None:
                    _check_size(path, name, member.size)
                    contents[name] = file.read()
            _drain(archive)
    except (*DAMAGED, NotImplementedError) as error:
        raise DataError(f"{path} is damaged or not a tar archive ({error}); take another copy") from error
    return contents


def _check_size(path: Path, name: str, size: int) -> None:
    """Refuse a file that is too large before it is read, as a forged header may claim any size."""
    if size > LARGEST:
        raise DataError(f"{path}: {name} claims {size:,} bytes; no file of a data set is larger than {LARGEST:,}")


def _drain(archive: tarfile.TarFile) -> None:
    """Read to the end of the compressed stream, where the checksum is."""
    while archive.fileobj is not None and archive.fileobj.read(1 << 20):
        pass


def read_gz(path: Path) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz."""
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except DAMAGED as error:
        raise DataError(f"{path} is damaged or not a gzip file ({error}); take another copy") from error
