"""What can be known to be wrong before a run starts: names that nobody knows, and packages that are not installed.

Both are found before data are read or a folder is made, and before a sweep starts the first of its runs.
"""

from dctps import data
from dctps.base import user_code
from dctps.base.extras import require
from dctps.base.registry import lookup
from dctps.core.allocation import ALLOCATIONS
from dctps.core.alphas import named_rule
from dctps.core.offsets import TransformOffset
from dctps.methods.pruning import METHODS
from dctps.methods.subspace.projections import PROJECTIONS
from dctps.models import MODELS
from dctps.ops.functional import check_backend
from dctps.train.lottery_rounds import IMP
from dctps.train.settings import Runtime, Settings


def check_beforehand(settings: Settings, runtime: Runtime) -> None:
    """Raise ValueError for a name that is unknown, ModuleNotFoundError for a package that the run needs."""
    _check_names(settings)
    if not user_code.names_function(settings.data):
        data.check(settings.data)
    if runtime.tensorboard:
        require("tensorboard", "--tensorboard")


def _check_names(settings: Settings) -> None:
    if not user_code.names_function(settings.model):
        lookup(MODELS, settings.model, "model")
    if settings.offset is not None:
        TransformOffset.parse(settings.offset)
    lookup(ALLOCATIONS, settings.allocation, "allocation")
    if isinstance(settings.alpha, str):
        named_rule(settings.alpha)
    if settings.method is not None and not user_code.names_function(settings.method):
        lookup({**METHODS, IMP: None}, settings.method, "method")
    if settings.projection is not None:
        lookup(PROJECTIONS, settings.projection, "projection")
    check_backend(settings.backend)
