"""The device that a process computes on."""

import os

import torch


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
