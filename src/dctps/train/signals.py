"""Signals that wait for the end of a training step."""

import contextlib
import signal
from types import FrameType


class Interrupted(RuntimeError):  # noqa: N818
    """A signal ended the work, whose state is saved; `code` is the exit code that tells which signal it was."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Signals:
    """Ctrl-C and SIGTERM wait for the end of a step; a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> "Signals":
        with contextlib.suppress(ValueError):  # Python takes signals in the main thread only
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *error: object) -> None:
        for number, handler in getattr(self, "before", {}).items():
            signal.signal(number, handler)
