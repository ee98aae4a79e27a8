"""What a fine-tuning is: one frozen dataclass of plain values; a run's id is a hash of those that are not defaults."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dctps.train.settings import non_defaults
from dctps.train.settings_checks import check_ranges, check_types, normalise_settings

POSITIVE = ("epochs", "batch_size", "lr", "image_size", "max_length", "rewire_every", "support_batches")
FRACTIONS = ("density", "rewire_until", "drop_fraction")


@dataclasses.dataclass(frozen=True)
class FinetuneSettings:
    """What is fine-tuned, on what and how; these and only these decide a run's id."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    """Folder of images, with a folder for each class (in train/, val/ and test/,
    if there are such), or table of texts and labels (.csv or .tsv)."""
    model: str
    """Folder of a network of transformers (config.json and weights), or,
    for images, package.module:function of your own that returns a network."""

    density: float = 0.001
    """Fraction of the weights that get a trainable value in S."""
    support: Literal["random", "magnitude", "snip"] = "random"
    """Rule that chooses the positions of S: random (by the allocation),
    magnitude (the largest |W0|),
    or snip (the largest |W0 dL/dW| on the first batches)."""
    support_batches: int = 1
    """Number of batches that snip takes its scores on."""
    allocation: str = "epl"
    """Rule that says how many values each layer gets when they are drawn:
    uniform, epl, epf, erk, er, sqrt, epf_strict, uniform_paper, epl_paper,
    epf_paper, erk_paper, epl_paper_rigl, erk_paper_rigl, erk_google."""
    train: tuple[str, ...] = ("classifier",)
    """What trains as a whole beside S: names or patterns of modules,
    such as classifier, or of parameters, such as *.bias;
    norms stands for all normalisation layers.
    Parameters that are not pretrained train as a whole, too.
    Everything else stays as it is."""
    exclude: tuple[str, ...] = ()
    """Names or patterns of layers that get no S and stay as they are."""
    rewire: Literal["rigl", "set"] | None = None
    """Method that moves values to other positions while the network trains. None moves none."""
    rewire_every: int = 100
    """Number of steps from one rewiring to the next."""
    rewire_until: float = 0.75
    """Fraction of all steps after which values stay where they are."""
    drop_fraction: float = 0.3
    """Fraction of its values that a layer moves in the first rewiring."""

    validation_data: str | None = None
    """Table of the validation examples. None keeps a part of the training examples."""
    test_data: str | None = None
    """Table of the test examples. None keeps a part of the training examples."""
    held_out: float = 0.1
    """Fraction of the training examples that is kept for validation,
    and again for the test, where these have no examples of their own."""
    text_column: str = "text"
    """Column of the texts, in the header.
    A table of two columns may have none; its text is before its label."""
    label_column: str = "label"
    """Column of the labels."""
    max_length: int = 128
    """Largest number of tokens of a text; longer texts are cut off."""
    image_size: int | None = None
    """Height and width that images are cropped and resized to.
    None takes what the network states, else the size of the first image."""
    normalise: Literal["network", "data"] = "network"
    """Mean and deviation by which images are normalised:
    those that the network states, else ImageNet's (network),
    or those of the training images (data)."""
    augment: bool = True
    """Crop and mirror training images at random."""

    epochs: int = 3
    """Number of passes over the training examples."""
    batch_size: int = 32
    """Number of examples in a step."""
    lr: float = 5e-3
    """Largest learning rate, of AdamW."""
    warmup: float = 0.1
    """Fraction of all steps in which the learning rate rises to its largest value."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate changes after that: it falls to zero, or stays."""
    weight_decay: float = 0.01
    """Weight decay of the values of S and of matrices, decoupled.
    Biases and norms do not decay."""
    seed: int = 0
    """Seed of new parameters, the support, the split and the order of the examples."""
    bf16: bool = False
    """Compute in bfloat16 where torch.autocast does."""

    def __post_init__(self) -> None:
        normalise_settings(self)
        for field in ("data", "model"):  # photos and photos/ are one folder, and one run
            path = getattr(self, field)
            object.__setattr__(self, field, path if ":" in path or not path else str(Path(path)))
        check_types(self)
        check_ranges(self, POSITIVE, ("weight_decay", "seed", "warmup"), FRACTIONS)
        if self.warmup >= 1:
            raise ValueError(f"warmup must be in [0, 1), not {self.warmup}; it is a fraction of all steps")
        if not 0 < self.held_out < 0.5:
            raise ValueError(f"held_out must be in (0, 0.5), not {self.held_out}")

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the id: those that are not defaults."""
        return non_defaults(self)
