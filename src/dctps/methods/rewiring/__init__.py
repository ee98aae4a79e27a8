"""Rewiring: weights that move to other positions while a network trains.

`REWIRINGS` has the methods by the names that settings and commands use; figures show the names of the classes. A method
of your own is a subclass of `Rewiring` with an entry here.
"""

from dctps.methods.rewiring.base import Rewiring
from dctps.methods.rewiring.dsr import DSR
from dctps.methods.rewiring.rigl import RigL
from dctps.methods.rewiring.set import SET

REWIRINGS: dict[str, type[Rewiring]] = {"rigl": RigL, "set": SET, "dsr": DSR}
