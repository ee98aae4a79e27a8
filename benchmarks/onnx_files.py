"""ONNX files with recipes beside dense ones: bytes, time to load, time per batch in ONNX Runtime, largest difference.

    python benchmarks/onnx_files.py [--models lenet vgg19 ...] [--rounds 11]

Writes results/bench-onnx-files.csv. The networks have random values, as trained ones have, and the running statistics
of noise. In each round both files are loaded anew and have their turns, so that whatever else the machine does, and
where a session's memory happens to lie, hits both alike. Times are medians of the rounds, in seconds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import table
import torch
from torch import Tensor, nn

import dctps
from dctps.export.check import session
from dctps.nn.dps_layer import DpsLayer

BATCHES = (1, 32)
SETTLING, TURN = 0.05, 0.2  # seconds of batches that do not count, and that count


def vit() -> nn.Module:
    """A small ViT of transformers, from its configuration alone."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    return ViTForImageClassification(ViTConfig(image_size=32, patch_size=4, num_labels=10, **sizes))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "lenet": (lambda: dctps.models.build("lenet"), 1e-2),
    "vgg19": (lambda: dctps.models.build("vgg19"), 1e-3),
    "resnet50": (lambda: dctps.models.build("resnet50"), 1e-4),
    "mobilenetv2": (lambda: dctps.models.build("mobilenetv2"), 1e-3),
    "vit": (vit, 1e-2),
}
HEADER = ["model", "density", "file", "recipe", "recipe_float16", "dense", "load_recipe", "load_dense"]
HEADER += [f"{kind}_batch_{batch}" for batch in BATCHES for kind in ("recipe", "dense")]
HEADER += ["difference", "difference_float16", "largest_output"]


def network(name: str) -> nn.Module:
    """A sparse network with random values and running statistics that fit them."""
    make, density = NETWORKS[name]
    torch.manual_seed(0)
    net = dctps.sparsify(make(), density)
    for layer in net.modules():
        if isinstance(layer, DpsLayer):
            layer.values.data.normal_(0, 0.02)
    with torch.no_grad():
        for _ in range(20):
            net.train()(torch.randn(16, 3, 32, 32))
    return net.eval()


def row(name: str, rounds: int, folder: Path) -> list[object]:
    """The measurements of one network, in the order of `HEADER`."""
    net, x = network(name), torch.randn(2, 3, 32, 32)
    dctps.save(net, folder / "net.safetensors")
    recipe = dctps.export_onnx(net, folder / "recipe.onnx", x)
    half = dctps.export_onnx(net, folder / "half.onnx", x, float16=True)
    dense = dctps.export_onnx(net, folder / "dense.onnx", x, dense=True)
    batches = [torch.randn(batch, 3, 32, 32) for batch in BATCHES]
    measured = [one_round(recipe.file, dense.file, batches) for _ in range(rounds)]
    times = [statistics.median(column) for column in zip(*measured, strict=True)]
    sizes = [(folder / "net.safetensors").stat().st_size, recipe.bytes, half.bytes, dense.bytes]
    differences = [recipe.difference, half.difference, recipe.largest]
    return [name, NETWORKS[name][1], *sizes, *map(short, [*times, *differences])]


def short(number: float | None) -> str:
    return f"{number:.4g}"


def one_round(recipe: Path, dense: Path, batches: list[Tensor]) -> list[float]:
    """The seconds of loading both files, and then, for each batch, the median seconds of both sessions."""
    (load_recipe, ours), (load_dense, theirs) = map(loaded, (recipe, dense))
    return [load_recipe, load_dense, *(turn(found, x) for x in batches for found in (ours, theirs))]


def loaded(file: Path) -> tuple[float, Any]:
    """The seconds that ONNX Runtime takes to load a file, and its session."""
    start = time.perf_counter()
    found = session(file.read_bytes())
    return time.perf_counter() - start, found


def turn(found: Any, x: Tensor) -> float:
    """The median seconds of a batch; the threads of the other session spin for a moment, which does not count."""
    repeated(found, x, SETTLING)
    return statistics.median(repeated(found, x, TURN))


def repeated(found: Any, x: Tensor, least: float) -> list[float]:
    """The seconds of batches, one after the other, until these are at least two and have taken so many seconds."""
    feed, seconds = {found.get_inputs()[0].name: x.numpy()}, list[float]()
    while len(seconds) < 2 or sum(seconds) < least:
        start = time.perf_counter()
        found.run(None, feed)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            rows.append(row(name, given.rounds, Path(folder)))
            print(dict(zip(HEADER, rows[-1], strict=True)), flush=True)
    table.write("onnx-files", HEADER, rows)


if __name__ == "__main__":
    main()
