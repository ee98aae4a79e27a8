"""`dctps export FILE --to onnx`: a trained network as a file that other programs run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from torch import nn


def export(
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    to: Literal["onnx"] = "onnx",
    out: Path | None = None,
    model: str | None = None,
    classes: int = 10,
    input: tuple[int, ...] = (3, 32, 32),
    dense: bool = False,
    float16: bool = False,
    check: bool = True,
) -> None:
    """Write a network as an ONNX file of kilobytes, which holds the recipes of the weights in place of their numbers.

      dctps export runs/0123456789ab --to onnx
      dctps export net.safetensors --model vgg19 --classes 10 --input 3 32 32 --float16

    A runtime computes the weights when it loads the file. The outputs of ONNX Runtime are compared with torch's before
    the file is written; the sizes and the largest difference are printed.

    Args:
        path: Folder of a run, its best.safetensors, or a file that dctps.save wrote; such a file needs --model.
        to: Format of the file.
        out: File to write. None takes the name of the run's folder, or that of the file, with the ending .onnx.
        model: Network of a file outside a run: a name of dctps.models, or package.module:function of your own.
        classes: Number of classes of that network.
        input: Shape of one input of that network, without the batch.
        dense: Write plain weights in place of recipes.
        float16: Store numbers in 16 bits; runtimes compute with 32.
        check: Compare the outputs with torch's, which needs onnxruntime.
    """
    from dctps.base.words import printable
    from dctps.export.onnx_file import export_onnx
    from dctps.train.trained import example

    network, shape = _of_run(path) if model is None else _of_file(path, model, classes, input)
    name = _folder(path).resolve().name if model is None else path.stem
    target = out or Path(f"{name}.onnx")
    report = export_onnx(network, target, example(shape), dense=dense, float16=float16, check=check)
    print(printable(str(report)))


def _of_run(path: Path) -> "tuple[nn.Module, tuple[int, ...]]":
    """Return the network of a run of any kind, and the shape of one input."""
    from dctps.train.finetuning.trained import is_finetuning, of_finetuning
    from dctps.train.trained import of_run

    folder = _folder(path)
    return of_finetuning(folder) if is_finetuning(folder) else of_run(folder)


def _of_file(path: Path, model: str, classes: int, shape: tuple[int, ...]) -> "tuple[nn.Module, tuple[int, ...]]":
    """Return the network of a file, and the shape of one input."""
    from dctps.train.trained import build, filled

    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, and --model says what is in a file: leave it out for the folder of a run, or name a "
            f"file, such as {path / 'best.safetensors'}"
        )
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    if not shape or min(shape) < 1:
        given = " ".join(map(str, shape)) or "nothing"
        raise ValueError(f"--input is the shape of one input, such as 3 32 32, in positive numbers, and not {given}")
    return filled(path, build(model, classes, shape[0])), shape


def _folder(path: Path) -> Path:
    """Return the folder of a run that is named by itself or by one of its files."""
    if path.is_dir():
        return path
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
    if not (path.parent / "config.json").exists():
        raise ValueError(f"{path} says nothing of its architecture; name its network with --model, --classes, --input")
    if path.name not in ("config.json", "best.safetensors"):
        raise ValueError(
            f"{path} is not what dctps export takes of a run: name the folder {path.parent}, its best.safetensors, or "
            "the network of this file with --model, --classes, --input"
        )
    return path.parent
