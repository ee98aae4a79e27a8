"""Experiments beyond the paper: other offsets at the same price, the scale of D, and VGG19 to the end of a training.

What they found is in docs/offsets.md.
"""

from collections.abc import Mapping, Sequence

from dctps.experiments.cells import TRAIN, Cell, varied
from dctps.experiments.paper import (
    ADAM,
    DENSE,
    LENET,
    PAPER_METHODS,
    SEEDS,
    Cells,
    Changes,
    configured,
    panel,
)
from dctps.experiments.scales import Scale
from dctps.train.settings import Settings

PUBLISHED = "DCT as published"
SIGNED = "DCT, channel order, signs"
OFFSET_LINES: dict[str, Changes] = {
    PUBLISHED: {"offset": "dct"},
    "DCT, channel order": {"offset": "dct/channel/none/lowest/0"},
    "DCT, signs": {"offset": "dct/spatial/channel/lowest/0"},
    SIGNED: {"offset": "dct_signed"},
    "DCT, signs, random rows": {"offset": "dct/spatial/channel/random/0"},
    "DCT, channel order, signs, random rows": {"offset": "dct/channel/channel/random/0"},
    "Hadamard, signs, random rows": {"offset": "srht"},
    "Hadamard, position signs, random rows": {"offset": "hadamard/spatial/position/random/0"},
    "no offset": {"offset": None},
}
PRESERVED = (PUBLISHED, SIGNED, "Hadamard, position signs, random rows")
NARROW = varied(ADAM, model="resnet18", width=16)
EPL: Changes = {"allocation": "epl_paper"}


def lines_of(
    base: Settings, lines: Mapping[str, Changes], densities: Sequence[float], scale: Scale, seeds: Sequence[int] = SEEDS
) -> Cells:
    """Yield the cells of variants by name on one network: seeds x lines x densities, with supports drawn by EPL."""
    for seed in scale.seeds(seeds):
        for line, changes in lines.items():
            for density in scale.densities(densities):
                yield Cell(
                    varied(base, **{**EPL, "density": density, "seed": seed, **changes}), TRAIN, panel(base), line
                )


# --- other offsets ----------------------------------------------------------------------------------------------------


def offsets(scale: Scale) -> Cells:
    preserved = {f"{name}, preserve": {**OFFSET_LINES[name], "alpha": "preserve"} for name in PRESERVED}
    for base in (LENET, NARROW):
        yield from lines_of(base, {**OFFSET_LINES, **preserved}, (0.05, 0.01, 0.001, 0.0002), scale)


def longer(scale: Scale) -> Cells:
    """Yield longer trainings of the offsets that were far apart after a short one, to see whether they still are."""
    lines = {line: OFFSET_LINES[line] for line in (PUBLISHED, "DCT, signs", SIGNED)}
    for seed in scale.seeds(SEEDS):
        for base, density in ((LENET, 0.01), (NARROW, 0.001)):
            for line, changes in lines.items():
                settings = varied(base, density=density, seed=seed, **EPL, **changes)
                yield Cell(settings, TRAIN, panel(base), line)
        method = "Hyperplane Projection"
        yield Cell(configured(LENET, method, density=0.01, seed=seed), TRAIN, panel(LENET), method)


# --- the scale of D ---------------------------------------------------------------------------------------------------

SIGNED_LEVERAGE, HADAMARD_LEVERAGE = f"{SIGNED}, leverage", "Hadamard, channel order, signs, leverage"
_LEVERAGE: Changes = {"offset": "dct_signed", "alpha": "leverage"}
SCALES: dict[str, Changes] = {
    PUBLISHED: {"offset": "dct"},
    f"{PUBLISHED}, leverage": {"offset": "dct", "alpha": "leverage"},
    SIGNED: {"offset": "dct_signed"},
    f"{SIGNED}, alpha 0.3": {"offset": "dct_signed", "alpha": 0.3},
    f"{SIGNED}, alpha 0.1": {"offset": "dct_signed", "alpha": 0.1},
    f"{SIGNED}, alpha 0.03": {"offset": "dct_signed", "alpha": 0.03},
    SIGNED_LEVERAGE: _LEVERAGE,
    f"{SIGNED_LEVERAGE}, alpha fixed": {**_LEVERAGE, "train_alpha": False},
}
CONTROLS: dict[str, Changes] = {
    f"{PUBLISHED}, S frozen": {"offset": "dct", "frozen": "values"},
    f"{SIGNED_LEVERAGE}, S frozen": {**_LEVERAGE, "frozen": "values"},
    f"{SIGNED_LEVERAGE}, BatchNorm frozen": {**_LEVERAGE, "frozen": "norms"},
    "random rotation, leverage": {"offset": "rotation", "alpha": "leverage"},
    HADAMARD_LEVERAGE: {"offset": "hadamard/channel/channel/lowest/0", "alpha": "leverage"},
    "no offset": {"offset": None},
}
# without BatchNorm leverage changes nothing; the values may have a learning rate of their own
UNNORMALISED_LINES: dict[str, Changes] = {
    PUBLISHED: {"offset": "dct"},
    SIGNED: {"offset": "dct_signed"},
    f"{SIGNED}, values 3 times as fast": {"offset": "dct_signed", "values_lr": 3e-3},
    f"{SIGNED}, values 10 times as fast": {"offset": "dct_signed", "values_lr": 1e-2},
    "random rotation": {"offset": "rotation"},
    "no offset": {"offset": None},
}


BYTES: dict[str, Changes] = {
    PUBLISHED: {"offset": "dct"},
    SIGNED_LEVERAGE: _LEVERAGE,
    f"{SIGNED_LEVERAGE}, BatchNorm 10 %": {**_LEVERAGE, "norm_density": 0.1},
    f"{SIGNED_LEVERAGE}, BatchNorm 1 %": {**_LEVERAGE, "norm_density": 0.01},
    "no offset": {"offset": None},
    "no offset, BatchNorm 1 %": {"offset": None, "norm_density": 0.01},
}


# the rule for 7,100 steps, as many as `scale_longer` has at laptop scale
LONG_LEVERAGE: dict[str, Changes] = {f"{SIGNED_LEVERAGE} of 7,100 steps": {**_LEVERAGE, "alpha": "leverage/0.001/7100"}}


def scale_of_d(scale: Scale) -> Cells:
    yield from lines_of(NARROW, {**SCALES, **CONTROLS}, (0.01, 0.001, 0.0002), scale)
    yield from lines_of(LENET, UNNORMALISED_LINES, (0.01, 0.005), scale)


def bytes_of_files(scale: Scale) -> Cells:
    """Yield trainings whose files are to be compared: BatchNorm, with four numbers per channel, is most of them."""
    yield from lines_of(NARROW, BYTES, (0.01, 0.001, 0.0002), scale)


def scale_longer(scale: Scale) -> Cells:
    """Yield ten times longer trainings, to see how much of the distance stays."""
    lines = {line: SCALES[line] for line in (PUBLISHED, SIGNED, SIGNED_LEVERAGE)}
    yield from lines_of(NARROW, {**lines, **LONG_LEVERAGE}, (0.001,), scale)


# --- the places of S, and other offsets ------------------------------------------------------------------------------

PLACES: dict[str, Changes] = {  # the first is drawn by the allocation; the others are in places.py
    "random": {},
    "gradient": {"method": "dctps.experiments.places:by_gradient"},
    "SNIP": {"method": "dctps.experiments.places:by_snip"},
    "whole kernels": {"method": "dctps.experiments.places:whole_kernels"},
}
REWIRED: dict[str, Changes] = {"": {}, " + RigL": {"rewire": "rigl"}, " + SET": {"rewire": "set"}}


def places(scale: Scale) -> Cells:
    """Yield trainings under the default offset and scale whose weights are elsewhere, or move afterwards."""
    lines = {
        f"{name}{end}": {**_LEVERAGE, **place, **moved}
        for end, moved in REWIRED.items()
        for name, place in PLACES.items()
    }
    yield from lines_of(NARROW, lines, (0.001,), scale)


# --- whole trainings --------------------------------------------------------------------------------------------------

DEFAULT = "DCTpS, signs and leverage"  # what `sparsify` does when it is asked for nothing else
REPEATED = ("DCTpS", "DCTpS + RigL", DEFAULT)  # the lines that have more than one seed
FROZEN = f"{DEFAULT}, S frozen"  # a control: alphas, BatchNorm and the classifier learn alone
WHOLE = ("Random (EPL)", "FORCE", "SynFlow", "RigL", *REPEATED, f"{DEFAULT} + RigL", FROZEN)


def _whole(base: Settings, densities: Sequence[float], scale: Scale) -> Cells:
    """Yield the paper's methods and the default of this library on one network; some with one seed only."""
    for seed in scale.seeds(SEEDS):
        if seed == SEEDS[0]:
            yield Cell(varied(base, seed=seed), TRAIN, panel(base), DENSE)
        for density in scale.densities(densities):
            for line in WHOLE if seed == SEEDS[0] else REPEATED:
                yield Cell(_settings_of(base, line, density, seed), TRAIN, panel(base), line)


def _settings_of(base: Settings, line: str, density: float, seed: int) -> Settings:
    if line in PAPER_METHODS:
        return configured(base, line, density=density, seed=seed)
    rewire = "rigl" if line.endswith("RigL") else None
    frozen = "values" if line == FROZEN else None
    return varied(base, density=density, seed=seed, rewire=rewire, frozen=frozen, **EPL, **_LEVERAGE)


def vgg19(scale: Scale) -> Cells:
    yield from _whole(varied(ADAM, model="vgg19"), (0.01, 0.001, 0.0001), scale)


def resnet18(scale: Scale) -> Cells:
    yield from _whole(varied(ADAM, model="resnet18"), (0.001,), scale)


def vgg19_longer(scale: Scale) -> Cells:
    """Yield longer trainings at the lowest density, to see whether the order of the lines stays."""
    base = varied(ADAM, model="vgg19")
    for seed in scale.seeds(SEEDS):
        for line in ("DCTpS", DEFAULT):
            yield Cell(_settings_of(base, line, 0.0001, seed), TRAIN, panel(base), line)
