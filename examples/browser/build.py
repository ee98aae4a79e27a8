"""Write the files that the page loads: the network of a run as ONNX, what there is to know of it, and 20 test images.

    dctps train --model lenet --data fashion_mnist --density 0.05 --epochs 20 --lr 4e-3 --schedule cosine \\
        --no-augment --threads 1
    python examples/browser/build.py runs/30eff1197439

The images are the first two of each class among the test images that the network knows. The page states how many of all
test images it knows, so that nobody takes these for a measurement.
"""

import argparse
import base64
import json
from pathlib import Path

import torch
from torch import nn

from dctps import data
from dctps.export.onnx_file import export_onnx
from dctps.nn.dps_layer import DpsLayer
from dctps.train.runs import Run
from dctps.train.trained import example, of_run

HERE = Path(__file__).parent
NAMES = ["T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
EACH = 2  # images of each class


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    folder = parser.parse_args().run
    network, shape = of_run(folder)
    report = export_onnx(network, HERE / "network.onnx", example(shape))
    dataset = data.load(Run(folder).settings().data)
    result = Run(folder).finished() or {}
    about = {
        "bytes": report.bytes,
        "dense_bytes": report.dense_bytes,
        "accuracy": result["accuracy"]["test_at_best"],
        "names": NAMES,
        "mean": dataset.mean[0],
        "std": dataset.std[0],
        "side": shape[-1],
        "layers": [layer(name, m) for name, m in network.named_modules() if isinstance(m, DpsLayer)],
    }
    write("network.json", about)
    write("images.json", images(dataset, network))
    print(report)


def layer(name: str, module: DpsLayer) -> dict[str, object]:
    """The sparse weights of a layer: flat positions in the matrix (rows, columns), and values."""
    shape = module.geometry.weight_shape
    sizes = {"name": name, "shape": list(shape), "alpha": round(module.alpha.item(), 4)}
    values = [round(value, 3) for value in module.values.tolist()]
    return {**sizes, "positions": module.positions.tolist(), "values": values}


@torch.no_grad()
def images(dataset: data.Dataset, network: nn.Module) -> dict[str, object]:
    """The first test images of each class that the network knows, as bytes in base64, and their classes."""
    x = (dataset.test_images.float() / 255 - dataset.mean[0]) / dataset.std[0]
    known = network.eval()(x).argmax(1) == dataset.test_labels
    classes = [(known & (dataset.test_labels == c)).nonzero() for c in range(dataset.classes)]
    chosen = [int(i) for of_class in classes for i in of_class[:EACH, 0]]
    pixels = dataset.test_images[torch.tensor(chosen)]
    return {
        "labels": dataset.test_labels[torch.tensor(chosen)].tolist(),
        "pixels": [base64.b64encode(image.numpy().tobytes()).decode() for image in pixels],
    }


def write(name: str, content: object) -> None:
    (HERE / name).write_text(json.dumps(content, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
