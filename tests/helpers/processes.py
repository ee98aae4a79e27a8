"""Processes that tests start, watch and wait for."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from dctps.experiments.cells import Cell

TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The environment of a process that imports from the tests and computes with one thread."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def torchrun(*command: str) -> subprocess.CompletedProcess:
    """Run a command in two processes that know one another."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run([*launcher, *command], env=environment(), capture_output=True, text=True, timeout=200)


# A file of networks that die, wait or meet on the way; as `own.py` in the current folder it is found there.
USER_NETWORKS = """
    import os, signal, time
    from pathlib import Path
    from torch import nn
    from dctps.models import build

    def net():
        return build("small_cnn", 10, in_channels=1)

    def dying():
        os.kill(os.getpid(), signal.SIGKILL)

    def dying_once():
        if not Path("died").exists():
            Path("died").touch()
            dying()
        return net()

    def meeting():  # with another process that does the same
        Path(f"here-{os.getpid()}").touch()
        while len(list(Path().glob("here-*"))) < 2:
            time.sleep(0.01)
        return net()

    class Waiting(nn.Module):  # in its third training step, for a signal
        def __init__(self):
            super().__init__()
            self.net, self.steps = net(), 0

        def forward(self, x):
            self.steps += self.training
            if self.training and self.steps == 3 and not Path("go").exists():
                Path(f"waiting-{os.getpid()}").touch()
                while signal.getsignal(signal.SIGTERM).__self__.received is None:
                    time.sleep(0.01)
            return self.net(x)
"""


def until(condition, alive=lambda: True, seconds: float = 300) -> None:
    """Wait for a condition that another process brings about; fail when it has ended or takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert alive(), "the process has ended"
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.02)


def waiting(folder: Path) -> int:
    """How many networks wait for a signal."""
    return len(list(folder.glob("waiting-*")))


DRIVER = """
    import json, sys
    from pathlib import Path
    from dctps.train.settings import from_json
    from dctps.experiments.cells import Cell
    from dctps.experiments.engines import Local
    from dctps.experiments.ray_engine import Ray
    from dctps.experiments.sweep import sweep
    from helpers.runs import runtime

    def show(event):
        if event is not None:
            print(event.kind, event.cell.id, event.row.get("epoch", ""), flush=True)

    if __name__ == "__main__":
        from dctps.train.signals import Interrupted
        cells = [Cell(from_json(settings)) for settings in json.loads(sys.argv[2])]
        try:
            outcome = sweep(cells, runtime(Path(sys.argv[1])), ENGINE, show)
        except Interrupted as error:
            print(error, file=sys.stderr)
            sys.exit(error.code)
        sys.exit(0 if outcome.done == len(cells) else 3)
"""


def drive(grid: list[Cell], runs: Path, engine: str) -> subprocess.Popen:
    """Start a process that sweeps, in a session of its own and in the folder above the runs."""
    script = runs.parent / "driver.py"
    script.write_text(textwrap.dedent(DRIVER).replace("ENGINE", engine))
    settings = json.dumps([one.settings.__dict__ for one in grid])
    return subprocess.Popen(
        [sys.executable, str(script), str(runs), settings],
        env=environment(),
        cwd=runs.parent,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def processes_in(folder: Path) -> dict[int, str]:
    """The other processes whose current folder this is, and what they say they are."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (path / "cwd").resolve() == folder.resolve() and int(path.name) != os.getpid():
                found[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
    return found
