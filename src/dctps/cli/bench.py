"""`dctps bench`: speed and memory on this machine, against dense layers, the published formulation, other packages."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from dctps.base.registry import lookup
from dctps.base.user_code import find_function
from dctps.bench import limits
from dctps.bench.subjects import Layers, Scaling, Steps
from dctps.cli.flags import parse


@dataclasses.dataclass(frozen=True)
class Machine:
    """How the process runs and where the results go."""

    out: Path = Path("results")
    """Folder of the table (CSV) and the figure (PNG, with matplotlib).
    Their name says what was measured; files of the same name are replaced."""
    threads: int | None = None
    """Threads of torch; None leaves torch's own choice."""
    keep_memory: bool = True
    """Keep freed memory with the process, as the trainer does."""
    instruction_set: limits.InstructionSet | None = None
    """Limit our kernels, torch and its libraries to this instruction set, as if the processor had no better one.
    It must be there, and peers that it does not limit are refused.
    None takes the best of the machine."""


@dataclasses.dataclass(frozen=True)
class LayersArguments:
    __doc__ = Layers.__doc__
    asked: Annotated[Layers, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Layers)
    machine: Annotated[Machine, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machine)


@dataclasses.dataclass(frozen=True)
class StepArguments:
    __doc__ = Steps.__doc__
    asked: Annotated[Steps, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Steps)
    machine: Annotated[Machine, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machine)


@dataclasses.dataclass(frozen=True)
class ScalingArguments:
    __doc__ = Scaling.__doc__
    asked: Annotated[Scaling, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Scaling)
    machine: Annotated[Machine, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machine)


Arguments = LayersArguments | StepArguments | ScalingArguments


def bench(arguments: list[str]) -> None:
    """Measure speed and memory on this machine: layers, whole steps, scaling."""
    subject, *rest = arguments or ["--help"]
    if subject in ("-h", "--help"):
        print(HELP)
        raise SystemExit(0)
    flags = lookup(SUBJECTS, subject, "subject")
    given = parse(flags, f"bench {subject}", rest)
    limits.limit(given.machine.instruction_set)
    find_function(f"dctps.cli.measure:measure_{subject}")(given)


SUBJECTS: dict[str, Callable[..., Arguments]] = {
    "layers": LayersArguments,
    "step": StepArguments,
    "scaling": ScalingArguments,
}


HELP = """usage: dctps bench SUBJECT ...

Speed and memory on this machine. Everything that is compared runs in one process, in turn, so that whatever else the
machine does hits all alike; medians are reported, on the screen and as a table in results/. The name of the table says
what was measured, as bench-step-vgg19-dct-1e-3-b128.csv does; a later run with the same name replaces it.

  layers    the layers of a network one by one: torch's layer against each way ours can take
  step      whole training steps or inferences: dense, ours, and peers: the published formulation, other packages
  scaling   one layer: time against its size and against its density

  dctps bench layers --model lenet                       seconds
  dctps bench step --models resnet18 --densities 1e-3    minutes
  dctps bench step --models vgg19 --batch 1 --inference --peers onnxruntime openvino
  dctps bench step --models vgg19 --against HEAD~1       this version against another one
  dctps bench step --models vgg19 --instruction-set avx2

dctps bench SUBJECT --help says more."""
