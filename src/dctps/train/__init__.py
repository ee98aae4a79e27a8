"""Training by the paper's protocol: `fit(settings, runtime)` trains a network, or goes on where it stopped."""

from dctps.train.runs import RunError
from dctps.train.session import fit
from dctps.train.settings import PRESETS, Runtime, Settings
from dctps.train.signals import Interrupted

__all__ = ["PRESETS", "Interrupted", "RunError", "Runtime", "Settings", "fit"]
