"""`--instruction-set`: our kernels, torch and its libraries limited to what another kind of processor has.

So the ratios of a processor with AVX2 can be measured on one with AVX-512. torch and its libraries read their limits
from the environment when they are loaded, so nothing here imports torch before the limits are set.
"""

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Literal

from dctps.bench.subjects import Steps

InstructionSet = Literal["avx2", "avx512"]

VARIABLES = {  # for avx2; avx512 is the best that all of them know, and needs no limit
    "DCTPS_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def limit(instruction_set: InstructionSet | None) -> None:
    """Limit what this process imports from now on; ValueError where that is too late, or limited otherwise already."""
    if instruction_set == "avx2":
        if "torch" in sys.modules:
            raise ValueError(
                "--instruction-set avx2 has to be set before torch is imported, and this process has imported it; "
                "run the command dctps in a process of its own"
            )
        os.environ.update(VARIABLES)
    elif instruction_set == "avx512":
        names = (*VARIABLES, "DNNL_MAX_CPU_ISA")  # an earlier name of ONEDNN_MAX_CPU_ISA
        limited = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
        if limited:
            raise ValueError(f"--instruction-set avx512 is limited by {' '.join(limited)} in the environment")


def check(instruction_set: InstructionSet | None) -> None:
    """ValueError unless torch and our kernels compute with the instruction set that was asked for, if one was.

    oneDNN and MKL cannot be asked. They obey the same environment, which is set before they are loaded.
    """
    from dctps.base.machine import torch_instruction_set
    from dctps.ops import native

    ours, torchs = native.instruction_set(), torch_instruction_set()
    if instruction_set not in (None, ours) or instruction_set not in (None, torchs):
        why = native.WHY_NOT and f" ({native.WHY_NOT})"
        raise ValueError(
            f"--instruction-set {instruction_set} cannot be measured here: "
            f"torch computes with {torchs}, our kernels with {ours}{why}"
        )


def limited_steps(asked: Steps, say: Callable[[str], object]) -> Steps:
    """The steps without those peers by default that cannot be limited; ValueError if such a peer was named.

    say: is told which peers are left out.
    """
    from dctps.bench.contenders import CONTENDERS, default_peers

    if asked.against is not None:
        raise ValueError("--instruction-set does not limit the processes that --against starts; leave one of them out")
    usual = dict.fromkeys(peer for offset in asked.offsets for peer in default_peers(offset))
    peers = usual if asked.peers is None else asked.peers
    unlimited = [peer for peer in peers if not CONTENDERS[peer].obeys_limit]
    if unlimited and asked.peers is not None:
        raise ValueError(f"--instruction-set does not limit {', '.join(unlimited)}; leave it out of --peers")
    for peer in unlimited:
        say(f"{peer} is left out: --instruction-set does not limit it")
    return dataclasses.replace(asked, peers=tuple(peer for peer in peers if peer not in unlimited))
