"""A line by Flower's simulation: its clients are actors of Ray on this machine, and no other host is asked."""

import os
from pathlib import Path

from federation.line import Line

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def simulate(line: Line, folder: Path, temporary: Path | None = None) -> None:
    """Perform a line with one actor for all clients, one after the other.

    temporary: where Ray keeps its files, a folder with a short name; by default that is its own place, /tmp/ray.
    """
    os.environ.update(QUIET)  # Flower reads these when it is imported
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    from flwr.simulation import run_simulation

    from federation.client_app import app
    from federation.server_app import server_app

    start = {"num_cpus": 1} | ({} if temporary is None else {"_temp_dir": str(temporary)})
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": start}
    run_simulation(server_app(line, folder.resolve()), app, line.clients, backend_config=resources)
