"""The connection to a Ray cluster: one that is running, or one of this machine alone for as long as it is needed."""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dctps.base.extras import needed
from dctps.train.runs import RunError

SHORT = 40  # characters of a path: Ray's sockets lie below it, and their paths may have at most 107


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[tuple[Any, str | None]]:
    """The module `ray`, connected to a cluster, and the folder for the workers' files if there is a certain one."""
    ray = import_ray()
    if ray.is_initialized():  # by the caller, who will also end it
        yield ray, None
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
    with contextlib.ExitStack() as stack:
        scratch = None
        if address is None:
            scratch = str(stack.enter_context(temporary_folder(_short_folder(), "dctps-ray-")))
            _set_token()
            options |= {"include_dashboard": False, "_temp_dir": scratch}
        _init(ray, address or "local", options)
        stack.callback(ray.shutdown)
        yield ray, scratch


def import_ray() -> Any:
    """The module `ray`, set to print nothing; ModuleNotFoundError that says how to install it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # Ray would print these lines on our terminal
    needed("ray.exceptions", "a sweep on a cluster")
    return needed("ray", "a sweep on a cluster")


def _init(ray: Any, address: str, options: dict[str, Any]) -> None:
    try:
        with _keeping_signal_handlers():
            ray.init(address=address, **options)
    except Exception as error:  # Ray raises many kinds, plain Exception among them
        what = "start a Ray cluster" if address == "local" else f"join the Ray cluster at {address}"
        raise RunError(f"cannot {what}: {str(error).splitlines()[0]}") from error


def _set_token() -> None:
    """Give this process a password for its own cluster; Ray would keep one below the home folder."""
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextlib.contextmanager
def _keeping_signal_handlers() -> Iterator[None]:
    """Put the handlers of signals back at the end: Ray takes SIGTERM for itself, but a sweep has its own way to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- temporary folders ----------------------------------------------------------------------------------------------


def _short_folder() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= SHORT else Path("/tmp")


@contextlib.contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder that is removed at the end. Folders of processes that were killed, whose lock is free, go too."""
    for orphan in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _locked(orphan, fcntl.LOCK_NB):
            shutil.rmtree(orphan, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        folder = _make_locked(parent, prefix, stack)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _make_locked(parent: Path, prefix: str, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as lock:
            lock.enter_context(_locked(folder))
            if folder.exists():  # nobody took it for an orphan before it was locked
                stack.push(lock.pop_all())
                return folder


@contextlib.contextmanager
def _locked(folder: Path, flag: int = 0) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | flag)
        yield
    finally:
        os.close(handle)
