"""The device that a process computes on, and how it computes there."""

import os

import torch

from dctps.base.machine import keep_memory
from dctps.train.settings import Runtime


def choose_device(name: str) -> torch.device:
    """The device called `name`, or the best there is for "auto"; under torchrun each process has a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
            torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"cannot use the device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def set_up(runtime: Runtime) -> torch.device:
    """Set the number of threads and what becomes of freed memory, and return the device that a run computes on."""
    device = choose_device(runtime.device)
    if runtime.threads is not None:
        if runtime.threads < 1:
            raise ValueError(f"threads must be at least 1, not {runtime.threads}")
        torch.set_num_threads(runtime.threads)
    if runtime.keep_memory and device.type == "cpu":
        keep_memory()
    return device
