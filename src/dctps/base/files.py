"""Writing a file so that a reader sees the old one or the new one, never a part of either."""

import glob
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """`write` fills a temporary file beside `path`, which is flushed to disk and then takes its name.

    A link is followed: the file it points to is replaced, not the link.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target.parent)!r} to write {target.name!r} into")
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


def _prefix(target: Path) -> str:
    return f".{target.name}.{socket.gethostname()}."


def _remove_orphans(target: Path) -> None:
    """Temporary files of processes of this machine that were killed while they wrote."""
    prefix = _prefix(target)
    for orphan in target.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        pid = orphan.name.removeprefix(prefix).split(".")[0]
        if pid.isdigit() and not _alive(int(pid)):
            orphan.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OSError):
        return True
    return True


def _flush(path: str | Path) -> None:
    """Bring a file, or the names in a folder, to disk (folders cannot be opened for it on every system)."""
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
