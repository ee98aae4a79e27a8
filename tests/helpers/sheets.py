"""Lines of sheets."""

from dctps.experiments.tasks.training import TrainingRow


def training(**changes):
    """A line of a sheet."""
    plain = {"experiment": "lenet", "scale": "paper", "panel": "A", "line": "DCTpS", "task": "train", "model": "lenet"}
    plain |= {"data": "cifar10", "width": None, "images": None, "epochs": 160, "density": 0.01, "seed": 0}
    plain |= {"status": "done", "reason": "", "commit": "abc", "id": "0"}
    return TrainingRow(**(plain | changes))
