"""A run is a folder: config.json, metrics.jsonl, result.json, last.pt, best.safetensors.

Every file is written atomically, so a run that was killed at any moment continues from its last checkpoint.
Every file that is read is checked field by field (`records.py`); the error names the file, the field and what to do.
`last.pt` is read with torch's restricted loader, which makes tensors and plain values and nothing else.
"""

import contextlib
import fcntl
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import nn

from dctps.base.files import remove_leftovers, write_atomically
from dctps.base.plain_files import RecordError, parse_text, read_lines, read_text
from dctps.base.records import parse
from dctps.checkpoint.save import save
from dctps.nn.batchnorm import SparseBatchNorm
from dctps.nn.dps_layer import DpsLayer
from dctps.train.records import Checkpoint, EpochMetrics, TrainingResult, parse_network, parse_outcome
from dctps.train.settings import AnySettings, Settings, run_id, settings_from, to_json

T = TypeVar("T")


class RunError(RuntimeError):
    """A run cannot start or go on; the message says why, and which files are still good."""


class Busy(RunError):  # noqa: N818
    """Another process is training this run."""


class RunFolder:
    """The folder of one run, of any kind of training; a subclass says what its settings, metrics and result are."""

    settings_kind: type[Any]
    metrics_kind: type[Any]
    result_kind: type[Any]
    prefix = ""  # the beginning of the folder's name

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.best = folder / "last.pt", folder / "best.safetensors"
        self.metrics, self.result = folder / "metrics.jsonl", folder / "result.json"
        self.config = folder / "config.json"

    @classmethod
    def at(cls, settings: AnySettings, runs: Path, prefix: str = "") -> Self:
        """The run of these settings in the folder `runs`; nothing is made, and the run need not exist.

        prefix: the beginning of the folder's name, for tasks other than training.
        """
        return cls(runs / f"{prefix or cls.prefix}{run_id(settings)}")

    @classmethod
    def open(cls, settings: AnySettings, runs: Path, prefix: str = "") -> Self:
        """The run of these settings, whose folder is made if it is not there; `RunError` if it holds another run."""
        run = cls.at(settings, runs, prefix)
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            if not run.config.exists():
                text = json.dumps(to_json(settings), indent=1) + "\n"
                write_atomically(run.config, lambda file: file.write_text(text))
        except OSError as error:
            raise RunError(
                f"cannot make the run folder {run.folder}: {error.strerror}; choose another with --runs"
            ) from error
        if run.read_settings() != settings:
            raise RunError(f"{run.folder} holds the run of other settings; move it away")
        return run

    @property
    def id(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from training in this folder; the lock ends with the process, however that ends."""
        with self._flock("lock"):
            for path in self.written():  # nobody else writes them now
                with self._writing(path):
                    remove_leftovers(path)
            yield

    @contextlib.contextmanager
    def _flock(self, name: str) -> Iterator[None]:
        with self._writing(self.folder / name):
            file = (self.folder / name).open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy(f"another process is training in {self.folder}") from None
            yield

    def written(self) -> list[Path]:
        """The files that only a process writes which has locked the folder."""
        return [self.last, self.best, self.metrics, self.result]

    def read_settings(self) -> Any:
        """The settings in config.json; `RunError` if it cannot be read."""
        with self._reading(self.config, f"delete {self.folder} to start this run again"):
            return settings_from(parse_text(read_text(self.config)), self.settings_kind)

    def finished(self) -> dict[str, Any] | None:
        """The result, as result.json has it; None if the run is not finished."""
        with self._reading(self.result, "delete it to finish the run again"):
            try:
                content: dict[str, Any] = parse_text(read_text(self.result))
            except (FileNotFoundError, NotADirectoryError):
                return None
            parse_outcome(self.result_kind, content, self.id)
            return content

    def save_state(self, state: dict[str, Any]) -> None:
        """Write a checkpoint in place of the last one."""
        self._save(self.last, state)

    def _save(self, path: Path, state: dict[str, Any]) -> None:
        content = io.BytesIO()  # so that a full disk is reported by the system: torch's own message does not say it
        torch.save(state, content)
        self._write(path, lambda file: file.write_bytes(content.getbuffer()))

    def load_state(self) -> Checkpoint | None:
        """The last checkpoint; None if there is none."""
        return _load(self.last, _checkpoint) if self.last.exists() else None

    def save_best(self, model: nn.Module) -> None:
        """Write the network to a file: a sparse one as `dctps.save` does, a dense one as plain safetensors."""
        if any(isinstance(module, DpsLayer | SparseBatchNorm) for module in model.modules()):
            with self._writing(self.best):
                save(model, self.best)  # atomic by itself
            return
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        self._write(self.best, lambda file: file.write_bytes(serialize(state)))

    def save_result(self, result: dict[str, Any]) -> None:
        """Write the result, which finishes the run."""
        self._write(self.result, lambda file: file.write_text(json.dumps(result, indent=1) + "\n"))

    def keep_metrics_before(self, epoch: int) -> None:
        """Drop the metrics of this and later epochs, which are trained again."""
        kept = [json.dumps(vars(row)) for row in self.read_metrics() if row.epoch < epoch]
        self._write(self.metrics, lambda file: file.write_text("".join(f"{line}\n" for line in kept)))

    def read_metrics(self) -> list[Any]:
        """The metrics epoch by epoch; a last line that a kill has cut short is left out."""
        with self._reading(self.metrics, "delete it to go on without these metrics"):
            try:
                return parse_metrics(read_lines(self.metrics), self.metrics_kind)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Add the metrics of an epoch."""
        with self._writing(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        with self._writing(path):
            write_atomically(path, write)

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Turn an error of the system while writing `path` into a `RunError`."""
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror or error}; {self.kept()}") from error

    @contextlib.contextmanager
    def _reading(self, path: Path, advice: str) -> Iterator[None]:
        """Turn an error while reading `path` into a `RunError`; advice: what to do with a damaged file."""
        try:
            yield
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise RunError(f"{path} is damaged ({error}); {advice}") from error

    def kept(self) -> str:
        """Which checkpoint there is to go on from, for error messages."""
        return f"the last good checkpoint is {self.last}" if self.last.exists() else "there is no checkpoint yet"


class Run(RunFolder):
    """The folder of a run by the paper's protocol."""

    settings_kind, metrics_kind, result_kind = Settings, EpochMetrics, TrainingResult

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rewind = folder / "rewind.pt"  # the network from which later rounds of lottery tickets start
        self.supports = folder / "supports.safetensors"
        self.failure = folder / "failure.json"  # says why there is no result

    def settings(self) -> Settings:
        """The settings in config.json; `RunError` if it cannot be read."""
        settings: Settings = self.read_settings()
        return settings

    def written(self) -> list[Path]:
        """The files that only a process writes which has locked the folder."""
        return [*super().written(), self.rewind]

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other drivers from this run, which may be trained in another process or on another machine."""
        with self._flock("claim"):
            yield

    def save_rewind(self, state: dict[str, Any]) -> None:
        """Write the state of the network from which later rounds of lottery tickets start."""
        self._save(self.rewind, state)

    def load_rewind(self) -> dict[str, Any]:
        """The state of the network from which later rounds of lottery tickets start."""
        return _load(self.rewind, parse_network)

    def save_supports(self, model: nn.Module) -> None:
        """Write where the weights of a network are, for other tasks that need the same network."""
        layers = {f"{n}.positions": m.positions.cpu() for n, m in model.named_modules() if isinstance(m, DpsLayer)}
        if layers:
            self._write(self.supports, lambda file: file.write_bytes(serialize(layers)))

    def load_supports(self) -> dict[str, torch.Tensor] | None:
        """The positions that `save_supports` wrote; None if the run has no result."""
        if not (self.supports.exists() and self.result.exists()):
            return None
        try:
            return deserialize(self.supports.read_bytes())
        except Exception as error:
            raise RunError(f"{self.supports} is damaged ({error}); delete {self.folder} to make it again") from error

    def take_over(self, other: "Run") -> None:
        """Take the best network and the metrics of another run, which this one continues."""
        for mine, theirs in ((self.best, other.best), (self.metrics, other.metrics)):
            try:
                content = theirs.read_bytes()
            except OSError as error:
                raise RunError(f"cannot read {theirs}: {error.strerror}; train without --continue-from") from error
            self._write(mine, lambda file, content=content: file.write_bytes(content))  # type: ignore[misc]

    def save_failure(self, failure: dict[str, Any]) -> None:
        """Write why there is no result."""
        self._write(self.failure, lambda file: file.write_text(json.dumps(failure, indent=1) + "\n"))


def parse_metrics(lines: Sequence[str], kind: type[Any] = EpochMetrics) -> list[Any]:
    """The rows in the lines of metrics.jsonl; RecordError, with the line, if there is something else."""
    rows = list[Any]()
    for number, line in enumerate(lines, 1):
        try:
            rows.append(parse(kind, parse_text(line)))
            if len(rows) > 1 and rows[-1].epoch <= rows[-2].epoch:
                raise RecordError(f"is {rows[-1].epoch}, after {rows[-2].epoch}", ".epoch")
        except RecordError as error:
            raise RecordError(str(error), f"line {number}:") from None
    return rows


def load_torch_file(path: Path) -> Checkpoint | dict[str, Any]:
    """What is in a last.pt, or the network in a rewind.pt; `RunError` if it is neither."""
    return _load(path, lambda content: _checkpoint(content) if "progress" in content else parse_network(content))


def _checkpoint(content: Any) -> Checkpoint:
    return parse(Checkpoint, content)


def _load(path: Path, check: Callable[[Any], T]) -> T:
    try:
        return check(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file can raise nearly anything
        raise RunError(f"{path} is damaged ({error}); delete it to start this run again") from error
