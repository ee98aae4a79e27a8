"""How large the outputs of a network's layers are before the first step, by depth: alpha = 1, "preserve", and He's.

    python benchmarks/activation_variance.py [--images 128]

For LeNet-5, VGG19 and ResNet18 on images of CIFAR-10 (dctps data get cifar10, or DCTPS_DATA): the standard deviation of
each convolution's and linear layer's output, over images, channels and pixels, and its root mean square, which is what
"preserve" is about. With BatchNorm's statistics as it starts from (mean 0, variance 1) it does nothing, so that the
layers stand alone; with those of the batch it normalises each output, and only the scale within a layer is left to
see. Writes results/bench-activation-variance.csv and prints the tables of docs/beyond.md.
"""

import argparse

import torch
from table import write
from torch import Tensor, nn

import dctps
from dctps.nn.prunable import prunable

MODELS = {"lenet": (1, 2, 3, 4, 5), "vgg19": (1, 4, 8, 12, 16, 17), "resnet18": (1, 5, 10, 15, 20, 21)}  # layers shown
OFFSETS = {
    "dct": "dct",
    "dct_signed": "dct_signed",
    "srht": "srht",
    "dct, signs per position": "dct/spatial/position/random/0",
}


def images(count: int) -> Tensor:
    data = dctps.data.load("cifar10")
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (data.mean, data.std))
    return (data.test_images[:count].float() / 255 - mean) / std


def network(model: str, offset: str | None, alpha: float | str) -> nn.Module:
    """The network with an offset, or without one the dense one, which starts from He's normal weights."""
    torch.manual_seed(0)
    net = dctps.models.build(model)
    return net if offset is None else dctps.sparsify(net, 1e-3, offset=offset, alpha=alpha, backend="dense")


@torch.no_grad()
def sizes(net: nn.Module, x: Tensor) -> list[tuple[str, float, float]]:
    """(name, standard deviation, root mean square) of each layer's output, in the order of the forward pass."""
    rows: list[tuple[str, float, float]] = []

    def look(name: str) -> object:
        return lambda module, inputs, y: rows.append((name, y.std().item(), y.square().mean().sqrt().item()))

    layers = prunable(net) or {row.name: net.get_submodule(row.name) for row in dctps.report(net).layers}
    handles = [layer.register_forward_hook(look(name)) for name, layer in layers.items()]
    net(x)
    for handle in handles:
        handle.remove()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=128)
    x = images(parser.parse_args().images)
    starts = [("dense, He", None, 1.0), *((name, o, a) for name, o in OFFSETS.items() for a in (1.0, "preserve"))]
    table = []
    for model, shown in MODELS.items():
        for normalised in (False, True) if model != "lenet" else (False,):
            print(f"\n{model}{', BatchNorm at work' if normalised else ''}\n")
            print(f"| offset | alpha |{''.join(f' {n} |' for n in shown)}\n|---|---|{'--:|' * len(shown)}")
            for name, offset, alpha in starts:
                rows = sizes(network(model, offset, alpha).train(normalised), x)
                print(f"| {name} | {alpha if offset else ''} |{''.join(f' {rows[n - 1][1]:.2g} |' for n in shown)}")
                common = [model, offset or "none", alpha, "batch" if normalised else "initial"]
                table += [[*common, n + 1, layer, *(f"{v:.6g}" for v in r)] for n, (layer, *r) in enumerate(rows)]
    header = ["model", "offset", "alpha", "batchnorm_statistics", "depth", "layer", "std", "rms"]
    write("activation-variance", header, table)


if __name__ == "__main__":
    main()
