"""Reading the pickled batches of CIFAR without running what a pickle may ask for.

A pickle is a program: it names functions and calls them. The batches need only the functions that rebuild numpy
arrays. Any other name is refused before it is looked up, so nothing is imported or called.
"""

import io
import pickle
from typing import Any

import numpy as np

from dctps.data.dataset import DataError

# These are taken from numpy itself, as the module that holds them changed its name with numpy 2.
_REBUILD: Any = np.empty(0).__reduce__()[0]
_SCALAR: Any = np.float64(0).__reduce__()[0]
ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("_codecs", "encode"): str.encode,  # Python 3 writes bytes so in protocol 2; this encodes text only
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, file: str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")  # Python 2 wrote the official files
        self.file = file

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise DataError(
                f"{self.file} asks for {module}.{name}, which a batch of images has no need of; "
                "nothing of it was run, do not trust this file and take another copy"
            )
        return ADMITTED[module, name]


def unpickled(content: bytes, file: str) -> dict[str, Any]:
    """Return the dictionary of a pickled batch, with its keys as text."""
    try:
        batch = _Unpickler(content, file).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{file} is damaged or not a pickled batch ({error}); take another copy") from error
    if not isinstance(batch, dict):
        raise DataError(f"{file} holds a {type(batch).__name__}, not the dictionary of a batch; take another copy")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in batch.items()}
