"""What can be done with the settings of a run: one file per task, and all of them by name.

A task of your own is a `Task` with an entry in `TASKS`.
"""

from dctps.experiments.tasks.counts import WEIGHT_COUNTS
from dctps.experiments.tasks.jacobian import JACOBIAN_SPECTRUM
from dctps.experiments.tasks.task import Task
from dctps.experiments.tasks.training import TRAINING

TASKS: dict[str, Task] = {task.name: task for task in (TRAINING, WEIGHT_COUNTS, JACOBIAN_SPECTRUM)}
