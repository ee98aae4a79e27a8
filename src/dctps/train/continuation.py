"""More epochs of a finished run: a run of the same settings but more epochs begins where the finished one ended.

Everything in an epoch follows from the settings and the number of the epoch, so the longer run is what it would have
been from the start, bit by bit. That holds as long as nothing in an epoch depends on how many epochs there will be.
"""

import dataclasses

from dctps.train.records import Checkpoint
from dctps.train.runs import Run, RunError
from dctps.train.settings import Settings, run_id


def continued_state(before: Run, settings: Settings) -> Checkpoint:
    """The last state of a finished run as one of these settings; ValueError or `RunError` if it cannot be continued."""
    earlier = before.settings()
    check_continuation(earlier, settings)
    if before.finished() is None:
        raise RunError(f"{before.folder} is not finished; launch it again first, with its {earlier.epochs} epochs")
    saved = before.load_state()
    if saved is None:
        raise RunError(f"{before.folder} has no last.pt to go on from; train all epochs without --continue-from")
    if saved.id != run_id(earlier):
        raise RunError(f"{before.last} is of other settings than {before.config}; train without --continue-from")
    return dataclasses.replace(saved, id=run_id(settings))


def check_continuation(earlier: Settings, settings: Settings) -> None:
    """ValueError unless the settings are the earlier ones with more epochs, on which nothing else depends."""
    fields = [field.name for field in dataclasses.fields(settings)]
    changed = [name for name in fields if getattr(earlier, name) != getattr(settings, name) and name != "epochs"]
    if changed:
        raise ValueError(f"a run goes on with its own settings and more epochs, not with another {', '.join(changed)}")
    if settings.epochs <= earlier.epochs:
        raise ValueError(f"epochs {settings.epochs}: the run has {earlier.epochs} already; ask for more")
    reasons = {
        "schedule cosine": settings.schedule == "cosine",
        f"rewire {settings.rewire}": settings.rewire is not None,
        "method imp": settings.method == "imp",
    }
    if depends := [name for name, holds in reasons.items() if holds]:
        raise ValueError(
            f"{depends[0]} depends on the number of epochs: the first {earlier.epochs} of {settings.epochs} epochs are "
            "not those of the finished run; train all of them without --continue-from"
        )
