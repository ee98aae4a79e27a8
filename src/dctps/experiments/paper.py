"""The paper's experiments, as lists of runs: what section 5, section 6 and the appendix describe.

Protocol (appendix E): 200 epochs of Adam at a constant 1e-3, batches of 128, weight decay 5e-4 on everything, a tenth
of the training images for validation, the test accuracy of the epoch with the best validation accuracy, three seeds.
LeNet: 160 epochs, batches of 64, validation accuracy. Where the published code differs from the text, the rules are
those of the code, which made the figures: `epl_paper` and `erk_paper` lose the weights that their caps cut off,
`force_paper` is Iter-SNIP on the raw logits, and the split keeps 4,999 images (docs/deviations.md).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dctps.experiments.cells import TRAIN, Cell, varied
from dctps.experiments.scales import Scale
from dctps.experiments.titles import data_title, network_title
from dctps.train.settings import PUBLISHED, Settings

# --- the methods ----------------------------------------------------------------------------------------------------

DENSE = "dense"
Changes = dict[str, Any]  # settings that differ from those of the network
PAPER_METHODS: dict[str, Changes] = {  # the lines of the paper's figures
    DENSE: {"density": None},
    "Random (uniform)": {"offset": None, "allocation": "uniform"},
    "Random (EPL)": {"offset": None, "allocation": "epl_paper"},
    "FORCE": {"offset": None, "method": "force_paper"},
    "SynFlow": {"offset": None, "method": "synflow"},
    "Hyperplane Projection": {"offset": None, "projection": "dense"},
    "RigL": {"offset": None, "allocation": "erk_paper", "rewire": "rigl"},
    "DCTpS": {"allocation": "epl_paper"},
    "DCTpS + RigL": {"allocation": "epl_paper", "rewire": "rigl"},
    "IMP": {"offset": None, "method": "imp"},
}
RANDOM = ("Random (uniform)", "Random (EPL)")
PRUNING = ("FORCE", "SynFlow")
OURS = ("RigL", "DCTpS", "DCTpS + RigL")
AT_INITIALISATION = (0.05, 0.01, 0.005, 0.001, 0.0002, 0.0001)  # fewer densities, as a panel has a curve for each
DENSITIES = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
SEEDS = (0, 1, 2)

# --- the networks and data ------------------------------------------------------------------------------------------

ADAM = varied(PUBLISHED, split="paper")
SGD = varied(ADAM, optimizer="sgd", lr=0.1, schedule="multistep", legacy_lr_order=True)
SGD_DCTPS_LR = 0.03  # of DCTpS alone; found by the paper's sweep over learning rates
LENET = varied(ADAM, model="lenet", epochs=160, batch_size=64)
FORCE_BATCHES = {"cifar10": 1, "cifar100": 10, "tiny_imagenet": 20}
Cells = Iterator[Cell]


def panel(settings: Settings, title: str | None = None) -> str:
    """Return the title of a panel: the one given, or the network and the data set."""
    return title or f"{network_title(settings.model)}, {data_title(settings.data)}"


def grid(
    base: Settings,
    methods: Sequence[str],
    scale: Scale,
    *,
    densities: Sequence[float] = DENSITIES,
    task: str = TRAIN,
    dense: bool = True,
    seeds: Sequence[int] = SEEDS,
    title: str | None = None,
) -> Cells:
    """Yield the cells of a panel: methods x densities x seeds, and the dense network for each seed."""
    name = panel(base, title)
    for seed in scale.seeds(seeds):
        if dense:
            yield Cell(varied(base, seed=seed), task, name, DENSE)
        for density in scale.densities(densities):
            for method in methods:
                yield Cell(configured(base, method, density=density, seed=seed), task, name, method)


def configured(base: Settings, method: str, **changes: Any) -> Settings:
    """Return the settings of a method on a network, with what the paper sets for that pair."""
    of_method = dict(PAPER_METHODS[method])
    if of_method.get("method") == "force_paper":
        of_method["method_batches"] = FORCE_BATCHES.get(base.data)
    if base.model.startswith("fixup") and of_method.get("offset", "dct") is not None:
        of_method["alpha"] = "paper"
    if base.optimizer == "sgd" and method.startswith("DCTpS"):
        of_method["lr"] = SGD_DCTPS_LR
    return varied(base, **of_method, **changes)


# --- section 5: accuracy against density ----------------------------------------------------------------------------


def lenet(scale: Scale) -> Cells:
    yield from grid(LENET, (*RANDOM, *PRUNING, "Hyperplane Projection", "DCTpS"), scale)


BOTH = (("resnet50", "cifar10"), ("resnet50", "cifar100"), ("vgg19", "cifar10"), ("vgg19", "cifar100"))


def resnet50_vgg19(scale: Scale) -> Cells:
    for model, data in scale.pairs(BOTH):
        yield from grid(varied(ADAM, model=model, data=data), (*RANDOM, *PRUNING, *OURS), scale)


def mobilenet_fixup(scale: Scale) -> Cells:
    yield from grid(varied(ADAM, model="mobilenetv2"), (*PRUNING, *OURS), scale)
    fixup = DENSITIES[:6]  # the paper stops at 0.1 %; below, some layers would get no weight
    yield from grid(varied(ADAM, model="fixup_resnet110"), (*RANDOM, *OURS), scale, densities=fixup)


def table1(scale: Scale) -> Cells:
    """Yield the trainings for the drops in accuracy; cost and size are computed from the networks."""
    base = varied(ADAM, data="cifar100")
    methods = ("Random (uniform)", "IMP", *PRUNING, "RigL", "DCTpS")
    yield from grid(base, methods, scale, densities=(0.01, 0.001, 0.0001))


# --- section 6: before the first step -------------------------------------------------------------------------------


def jacobian(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "resnet18", "mobilenetv2"):  # the paper shows the first
        base = varied(ADAM, model=model)
        yield from _at_initialisation(base, (*RANDOM, *PRUNING, "DCTpS"), "jacobian", scale)


def layer_counts(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "resnet18", "mobilenetv2"):  # the paper shows the first
        yield from _at_initialisation(varied(ADAM, model=model), (*RANDOM, *PRUNING), "counts", scale)


def _at_initialisation(base: Settings, methods: Sequence[str], task: str, scale: Scale) -> Cells:
    for density in scale.densities(AT_INITIALISATION):
        for method in methods:
            yield Cell(configured(base, method, density=density), task, panel(base), method)


# --- the appendix ---------------------------------------------------------------------------------------------------


def params(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "mobilenetv2", "fixup_resnet110", "resnet18"):
        yield Cell(varied(ADAM, model=model), "counts", network_title(model), DENSE)


def tiny_imagenet(scale: Scale) -> Cells:
    base = varied(ADAM, model="resnet18", data="tiny_imagenet")
    yield from grid(base, (*PRUNING, "DCTpS"), scale)


def epl_epf_counts(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "resnet18", "mobilenetv2"):
        yield from _counts_of(varied(ADAM, model=model), {"EPL": "epl_paper", "EPF": "epf_paper"}, scale)


def _counts_of(base: Settings, rules: dict[str, str], scale: Scale) -> Cells:
    for line, rule in rules.items():
        for density in scale.densities(AT_INITIALISATION):
            yield Cell(varied(base, density=density, allocation=rule), "counts", panel(base), line)


def _variants(variants: dict[str, Changes], scale: Scale) -> Cells:
    """Yield variants of DCTpS, which differ in one setting, on the paper's networks."""
    for model, data in scale.pairs(BOTH):
        base = varied(LENET if model == "lenet" else varied(ADAM, model=model), data=data)
        for seed in scale.seeds(SEEDS):
            yield Cell(varied(base, seed=seed), TRAIN, panel(base), DENSE)
            for line, changes in variants.items():
                for density in scale.densities(DENSITIES):
                    settings = varied(base, density=density, seed=seed, **changes)
                    yield Cell(settings, TRAIN, panel(base), line)


def epl_epf(scale: Scale) -> Cells:
    yield from _variants({"EPL": {"allocation": "epl_paper"}, "EPF": {"allocation": "epf_paper"}}, scale)


def fixed_alpha(scale: Scale) -> Cells:
    epl = {"allocation": "epl_paper"}
    yield from _variants({"alpha trains": epl, "alpha = 1": {**epl, "train_alpha": False}}, scale)


RULES = {"uniform": "uniform", "EPL": "epl_paper", "EPF": "epf_paper", "ERK": "erk_paper"}


def allocations(scale: Scale) -> Cells:
    for name, offset in (("DCTpS", "dct"), ("Random", None)):
        lines = {f"{name} ({rule})": {"allocation": key, "offset": offset} for rule, key in RULES.items()}
        yield from _variants(lines, scale)


def sgd(scale: Scale) -> Cells:
    methods = (*RANDOM, "FORCE", *OURS)
    for model, data in scale.pairs(BOTH):
        yield from grid(varied(SGD, model=model, data=data), methods, scale)
    yield from grid(varied(SGD, model="mobilenetv2"), methods, scale)
    yield from grid(varied(SGD, model="fixup_resnet110"), (*RANDOM, *OURS), scale, densities=DENSITIES[:6])


def synflow_counts(scale: Scale) -> Cells:
    pairs = (("vgg19", "cifar10"), ("vgg19", "cifar100"), ("resnet18", "tiny_imagenet"), ("mobilenetv2", "cifar10"))
    for model, data in (*pairs, ("resnet50", "cifar10")):
        base = varied(ADAM, model=model, data=data)
        for density in scale.densities(AT_INITIALISATION):
            yield Cell(configured(base, "SynFlow", density=density), "counts", panel(base), "SynFlow")
