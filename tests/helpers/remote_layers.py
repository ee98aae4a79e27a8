"""A program: layers on the device `remote` against the same layers on the CPU, which build W.

python -m helpers.remote_layers BACKEND
"""

import copy
import math
import sys

import torch

from dctps import OFFSETS, DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear, TransformOffset
from helpers.offsets import Ones
from helpers.tolerances import assert_close

SIGNED = TransformOffset("dct", signs="position")  # the one that is not separable
LAYERS = {  # name: class, arguments, size of the input
    "linear": (DpsLinear, (12, 20), (3, 12)),
    "long rows": (DpsLinear, (12, 20), (2, 3, 12)),
    "conv1d": (DpsConv1d, (6, 4, 3, 2, 1), (2, 6, 9)),
    "conv2d": (DpsConv2d, (8, 6, 3), (2, 8, 5, 6)),
    "1x1": (DpsConv2d, (8, 6, 1), (2, 8, 4, 4)),
    "1x1, strided": (DpsConv2d, (8, 6, 1, 2, 1), (2, 8, 5, 5)),
    "strided, dilated, padded": (DpsConv2d, (6, 8, 3, 2, 2, 2), (2, 6, 9, 8)),
    "grouped": (DpsConv2d, (8, 12, 3, 1, 1, 1, 4), (2, 8, 5, 5)),
    "depthwise": (DpsConv2d, (8, 8, 3, 1, 1, 1, 8), (2, 8, 5, 5)),
    "wide": (DpsConv2d, (96, 64, 5, 1, 2), (2, 96, 5, 5)),
    "conv3d": (DpsConv3d, (4, 6, 2), (2, 4, 3, 4, 3)),
}


def check(kind, offset, backend, last):
    """Compare outputs and first and second derivatives; return the route on the device."""
    make, arguments, size = LAYERS[kind]
    near = make(*arguments, nnz=11, offset=offset, alpha=0.7, backend="dense")
    with torch.no_grad():
        near.values.normal_()
    far, x = copy.deepcopy(near), torch.randn(size)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    far.backend, far = backend, far.to("remote")
    there = x.to("remote")
    for actual, expected in zip(results(far, there), results(near, x), strict=True):
        assert actual.device.type == "remote", actual.device
        scale = max(1.0, float(expected.detach().abs().max()))  # second derivatives are large sums
        assert_close(actual.detach().to("cpu") / scale, expected.detach() / scale)
    return far.route(there).name


def results(layer, x):
    """The output, the gradients of x and of the parameters, and gradients of these."""
    x = x.clone().requires_grad_()
    leaves = [x, *layer.parameters()]
    y = layer(x)
    first = torch.autograd.grad((y * y).sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum((g * g).sum() for g in first), leaves)
    return [y, *first, *second]


def ones(shape):
    """An offset of a user's own class."""
    return Ones((shape[0], math.prod(shape[1:])))


def main(backend):
    torch.manual_seed(0)
    routes, failures = set(), []
    for offset in [None, *OFFSETS, SIGNED, ones]:
        for kind, (_, _, size) in LAYERS.items():
            for last in (False, True)[: 1 + (len(size) == 4)]:
                try:
                    routes.add(check(kind, offset, backend, last))
                except Exception as error:  # all failures are listed
                    failures.append(f"{kind}, {offset}, {'last' if last else 'first'}: {type(error).__name__} {error}")
    print(*failures, *sorted(routes), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    import helpers.remote_device  # noqa: F401  (registers the device)

    sys.exit(main(sys.argv[1]))
