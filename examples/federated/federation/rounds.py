"""The rounds of a line as the server does them, whatever carries its packets; their numbers as a CSV file."""

import csv
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dctps.base.files import write_atomically
from dctps.base.provenance import commit
from dctps.federated import Arrays, arrays, average, pack, set_arrays, unpack
from federation.line import Line, accuracy, client_round, network

Reply = tuple[np.ndarray, int]  # a packet, and the number of images that it was trained on
# given the numbers of clients, the round and the packet for all of them, returns their replies in the same order
Exchange = Callable[[Sequence[int], int, np.ndarray], Sequence[Reply]]


def perform(line: Line, exchange: Exchange, folder: Path) -> Path:
    """Perform all rounds of a line and write folder/<name of the line>.csv; a line that is there is not repeated."""
    path = folder / f"{line.name}.csv"
    if path.exists():
        check_same(line, path)
        print(f"{path} is there; this line is not repeated", flush=True)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    rows, net, total, start = list[dict[str, object]](), network(line), 0, time.perf_counter()
    for number in range(line.rounds):
        sent, packet, chosen = arrays(net), pack(arrays(net)), sample(line, number)
        replies = exchange(chosen, number, packet)
        set_arrays(net, average([unpack(reply, sent) for reply, _ in replies], [count for _, count in replies]))
        up = sum(len(reply) for reply, _ in replies)
        total += up + len(chosen) * len(packet)
        is_measured = (number + 1) % line.measured_every == 0
        row = {"round": number + 1, "bytes_down": len(packet), "bytes_up": up // len(chosen), "bytes_total": total}
        row["accuracy"] = f"{accuracy(net, line):.2f}" if is_measured else ""
        rows.append(
            dataclasses.asdict(line) | row | {"seconds": f"{time.perf_counter() - start:.1f}", "commit": commit()}
        )
        print(f"{line.name}: {row}", flush=True)
    write_atomically(path, lambda part: write_rows(part, rows))
    return path


def sample(line: Line, number: int) -> list[int]:
    """Return the clients that take part in a round."""
    return sorted(np.random.default_rng([line.seed, 2, number]).permutation(line.clients)[: line.sampled].tolist())


def check_same(line: Line, path: Path) -> None:
    """Raise ValueError if a file of this name is of a line with other settings."""
    with path.open(newline="") as file:
        found = next(csv.DictReader(file))
    other = {name: found.get(name) for name, value in dataclasses.asdict(line).items() if found.get(name) != str(value)}
    if other:
        raise ValueError(f"{path} is of a line with other settings, {other}; take another folder, or remove the file")


def write_rows(path: Path, rows: Sequence[dict[str, object]]) -> None:
    """Write rows with the same keys as a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def local_exchange(line: Line) -> Exchange:
    """Return an exchange without any network or framework: each client is trained in this process."""
    residuals: dict[int, Arrays | None] = {}

    def exchange(chosen: Sequence[int], number: int, packet: np.ndarray) -> list[Reply]:
        replies = []
        for client in chosen:
            reply, count, residuals[client] = client_round(line, client, number, packet, residuals.get(client))
            replies.append((reply, count))
        return replies

    return exchange
