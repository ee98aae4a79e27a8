"""Pruning at initialisation: the weights to keep are chosen by a score before training.

`METHODS` has the methods by the names that settings and commands use. A method of your own is a function like those in
`scores.py` and an entry here.
"""

from typing import Any

from dctps.methods.pruning import scores
from dctps.methods.pruning.method import Method

_ON_DATA: dict[str, Any] = {"prepare": scores.enter_training_mode, "batches": 1}

METHODS: dict[str, Method] = {
    "random": Method("Random (global)", scores.constant),
    "magnitude": Method("Magnitude", scores.magnitude),
    "snip": Method("SNIP", scores.sensitivity, **_ON_DATA),
    "iter_snip": Method("Iter-SNIP", scores.sensitivity, **_ON_DATA, steps=60, uses_sparse_layers=True),
    "grasp": Method("GraSP", scores.gradient_flow, **_ON_DATA, signed=True),
    "force": Method("FORCE (de Jorge)", scores.sensitivity, **_ON_DATA, steps=60, recovers=True),
    "force_paper": Method(  # what the paper's code computes
        "FORCE", scores.sensitivity, **_ON_DATA, steps=60, loss="neg_logit", uses_sparse_layers=True
    ),
    "synflow": Method("SynFlow", scores.synaptic_flow, scores.take_absolute_values, steps=100),
}
"""The methods of `prune` by name: a score, and how it is taken."""
