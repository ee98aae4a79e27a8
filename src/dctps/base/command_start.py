"""The beginning and the end of the command `dctps`: Ctrl-C, and how long idle threads spin.

Ctrl-C ends the process at once, for nothing is to be put in order.

The imports take seconds. A traceback out of the middle of them would tell nobody anything, and modules written in C may
turn the interruption into an error of another kind. A program that imports the library is left alone.

A thread of torch's OpenMP library that waits for another one spins for milliseconds before it sleeps. Where other
processes are busy, the thread that it waits for may need that very core. A step of a sparse network has hundreds of
such waits. The library reads its settings when torch is imported, so they are set here, unless the user has set them.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

SPINS = "1000"  # some microseconds; GNU's library spins 300,000 times of itself


def is_command() -> bool:
    """Return whether this process was started as `dctps ...` or as `python -m dctps ...`."""
    program, options = Path(sys.argv[0]).name, sys.orig_argv
    if program in ("-m", "__main__.py") and "-m" in options:
        return options[options.index("-m") + 1] == "dctps"
    return program == "dctps"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside of this context, also where an import made another error of it."""
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    dies = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if dies:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        if dies:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def limit_spinning() -> None:
    """Let idle threads of an OpenMP library that is loaded later sleep soon, unless the user has said how they wait."""
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = SPINS


if is_command():
    limit_spinning()
if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, and stays so
    signal.signal(signal.SIGINT, signal.SIG_DFL)
