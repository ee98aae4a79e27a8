"""All experiments by name: the paper's tables and figures, and those beyond it, with their scales."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from dctps.base.registry import lookup
from dctps.experiments import beyond, paper
from dctps.experiments.cells import Cell
from dctps.experiments.paper import Cells
from dctps.experiments.scales import FEW, LAPTOP, PAPER, SMOKE, Scale, narrow


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
    axis: Literal["density", "weights", "bytes"] = "density"  # what accuracy is drawn against: bytes are of the file
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
_SCALE_LAPTOP = dataclasses.replace(_OFFSETS_LAPTOP, kept_densities=None)
_SCALE_LONGER = dataclasses.replace(_SCALE_LAPTOP, per_model={"resnet18": {"width": 16, "epochs": 100}})
_WHOLE_LAPTOP = dataclasses.replace(  # all images, and a learning rate that ends at zero
    LAPTOP,
    changes={"epochs": 15, "schedule": "cosine", "channels_last": True, "method_steps": 20},
    per_model={"resnet18": {"width": 32}},
    kept_densities=None,
    seed_count=3,
)
_SIXTY_EPOCHS = dataclasses.replace(_WHOLE_LAPTOP, changes={**_WHOLE_LAPTOP.changes, "epochs": 60}, seed_count=1)
_ONE_DENSITY = dataclasses.replace(SMOKE, kept_densities=(0.05,))  # where two densities would take more than a minute
_INITIAL_LAPTOP = dataclasses.replace(  # in narrower networks EPL would give layers no weight at 0.01 %
    LAPTOP, changes={"data": "cifar10"}, per_model=narrow(16), kept_densities=None
)

BEYOND = "not in the paper"
EXPERIMENTS: dict[str, Experiment] = {
    "params": Experiment("Parameters of the networks", "Table E.1", paper.params, "params", PAPER, PAPER),
    "table1": Experiment("Accuracy, cost and size", "Table 1", paper.table1, "table1"),
    "lenet": Experiment("LeNet-5", "Figure 1", paper.lenet, "accuracy", _LENET_LAPTOP, validation=True, axis="weights"),
    "resnet50-vgg19": Experiment("ResNet50 and VGG19", "Figure 2", paper.resnet50_vgg19, "accuracy"),
    "mobilenet-fixup": Experiment(
        "MobileNetV2 and FixupResNet110", "Figure 3", paper.mobilenet_fixup, "accuracy", smoke=_ONE_DENSITY
    ),
    "jacobian": Experiment(
        "Spectrum of the Jacobian at initialisation", "Figure 4", paper.jacobian, "spectra", _INITIAL_LAPTOP
    ),
    "layer-counts": Experiment("Weights per layer", "Figure 5", paper.layer_counts, "counts", _INITIAL_LAPTOP),
    "tiny-imagenet": Experiment("ResNet18 on Tiny ImageNet", "Figure A.1", paper.tiny_imagenet, "accuracy"),
    "epl-epf-counts": Experiment("Weights per layer, EPL and EPF", "Figure A.2", paper.epl_epf_counts, "counts", PAPER),
    "epl-epf": Experiment("EPL and EPF", "Figure A.3", paper.epl_epf, "accuracy", _THREE_DENSITIES),
    "sgd": Experiment("Trained with SGD", "Figures A.4 and A.5", paper.sgd, "accuracy", smoke=_ONE_DENSITY),
    "fixed-alpha": Experiment("Fixed alpha", "Figure A.6", paper.fixed_alpha, "accuracy", _THREE_DENSITIES),
    "allocations": Experiment("Allocations to layers", "Figure A.7", paper.allocations, "accuracy", _THREE_DENSITIES),
    "synflow-counts": Experiment("Weights per layer, SynFlow", "Figure C.1", paper.synflow_counts, "counts", PAPER),
    "offsets": Experiment("Other offsets", BEYOND, beyond.offsets, "accuracy", _OFFSETS_LAPTOP, learning=True),
    "longer": Experiment("Trained longer", BEYOND, beyond.longer, "accuracy", _LONGER_LAPTOP, learning=True),
    "scale": Experiment(
        "The scale of D", BEYOND, beyond.scale_of_d, "accuracy", _SCALE_LAPTOP, _ONE_DENSITY, learning=True
    ),
    "scale-longer": Experiment(
        "The scale of D, trained longer",
        BEYOND,
        beyond.scale_longer,
        "accuracy",
        _SCALE_LONGER,
        _ONE_DENSITY,
        learning=True,
    ),
    "places": Experiment("Places of S", BEYOND, beyond.places, "accuracy", _SCALE_LAPTOP, _ONE_DENSITY, learning=True),
    "bytes": Experiment(
        "Accuracy and the bytes of the file",
        BEYOND,
        beyond.bytes_of_files,
        "accuracy",
        _SCALE_LAPTOP,
        _ONE_DENSITY,
        axis="bytes",
    ),
    "vgg19": Experiment(
        "VGG19, whole trainings", BEYOND, beyond.vgg19, "accuracy", _WHOLE_LAPTOP, _ONE_DENSITY, learning=True
    ),
    "vgg19-longer": Experiment(
        "VGG19, trained longer", BEYOND, beyond.vgg19_longer, "accuracy", _SIXTY_EPOCHS, _ONE_DENSITY, learning=True
    ),
    "resnet18": Experiment(
        "ResNet18, whole trainings", BEYOND, beyond.resnet18, "accuracy", _WHOLE_LAPTOP, _ONE_DENSITY, learning=True
    ),
}
