"""Training by the paper's protocol: `fit(settings, runtime)` trains a network, or goes on where it stopped."""

from dctps.train.loop import Interrupted, fit
from dctps.train.runs import RunError
from dctps.train.settings import PRESETS, Runtime, Settings

__all__ = ["PRESETS", "Interrupted", "RunError", "Runtime", "Settings", "fit"]
