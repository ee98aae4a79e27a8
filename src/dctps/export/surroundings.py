"""What an export must not depend on, or leave to chance: the caller's settings of torch, and a disk that is full."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from dctps.base.files import write_atomically


@contextlib.contextmanager
def usual_settings() -> Iterator[None]:
    """Let torch make tensors of float32 on the CPU, and compute in their types, whatever the caller has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(before)


def write(file: Path, content: bytes) -> None:
    """Write a file atomically; raise OSError that names it, as that of a full disk does not."""
    try:
        write_atomically(file, lambda path: path.write_bytes(content))
    except OSError as error:
        if error.errno is None:  # its message says everything
            raise
        raise OSError(error.errno, f"cannot write {str(file)!r}: {error.strerror}") from error
