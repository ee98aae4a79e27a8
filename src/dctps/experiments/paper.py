"""The paper's experiments, as lists of runs: what section 5, section 6 and the appendix describe.

Protocol (appendix E): 200 epochs of Adam at a constant 1e-3, batches of 128, weight decay 5e-4 on everything, a tenth
of the training images for validation, the test accuracy of the epoch with the best validation accuracy, three seeds.
LeNet: 160 epochs, batches of 64, validation accuracy. Where the published code differs from the text, the rules are
those of the code, which made the figures: `epl_paper` and `erk_paper` lose the weights that their caps cut off,
`force_paper` is Iter-SNIP on the raw logits, and the split keeps 4,999 images (docs/deviations.md).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dctps.base.registry import lookup
from dctps.experiments.cells import TRAIN, Cell, varied
from dctps.experiments.scales import FEW, LAPTOP, PAPER, SMOKE, Scale, narrow
from dctps.experiments.titles import data_title, network_title
from dctps.train.settings import Settings

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

ADAM = Settings(split="paper")
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


def _lenet(scale: Scale) -> Cells:
    yield from grid(LENET, (*RANDOM, *PRUNING, "Hyperplane Projection", "DCTpS"), scale)


BOTH = (("resnet50", "cifar10"), ("resnet50", "cifar100"), ("vgg19", "cifar10"), ("vgg19", "cifar100"))


def _resnet50_vgg19(scale: Scale) -> Cells:
    for model, data in scale.pairs(BOTH):
        yield from grid(varied(ADAM, model=model, data=data), (*RANDOM, *PRUNING, *OURS), scale)


def _mobilenet_fixup(scale: Scale) -> Cells:
    yield from grid(varied(ADAM, model="mobilenetv2"), (*PRUNING, *OURS), scale)
    fixup = DENSITIES[:6]  # the paper stops at 0.1 %; below, some layers would get no weight
    yield from grid(varied(ADAM, model="fixup_resnet110"), (*RANDOM, *OURS), scale, densities=fixup)


def _table1(scale: Scale) -> Cells:
    """Yield the trainings for the drops in accuracy; cost and size are computed from the networks."""
    base = varied(ADAM, data="cifar100")
    methods = ("Random (uniform)", "IMP", *PRUNING, "RigL", "DCTpS")
    yield from grid(base, methods, scale, densities=(0.01, 0.001, 0.0001))


# --- section 6: before the first step -------------------------------------------------------------------------------


def _jacobian(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "resnet18", "mobilenetv2"):  # the paper shows the first
        base = varied(ADAM, model=model)
        yield from _at_initialisation(base, (*RANDOM, *PRUNING, "DCTpS"), "jacobian", scale)


def _layer_counts(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "resnet18", "mobilenetv2"):  # the paper shows the first
        yield from _at_initialisation(varied(ADAM, model=model), (*RANDOM, *PRUNING), "counts", scale)


def _at_initialisation(base: Settings, methods: Sequence[str], task: str, scale: Scale) -> Cells:
    for density in scale.densities(AT_INITIALISATION):
        for method in methods:
            yield Cell(configured(base, method, density=density), task, panel(base), method)


# --- the appendix ---------------------------------------------------------------------------------------------------


def _params(scale: Scale) -> Cells:
    for model in ("resnet50", "vgg19", "mobilenetv2", "fixup_resnet110", "resnet18"):
        yield Cell(varied(ADAM, model=model), "counts", network_title(model), DENSE)


def _tiny_imagenet(scale: Scale) -> Cells:
    base = varied(ADAM, model="resnet18", data="tiny_imagenet")
    yield from grid(base, (*PRUNING, "DCTpS"), scale)


def _epl_epf_counts(scale: Scale) -> Cells:
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


def _epl_epf(scale: Scale) -> Cells:
    yield from _variants({"EPL": {"allocation": "epl_paper"}, "EPF": {"allocation": "epf_paper"}}, scale)


def _fixed_alpha(scale: Scale) -> Cells:
    epl = {"allocation": "epl_paper"}
    yield from _variants({"alpha trains": epl, "alpha = 1": {**epl, "train_alpha": False}}, scale)


RULES = {"uniform": "uniform", "EPL": "epl_paper", "EPF": "epf_paper", "ERK": "erk_paper"}


def _allocations(scale: Scale) -> Cells:
    for name, offset in (("DCTpS", "dct"), ("Random", None)):
        lines = {f"{name} ({rule})": {"allocation": key, "offset": offset} for rule, key in RULES.items()}
        yield from _variants(lines, scale)


def _sgd(scale: Scale) -> Cells:
    methods = (*RANDOM, "FORCE", *OURS)
    for model, data in scale.pairs(BOTH):
        yield from grid(varied(SGD, model=model, data=data), methods, scale)
    yield from grid(varied(SGD, model="mobilenetv2"), methods, scale)
    yield from grid(varied(SGD, model="fixup_resnet110"), (*RANDOM, *OURS), scale, densities=DENSITIES[:6])


def _synflow_counts(scale: Scale) -> Cells:
    pairs = (("vgg19", "cifar10"), ("vgg19", "cifar100"), ("resnet18", "tiny_imagenet"), ("mobilenetv2", "cifar10"))
    for model, data in (*pairs, ("resnet50", "cifar10")):
        base = varied(ADAM, model=model, data=data)
        for density in scale.densities(AT_INITIALISATION):
            yield Cell(configured(base, "SynFlow", density=density), "counts", panel(base), "SynFlow")


# --- beyond the paper: other offsets at the same price (docs/offsets.md) ----------------------------------------------

OFFSET_LINES: dict[str, Changes] = {
    "DCT as published": {"offset": "dct"},
    "DCT, channel order": {"offset": "dct/channel/none/lowest/0"},
    "DCT, signs": {"offset": "dct/spatial/channel/lowest/0"},
    "DCT, channel order, signs": {"offset": "dct_signed"},
    "DCT, signs, random rows": {"offset": "dct/spatial/channel/random/0"},
    "DCT, channel order, signs, random rows": {"offset": "dct/channel/channel/random/0"},
    "Hadamard, signs, random rows": {"offset": "srht"},
    "Hadamard, position signs, random rows": {"offset": "hadamard/spatial/position/random/0"},
    "no offset": {"offset": None},
}
PRESERVED = ("DCT as published", "DCT, channel order, signs", "Hadamard, position signs, random rows")
NARROW = varied(ADAM, model="resnet18", width=16)


def _offsets(scale: Scale) -> Cells:
    preserved = {f"{name}, preserve": {**OFFSET_LINES[name], "alpha": "preserve"} for name in PRESERVED}
    lines = {**OFFSET_LINES, **preserved}
    for base in (LENET, NARROW):
        for seed in scale.seeds(SEEDS):
            for line, changes in lines.items():
                for density in scale.densities((0.05, 0.01, 0.001, 0.0002)):
                    settings = varied(base, density=density, seed=seed, allocation="epl_paper", **changes)
                    yield Cell(settings, TRAIN, panel(base), line)


def _longer(scale: Scale) -> Cells:
    """Yield longer trainings of the offsets that were far apart after a short one, to see whether they still are."""
    for seed in scale.seeds(SEEDS):
        for base, density in ((LENET, 0.01), (NARROW, 0.001)):
            for line in ("DCT as published", "DCT, signs", "DCT, channel order, signs"):
                settings = varied(base, density=density, seed=seed, allocation="epl_paper", **OFFSET_LINES[line])
                yield Cell(settings, TRAIN, panel(base), line)
        method = "Hyperplane Projection"
        yield Cell(configured(LENET, method, density=0.01, seed=seed), TRAIN, panel(LENET), method)


# --- by name --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure, and the runs that it is made of."""

    title: str
    where: str  # its place in the paper
    make: Callable[[Scale], Cells]
    kind: str  # how it is drawn: a key of dctps.analysis.figures.draw.FIGURES
    laptop: Scale = LAPTOP
    smoke: Scale = SMOKE
    validation: bool = False  # show the accuracy on the validation images, as in the paper's Figure 1
    by_count: bool = False  # show numbers of weights on the axis, not densities
    learning: bool = False  # draw accuracy against epochs too

    def scale(self, name: str) -> Scale:
        """Return the scale of a name: paper, laptop or smoke."""
        return lookup({"paper": PAPER, "laptop": self.laptop, "smoke": self.smoke}, name, "scale")

    def cells(self, scale: Scale) -> list[Cell]:
        """Return all runs at a scale."""
        return [_scaled(cell, scale) for cell in self.make(scale)]


def _scaled(cell: Cell, scale: Scale) -> Cell:
    """Return a cell at a scale; its line is renamed if the scale replaces the projection."""
    settings, line = scale.apply(cell.settings), cell.line
    if settings.projection != cell.settings.projection:
        line = f"{line} ({settings.projection})"
    return dataclasses.replace(cell, settings=settings, line=line)


_LENET_LAPTOP = dataclasses.replace(LAPTOP, kept_densities=FEW, seed_count=2)
_THREE_DENSITIES = dataclasses.replace(_LENET_LAPTOP, kept_densities=(0.05, 0.01, 0.001))
_OFFSETS_LAPTOP = dataclasses.replace(
    LAPTOP,
    per_model={**LAPTOP.per_model, "resnet18": {"width": 16, "epochs": 10, "batch_size": 64}},
    kept_densities=(0.05, 0.01, 0.001),
    seed_count=3,
)
_LONGER_LAPTOP = dataclasses.replace(
    _OFFSETS_LAPTOP,
    per_model={"lenet": {"epochs": 60, "images": None}, "resnet18": {"epochs": 40}},
    seed_count=1,
)
_ONE_DENSITY = dataclasses.replace(SMOKE, kept_densities=(0.05,))  # where two densities would take more than a minute
_INITIAL_LAPTOP = dataclasses.replace(  # in narrower networks EPL would give layers no weight at 0.01 %
    LAPTOP, changes={"data": "cifar10"}, per_model=narrow(16), kept_densities=None
)

EXPERIMENTS: dict[str, Experiment] = {
    "params": Experiment("Parameters of the networks", "Table E.1", _params, "params", PAPER, PAPER),
    "table1": Experiment("Accuracy, cost and size", "Table 1", _table1, "table1"),
    "lenet": Experiment("LeNet-5", "Figure 1", _lenet, "accuracy", _LENET_LAPTOP, validation=True, by_count=True),
    "resnet50-vgg19": Experiment("ResNet50 and VGG19", "Figure 2", _resnet50_vgg19, "accuracy"),
    "mobilenet-fixup": Experiment(
        "MobileNetV2 and FixupResNet110", "Figure 3", _mobilenet_fixup, "accuracy", smoke=_ONE_DENSITY
    ),
    "jacobian": Experiment(
        "Spectrum of the Jacobian at initialisation", "Figure 4", _jacobian, "spectra", _INITIAL_LAPTOP
    ),
    "layer-counts": Experiment("Weights per layer", "Figure 5", _layer_counts, "counts", _INITIAL_LAPTOP),
    "tiny-imagenet": Experiment("ResNet18 on Tiny ImageNet", "Figure A.1", _tiny_imagenet, "accuracy"),
    "epl-epf-counts": Experiment("Weights per layer, EPL and EPF", "Figure A.2", _epl_epf_counts, "counts", PAPER),
    "epl-epf": Experiment("EPL and EPF", "Figure A.3", _epl_epf, "accuracy", _THREE_DENSITIES),
    "sgd": Experiment("Trained with SGD", "Figures A.4 and A.5", _sgd, "accuracy", smoke=_ONE_DENSITY),
    "fixed-alpha": Experiment("Fixed alpha", "Figure A.6", _fixed_alpha, "accuracy", _THREE_DENSITIES),
    "allocations": Experiment("Allocations to layers", "Figure A.7", _allocations, "accuracy", _THREE_DENSITIES),
    "synflow-counts": Experiment("Weights per layer, SynFlow", "Figure C.1", _synflow_counts, "counts", PAPER),
    "offsets": Experiment("Other offsets", "not in the paper", _offsets, "accuracy", _OFFSETS_LAPTOP, learning=True),
    "longer": Experiment("Trained longer", "not in the paper", _longer, "accuracy", _LONGER_LAPTOP, learning=True),
}
