"""`dctps export FILE --to onnx`: a trained network as a file that other programs run."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


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
        path: Folder of a run, a file in it, or a file that dctps.save wrote; such a file needs --model.
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
    from dctps.train.trained import build, example, filled, of_run

    folder = path if path.is_dir() else path.parent
    if model is None and not (path.is_dir() or (folder / "config.json").exists()):
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}")
        raise ValueError(f"{path} says nothing of its architecture; name its network with --model, --classes, --input")
    network, shape = of_run(folder) if model is None else (filled(path, build(model, classes, input[0])), input)
    target = out or Path(f"{folder.resolve().name if model is None else path.stem}.onnx")
    report = export_onnx(network, target, example(shape), dense=dense, float16=float16, check=check)
    print(printable(str(report)))
