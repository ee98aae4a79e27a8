"""What training a network holds: all the time besides activations, and in a step at most."""

import itertools
import os
from collections.abc import Callable

from torch import Tensor, nn
from torch.autograd.profiler import profile

from dctps.bench.published import Published
from dctps.nn.dps_layer import DpsLayer


def memory(model: nn.Module) -> int:
    """Bytes of weights, gradients and Adam's two moments.

    A parameter that trains counts four times, one that does not (a stored D) once, and so does what else a weight
    consists of: the positions of its values, or a mask. Running statistics of BatchNorm are no weights. What the
    library keeps to be fast (factors of D, plans of S) is shared between layers of one shape and not counted.

    >>> memory(nn.Linear(1000, 1000, bias=False))
    16000000
    """
    trained = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    fixed = sum(p.nbytes for p in model.parameters() if not p.requires_grad)
    weights = [m for m in model.modules() if isinstance(m, DpsLayer | Published)]
    return (1 + 1 + 2) * trained + fixed + sum(t.nbytes for m in weights for t in _parts(m))


def _parts(layer: DpsLayer | Published) -> list[Tensor]:
    """The tensors of a weight that do not train."""
    if isinstance(layer, Published):
        return list(layer.buffers(recurse=False))
    return [layer.positions, *([] if layer.alpha is None or layer.alpha.requires_grad else [layer.alpha])]


def peak(model: nn.Module, run: Callable[[], object]) -> int:
    """Bytes of the tensors that one run adds to those before it, at the moment when they are most.

    In a training step they are activations, gradients, and what torch allocates for a while, such as weights in the
    layout of a library. The gradients of an earlier step are freed before, so those of this one count. Adam's moments
    count only in the first step, which makes them.

    torch's profiler tells each allocation. Under a mode that sees every operator, our layers would compute by another
    path than usual, and the memory of the whole process would also have what the C library keeps. The buffers in which
    native kernels and MKL compute are not torch's and not counted. Ours are small: a chunk of the work for each thread,
    made to fit into its cache, and parts of the gradients of values.

    >>> import torch
    >>> peak(nn.Identity(), lambda: torch.empty(1000))
    4000
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would write a line when it starts, one when it stops
    model.zero_grad()
    with profile(profile_memory=True) as seen:
        run()
    assert seen.kineto_results is not None
    allocations = [event for event in seen.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(allocations, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0)
