"""Trainings in processes that are killed: where a kill falls, what it leaves, and what has to be equal in the end.

A process is seen from outside only: by what it has loaded, what it has said and which files are in the folder of runs.
A kill waits for its phase and then for a part of the time that the phase takes in a run that nobody disturbs. It is the
time of the processor that counts, because a machine may be busy at one moment and idle at the next.
"""

import contextlib
import dataclasses
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import dctps
from dctps.checkpoint.folder import CARD, CONFIG, FILE
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.runs import Run, RunFolder
from dctps.train.settings import AnySettings, non_defaults, to_json
from helpers.processes import environment
from helpers.runs import assert_equal_trees, assert_identical, result, run_in
from helpers.sweeps import safetensors_file, saved_network

IMPORTS, SETUP, TRAINING, SAVING, FIRST_SAVE = "imports", "setup", "training", "saving", "first save"
PHASES = {IMPORTS, SETUP, TRAINING, SAVING, FIRST_SAVE}
# exit codes: of the signal itself, and those by which the command tells of a signal that it has met in order
CODES = {signal.SIGKILL: {-9}, signal.SIGTERM: {-15, 143}, signal.SIGINT: {-2, 130}}
LAST = "last.pt"
SOURCE = str(Path(dctps.__file__).parent)


@dataclasses.dataclass(frozen=True)
class Kill:
    """A signal, and where it falls."""

    number: signal.Signals
    phase: str
    part: float = 0.0  # of the time of the phase that passes before, in [0, 1)
    file: str = LAST  # that is being written, in the phases of saving


def draw_kills(seed: str) -> list[Kill]:
    """Thirty kills, ten by each signal, in a random order: in all phases and while every file is written."""
    chance = random.Random(seed)
    files = [LAST, LAST, LAST, "result.json", "result.json", "best.safetensors", "metrics.jsonl", "config.json"]
    kills = []
    for number in CODES:
        phases = [FIRST_SAVE, IMPORTS, SETUP, TRAINING, SAVING, SAVING, IMPORTS, SETUP, TRAINING, TRAINING]
        kills += [
            Kill(number, phase, chance.random(), chance.choice(files) if phase == SAVING else LAST) for phase in phases
        ]
    chance.shuffle(kills)
    return kills


class Process:
    """`dctps train` or `dctps finetune` in a process of its own."""

    def __init__(self, settings: AnySettings, runs: Path) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self.runs, self.run, self._left_before = runs, run_of(settings, runs), set[Path]()
        self._left_before = self.temporary()
        config, self.output, self.errors = (runs.with_suffix(f".{end}") for end in ("json", "out", "err"))
        config.write_text(json.dumps(to_json(settings)))
        finetunes = isinstance(settings, FinetuneSettings)
        started = ["finetune", *flags(settings)] if finetunes else ["train", "--config", str(config)]
        command = [sys.executable, "-m", "dctps", *started, "--runs", str(runs)]
        with self.output.open("w") as output, self.errors.open("w") as errors, _interruptible():
            self.process = subprocess.Popen(
                [*command, "--threads", "1"],
                env={**environment(), "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=errors,
            )

    def temporary(self, file: str = "") -> set[Path]:
        """The files that the process is writing, or was writing when it was killed."""
        return {path for place in ("*", "*/*") for path in self.runs.glob(f"{place}/.{file}*.tmp")} - self._left_before

    def phase(self) -> str:
        """What the process is doing."""
        if self.temporary():
            return SAVING if has_checkpoint(self.runs) else FIRST_SAVE
        return TRAINING if self.trains() else SETUP if self.has_imported() else IMPORTS

    def has_imported(self) -> bool:
        """Whether all imports are over: of the digits, or those of the network that is fine-tuned."""
        maps = self.maps()
        return any(name in maps for name in ("sklearn", "_sqlite3", "tokenizers"))

    def maps(self) -> str:
        """The files that it has loaded."""
        with contextlib.suppress(OSError):  # it has ended
            return Path(f"/proc/{self.process.pid}/maps").read_text()
        return ""

    def trains(self) -> bool:
        """Whether it has begun to train, or to go on."""
        return "run folder" in self.output.read_text()

    def ends(self) -> bool:
        """Whether it has finished all that was to be trained."""
        return self.run.result.exists()

    def runs_until(self, condition: Callable[[], object], pause: float = 0.002) -> bool:
        """Wait for a condition; whether the process still runs then."""
        end = time.monotonic() + 300
        while self.process.poll() is None and not condition():
            assert time.monotonic() < end, "nothing happens"
            time.sleep(pause)
        return self.process.poll() is None

    def seconds(self) -> float:
        """How long it has had a processor."""
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9
        return float("inf")  # it has ended

    def runs_for(self, seconds: float) -> bool:
        """Wait until it has had a processor for so long; whether the process still runs then."""
        end = self.seconds() + seconds
        return self.runs_until(lambda: self.seconds() >= end)

    def saves(self, file: str, number: int = 1) -> bool:
        """Wait until a file is written for this `number`-th time; whether the process still runs then."""
        seen = set[Path]()

        def writes() -> bool:
            now = self.temporary(file)
            seen.update(now)
            return bool(now) and len(seen) >= number

        return self.runs_until(writes, pause=0.0002)

    def send(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(300)


def flags(settings: FinetuneSettings) -> list[str]:
    """The arguments of `dctps finetune` that mean these settings."""
    changed = non_defaults(settings)
    words = [str(changed.pop("data"))]
    for name, value in changed.items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return words


def run_of(settings: AnySettings, runs: Path) -> RunFolder:
    """The run of these settings in a folder of runs."""
    return (FinetuneRun if isinstance(settings, FinetuneSettings) else Run).at(settings, runs)


def has_checkpoint(runs: Path) -> bool:
    """Whether there is a state to go on from."""
    return any(runs.glob(f"*/{LAST}"))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C reach a process that is started meanwhile: in the background of a shell it would be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclasses.dataclass(frozen=True)
class Death:
    """How a process ended that was killed."""

    kill: Kill
    phase: str  # in which the signal met it
    code: int
    leftovers: int  # temporary files that it left behind
    resumed: bool  # whether it had gone on from a checkpoint, or was about to


class Siege:
    """Runs of some settings, one after the other, that are killed and go on; each ends equal to an undisturbed one."""

    def __init__(self, settings: AnySettings, folder: Path) -> None:
        self.settings, self.folder, self.whole = settings, folder, folder / "whole"
        self.seconds = self._undisturbed_seconds()  # of each phase
        self.deaths: list[Death] = []
        self.finished = 0  # runs that came to their end and were compared

    @property
    def runs(self) -> Path:
        """Where the run is that is being killed."""
        return self.folder / f"killed-{self.finished}"

    def _undisturbed_seconds(self) -> dict[str, float]:
        """Train without a kill; returns the seconds of each phase."""
        process, times = Process(self.settings, self.whole), [0.0]
        for condition in (process.has_imported, process.trains, process.ends):
            process.runs_until(condition)
            times.append(process.seconds())
        assert process.end() == 0, process.errors.read_text()
        return {phase: b - a for phase, a, b in zip((IMPORTS, SETUP, TRAINING), times, times[1:], strict=False)}

    def suffer(self, kill: Kill) -> None:
        """Kill the run once; where it ends before, the next one is begun."""
        if kill.phase == FIRST_SAVE and has_checkpoint(self.runs):
            self.finish()
        while not self._kill(kill):
            self.finish()

    def _kill(self, kill: Kill) -> bool:
        resumed = has_checkpoint(self.runs)
        process = Process(self.settings, self.runs)
        if self._reaches(process, kill):
            phase = process.phase()
            code = process.send(kill.number)
            assert code in CODES[kill.number] | {0}, (kill, phase, code, process.errors.read_text())
            if code:
                self.deaths.append(Death(kill, phase, code, len(process.temporary()), resumed))
        errors = process.errors.read_text()
        assert not ("Traceback" in errors and SOURCE in errors), (kill, errors)
        return process.end() != 0

    def _reaches(self, process: Process, kill: Kill) -> bool:
        """Wait for the moment of a kill; whether the process still runs then."""
        if kill.phase == FIRST_SAVE:
            return process.saves(kill.file)
        if kill.phase == SAVING:
            return process.saves(kill.file, 1 + int(4 * kill.part) if kill.file == LAST else 1)
        if kill.phase == SETUP:
            process.runs_until(process.has_imported)
        elif kill.phase == TRAINING:
            process.runs_until(process.trains)
        left = 1 - _epochs(self.runs) / _epochs(self.whole) if kill.phase == TRAINING else 1
        return process.runs_for(kill.part * left * self.seconds[kill.phase])

    def finish(self) -> None:
        """Let the run come to its end and compare it with the undisturbed one."""
        if not run_of(self.settings, self.runs).result.exists():
            process = Process(self.settings, self.runs)
            assert process.end() == 0, process.errors.read_text()
        assert_same_runs(self.runs, self.whole)
        self.finished += 1

    def in_a_row(self) -> int:
        """The most kills one after the other of processes that went on from a checkpoint."""
        rows = itertools.groupby(self.deaths, key=lambda death: death.resumed)
        return max((len(list(row)) for resumed, row in rows if resumed), default=0)

    def report(self, kind: str) -> str:
        """Where the kills fell and how they ended, in words."""
        counts = Counter((death.kill.number.name, death.phase) for death in self.deaths)
        codes = Counter((death.kill.number.name, death.code) for death in self.deaths)
        leftovers = sum(death.leftovers for death in self.deaths)
        lines = [f"{kind}: {len(self.deaths)} kills, {self.finished} runs compared, {leftovers} temporary files left"]
        lines += [f"  {number} in {phase}: {count}" for (number, phase), count in sorted(counts.items())]
        lines += [f"  {number} with exit code {code}: {count}" for (number, code), count in sorted(codes.items())]
        return "\n".join([*lines, f"  {self.in_a_row()} kills in a row of runs that went on"])


def assert_same_runs(runs: Path, others: Path) -> None:
    """Check that two folders of runs hold the same files, equal to the last bit but for times."""
    assert _files(runs) == _files(others)
    for folder in sorted(others.iterdir()):
        one, other = run_in(runs / folder.name), run_in(folder)
        assert one.finished()
        assert_identical(one, other)
        assert saved_network(one) == saved_network(other)
        assert result(one) == result(other)
        if isinstance(other, FinetuneRun):
            for name in (CONFIG, CARD):
                assert (one.adapter / name).read_text() == (other.adapter / name).read_text()
            assert safetensors_file(one.adapter / FILE) == safetensors_file(other.adapter / FILE)
        elif other.rewind.exists():
            assert_equal_trees(one.load_rewind(), other.load_rewind())


def _epochs(runs: Path) -> int:
    """How many epochs are written down, in all runs of a folder."""
    return sum(file.read_text().count("\n") for file in runs.glob("*/metrics.jsonl"))


def _files(runs: Path) -> set[str]:
    return {str(path.relative_to(runs)) for path in runs.rglob("*")}
