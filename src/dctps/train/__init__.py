"""Training by the paper's protocol, `fit(settings, runtime)`, and fine-tuning, `finetune(settings, runtime)`.

Both go on where they stopped.

Names are imported when they are first used, as those of `dctps` are, so that settings can be read without torch.
"""

from typing import TYPE_CHECKING

from dctps.base.lazy import lazy_names

if TYPE_CHECKING:
    from dctps.train.finetuning.session import finetune
    from dctps.train.finetuning.settings import FinetuneSettings
    from dctps.train.runs import RunError
    from dctps.train.session import fit
    from dctps.train.settings import PRESETS, Runtime, Settings
    from dctps.train.signals import Interrupted

__all__ = ["PRESETS", "FinetuneSettings", "Interrupted", "RunError", "Runtime", "Settings", "finetune", "fit"]

PLACES = {
    "PRESETS": "dctps.train.settings",
    "FinetuneSettings": "dctps.train.finetuning.settings",
    "Interrupted": "dctps.train.signals",
    "RunError": "dctps.train.runs",
    "Runtime": "dctps.train.settings",
    "Settings": "dctps.train.settings",
    "finetune": "dctps.train.finetuning.session",
    "fit": "dctps.train.session",
}

if not TYPE_CHECKING:  # with `__getattr__`, every name would exist for a type checker
    __getattr__, __dir__ = lazy_names(__name__, PLACES)
