"""Packages that dctps needs for some purposes only: which extra installs them, and the error where one is missing."""

import importlib
import importlib.util
from typing import Any

# module -> (package that has it, extra of pyproject.toml that installs it)
EXTRAS = {
    "sklearn": ("scikit-learn", "demo"),
    "matplotlib": ("matplotlib", "figures"),
    "pooch": ("pooch", "data"),
    "PIL": ("pillow", "data"),
    "plotly": ("plotly", "report"),
    "ray": ("ray", "ray"),
    "tensorboard": ("tensorboard", "tensorboard"),
    "scipy": ("scipy", "cpu"),
    "onnx": ("onnx", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "peers"),
    "huggingface_hub": ("huggingface_hub", "hub"),
    "transformers": ("transformers", "transformers"),
}


def is_installed(module: str) -> bool:
    """Return whether a module can be imported; it is not imported."""
    return importlib.util.find_spec(module) is not None


def missing(module: str, purpose: str, extra: str | None = None) -> str:
    """Return the error of a purpose, such as "the data set digits", that needs a module which is not installed.

    extra: the extra that the purpose has of its own; else it is the smallest one that has the package.
    """
    package, smallest = EXTRAS[module]
    extra = extra or smallest
    return f"{purpose} needs {package}; install it in your clone of dctps with: pip install '.[{extra}]'"


def require(module: str, purpose: str, extra: str | None = None) -> None:
    """Raise ModuleNotFoundError, which says how to install it, if a module is not installed."""
    if not is_installed(module):
        raise ModuleNotFoundError(missing(module, purpose, extra), name=module)


def needed(module: str, purpose: str) -> Any:
    """Import a module of an extra, such as PIL.Image, or raise ModuleNotFoundError that says how to install it."""
    require(module.partition(".")[0], purpose)
    return importlib.import_module(module)
