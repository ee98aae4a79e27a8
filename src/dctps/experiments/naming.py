"""The name of a run's method: the paper's name if it is one of the paper's methods, else a name made from the settings.

Two runs whose methods have the same name may still differ in how it was carried out, such as the steps between
rewirings or the batches of a pruning method. Means over runs have to keep those apart.
"""

from dctps.base.words import percent
from dctps.experiments.cells import varied
from dctps.experiments.paper import DENSE, PAPER_METHODS
from dctps.experiments.titles import offset_title
from dctps.methods.pruning import METHODS
from dctps.methods.rewiring import REWIRINGS
from dctps.train.settings import PUBLISHED, Settings

RULES = {
    "epl_paper": "EPL",
    "epf_paper": "EPF",
    "erk_paper": "ERK",
    "epl": "exact EPL",
    "epf": "exact EPF",
    "erk": "exact ERK",
    "er": "ER",
    "sqrt": "square root",
    "epf_strict": "strict EPF",
    "uniform_paper": "uniform, as published",
    "epl_paper_rigl": "EPL, rounded as RigL",
    "erk_paper_rigl": "ERK, rounded as RigL",
    "erk_google": "ERK of RigL's authors",
}
OTHER_METHODS = {"imp": "IMP"}  # the titles of the methods that are no pruning at initialisation
Core = tuple[str | None, ...]


def method_name(settings: Settings) -> str:
    """Return the name of a method in `PAPER_METHODS`, or one made from its settings, with what a run has changed in it.

    >>> method_name(Settings(density=0.01, offset="dct", alpha=1.0, allocation="epl_paper"))
    'DCTpS'
    >>> method_name(Settings(density=0.01))
    'DpS: DCT, channel order, signs (exact EPL), alpha leverage'
    >>> method_name(Settings(density=0.01, offset=None, rewire="set", allocation="uniform"))
    'SET (uniform)'
    >>> method_name(Settings(density=0.01, offset="srht", alpha="preserve"))
    'DpS: Hadamard, signs, random rows (exact EPL), alpha preserve'
    """
    name = DENSE if settings.density is None else _PAPER.get(_core(settings)) or _built(settings)
    return ", ".join([name, *_details(settings)])


def _core(settings: Settings) -> Core:
    """Return the settings that make a method; those that have no effect beside the others are None."""
    if settings.projection is not None:
        return None, None, None, None, settings.projection
    allocation = settings.allocation if settings.method is None else None
    return settings.offset, allocation, settings.method, settings.rewire, None


_PAPER = {
    _core(varied(PUBLISHED, **{"density": 0.5, **changes})): n for n, changes in PAPER_METHODS.items() if n != DENSE
}


def _built(settings: Settings) -> str:
    """Return a name made from the settings: the offset, the choice of the support, the rewiring."""
    if settings.projection is not None:
        return f"Hyperplane Projection ({settings.projection})"
    parts = []
    if settings.offset is not None:
        parts.append("DCTpS" if settings.offset == "dct" else f"DpS: {offset_title(settings.offset)}")
    if settings.method is not None:
        parts.append(_method_title(settings.method))
    if settings.rewire is not None:
        parts.append(REWIRINGS[settings.rewire].__name__)
    name = " + ".join(parts) or "Random"
    return name if settings.method is not None else f"{name} ({RULES.get(settings.allocation, settings.allocation)})"


def _method_title(method: str) -> str:
    """Return the title of the method that chooses the support; an unknown method keeps its name."""
    return METHODS[method].title if method in METHODS else OTHER_METHODS.get(method, method)


def _details(settings: Settings) -> list[str]:
    """Return the details that a run has changed in its method, in words."""
    details = []
    if settings.density is not None and settings.offset is not None and settings.projection is None:
        if settings.alpha not in (1.0, "paper"):  # these two are the same
            details.append(f"alpha {settings.alpha}")
        if not settings.train_alpha:
            details.append("alpha fixed")
    if settings.frozen is not None:
        details.append({"values": "S frozen", "norms": "BatchNorm frozen"}[settings.frozen])
    if settings.norm_density is not None:
        details.append(f"BatchNorm {percent(settings.norm_density)}")
    if settings.imp_round is not None:
        details.append(f"round {settings.imp_round}")
    return details
