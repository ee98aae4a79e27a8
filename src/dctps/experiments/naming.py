"""What a run's method is called: as in the paper where it is the paper's, otherwise by what its settings say.

A name speaks of the method alone. Two runs of one name may still differ in how it was carried out (steps between
rewirings, batches of a pruning method): whoever takes means over runs has to keep those apart.
"""

from dctps.base.words import percent
from dctps.experiments.cells import varied
from dctps.experiments.paper import DENSE, METHODS
from dctps.methods.rewiring import REWIRINGS
from dctps.train.settings import Settings

RULES = {
    "epl_paper": "EPL",
    "epf_paper": "EPF",
    "erk_paper": "ERK",
    "epl": "exact EPL",
    "epf": "exact EPF",
    "erk": "exact ERK",
}
CHOSEN_BY = {
    "random": "Random (global)",
    "magnitude": "Magnitude",
    "snip": "SNIP",
    "iter_snip": "Iter-SNIP",
    "grasp": "GraSP",
    "force": "FORCE (de Jorge)",
    "force_paper": "FORCE",
    "synflow": "SynFlow",
    "imp": "IMP",
}
Core = tuple[str | None, ...]


def method_name(settings: Settings) -> str:
    """The name of a method: that of `paper.METHODS` where there is one, with what a run has changed in it.

    >>> method_name(Settings(density=0.01, allocation="epl_paper"))
    'DCTpS'
    >>> method_name(Settings(density=0.01, offset=None, rewire="set", allocation="uniform"))
    'SET (uniform)'
    >>> method_name(Settings(density=0.01, offset="srht", alpha="preserve"))
    'DpS srht (exact EPL), alpha preserve'
    """
    name = DENSE if settings.density is None else _PAPER.get(_core(settings)) or _built(settings)
    return ", ".join([name, *_details(settings)])


def _core(settings: Settings) -> Core:
    """The settings that make a method, without those that have no effect beside the others."""
    if settings.projection is not None:
        return None, None, None, None, settings.projection
    allocation = settings.allocation if settings.method is None else None
    return settings.offset, allocation, settings.method, settings.rewire, None


_PAPER = {_core(varied(Settings(density=0.5), **own)): name for name, own in METHODS.items() if name != DENSE}


def _built(settings: Settings) -> str:
    if settings.projection is not None:
        return f"Hyperplane Projection ({settings.projection})"
    parts = []
    if settings.offset is not None:
        parts.append("DCTpS" if settings.offset == "dct" else f"DpS {settings.offset}")
    if settings.method is not None:
        parts.append(CHOSEN_BY.get(settings.method, settings.method))
    if settings.rewire is not None:
        parts.append(REWIRINGS[settings.rewire].__name__)
    name = " + ".join(parts) or "Random"
    return name if settings.method is not None else f"{name} ({RULES.get(settings.allocation, settings.allocation)})"


def _details(settings: Settings) -> list[str]:
    details = []
    if settings.density is not None and settings.offset is not None and settings.projection is None:
        if settings.alpha not in (1.0, "paper"):  # which are the same
            details.append(f"alpha {settings.alpha}")
        if not settings.train_alpha:
            details.append("alpha fixed")
    if settings.norm_density is not None:
        details.append(f"BatchNorm {percent(settings.norm_density)}")
    if settings.imp_round is not None:
        details.append(f"round {settings.imp_round}")
    return details
