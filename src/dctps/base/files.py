"""Atomic writing of files: a reader sees the old contents or the new contents, never a part of either."""

import glob
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of what was measured on this machine: $DCTPS_CACHE, else dctps in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("DCTPS_CACHE") or f"{home}/dctps").expanduser()


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file atomically: `write` fills a temporary file beside `path`, which then takes the name of `path`.

    The temporary file is flushed to disk first. Where `path` is a link, the file that it points to is replaced.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target.parent)!r} to write {target.name!r} into")
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise FileExistsError(f"{str(target)!r} is a device or the like, which a file cannot replace; name a file")
    _remove_orphans(target)
    handle, name = tempfile.mkstemp(prefix=f"{_prefix(target)}{os.getpid()}.", suffix=".tmp", dir=target.parent)
    try:
        os.close(handle)
        write(Path(name))
        os.chmod(name, target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        _flush(name)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _flush(target.parent)


def remove_leftovers(path: Path) -> None:
    """Delete the temporary files of killed writers of `path`; for those who know that nobody is writing it now.

    `write_atomically` leaves those of other machines, and those whose process may still run, because its number does.
    """
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)


def _prefix(target: Path) -> str:
    return f".{target.name}.{socket.gethostname()}."


def _remove_orphans(target: Path) -> None:
    """Delete the temporary files of processes of this machine that were killed while they wrote."""
    prefix = _prefix(target)
    for orphan in target.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        pid = orphan.name.removeprefix(prefix).split(".")[0]
        if pid.isdigit() and not _is_running(int(pid)):
            orphan.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    """Return whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except (PermissionError, OSError):  # a process of another user
        return True
    return True


def _flush(path: str | Path) -> None:
    """Flush a file, or the list of names in a folder, to disk; do nothing where the system cannot open folders."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
