"""Orthonormal fast transforms along an axis, with their matrices.

A new transform is a class with the methods of `base.Transform` and an entry in `TRANSFORMS`.
"""

from dctps.core.transforms.base import HasForm, Separable, Transform, matrix
from dctps.core.transforms.cosine import Dct
from dctps.core.transforms.forms import Form, Spectrum, Walsh, Waves
from dctps.core.transforms.hadamard import Hadamard
from dctps.core.transforms.hartley import Hartley
from dctps.core.transforms.rotation import Rotation
from dctps.core.transforms.sine import Dst

__all__ = [
    "TRANSFORMS",
    "Dct",
    "Dst",
    "Form",
    "Hadamard",
    "Hartley",
    "HasForm",
    "Rotation",
    "Separable",
    "Spectrum",
    "Transform",
    "Walsh",
    "Waves",
    "matrix",
]

TRANSFORMS: dict[str, Transform] = {
    "dct": Dct(),
    "dst": Dst(),
    "hartley": Hartley(),
    "hadamard": Hadamard(),
    "rotation": Rotation(),
}
