"""`auto` in a test: a store of times of its own, and known times in the place of measurements."""

import torch

from dctps.ops import measurement, native, stored_times

FAST = "torch" if native.kernels is None else "native"  # the rival of `dense` on a CPU
ALL = ["dense", FAST, "plain"]


def isolate(monkeypatch, folder):
    """Let `auto` measure, with an empty memory and with its file in this folder."""
    monkeypatch.setenv("DCTPS_TUNE", "1")
    monkeypatch.setenv("DCTPS_CACHE", str(folder))
    monkeypatch.delenv("DCTPS_BACKEND", raising=False)
    forget(monkeypatch)
    monkeypatch.setattr(stored_times, "_preferred", {})


def forget(monkeypatch):
    """Empty the memory, as in another process."""
    monkeypatch.setattr(stored_times, "_times", {})


def measuring(monkeypatch, **times):
    """Times instead of measurements, and a list of what was asked for."""
    asked = []

    def time(case, contenders):
        asked.extend(contenders)
        return {"plain": 1.0} | times

    monkeypatch.setattr(measurement, "_time", time)
    return asked


def surroundings(monkeypatch):
    """Return a list to which every measurement adds what torch is like there; it should be like in `UNDISTURBED`."""
    seen, runs = [], measurement._runs

    def spy(case, contenders):
        empty = torch.empty(0)
        modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
        seen.append((type(empty), empty.device.type, *modes))
        return runs(case, contenders)

    monkeypatch.setattr(measurement, "_runs", spy)
    return seen


UNDISTURBED = torch.Tensor, "cpu", False, False, True
