"""What `dctps inspect PATH` prints: what a file or a run folder is, what is in it, and where its bytes go."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open

from dctps.base.words import duration, percent, printable
from dctps.checkpoint.contents import POSITIONS, Contents, read
from dctps.experiments.results import Broken, Row, read_run
from dctps.experiments.status import DONE
from dctps.experiments.tasks.training import TRAINING
from dctps.train.finetuning.plan import words
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.records import Checkpoint, Progress, epoch_number
from dctps.train.reporter import settings_line
from dctps.train.result import summary
from dctps.train.runs import Run, RunError, RunFolder, load_torch_file

Tensors = dict[str, tuple[str, tuple[int, ...], int]]  # of each tensor: dtype, shape, bytes


def show(path: Path) -> None:
    """Print what a file or the folder of a run is, what is in it, and how many bytes each part takes."""
    console = Console(highlight=False)
    for part in _parts(path):
        console.print(printable(part) if isinstance(part, str) else part, markup=False, soft_wrap=isinstance(part, str))


def _parts(path: Path) -> Iterator[str | Table]:
    if path.is_dir() and path.resolve().name.startswith(FinetuneRun.prefix):
        yield from _finetuning_parts(FinetuneRun(path.resolve()))
    elif path.is_dir():
        yield from _run_parts(Run(path))
    elif path.is_file() and zipfile.is_zipfile(path):
        yield from _torch_file_parts(path)
    elif path.is_file() and (tensors := _plain_tensors(path)) is not None:
        yield f"{path}: a safetensors file without a manifest of dctps, such as the network of a dense run"
        yield _tensors(tensors)
    else:
        contents = read(path)
        what = "a network" if contents.base is None else f"an adapter (base {contents.base})"
        yield f"{path}: {what} of dctps.save, with {len(contents.entries)} sparse layers"
        yield _layers(contents)
        yield _bytes(contents, path.stat().st_size)


# --- runs -----------------------------------------------------------------------------------------------------------


def _run_parts(run: Run) -> Iterator[str | Table]:
    found = read_run(run.folder)
    if found is None:
        raise ValueError(f"{run.folder} is not the folder of a run; dctps report shows a folder of runs")
    if isinstance(found, Broken):
        raise RunError(f"{run.folder / found.reason}")
    yield f"{run.folder}: the folder of a run{f' (task {found.task})' if isinstance(found, Row) else ''}"
    yield _outcome(run, found) if isinstance(found, Row) else _unfinished(run)
    yield settings_line(found.settings if isinstance(found, Row) else run.settings())
    yield _files(run.folder)


def _finetuning_parts(run: FinetuneRun) -> Iterator[str | Table]:
    settings, result = run.read_settings(), run.finished()
    yield f"{run.folder}: the folder of a fine-tuning"
    yield _unfinished(run) if result is None else f"finished in {duration(result['seconds'])}: {words(result)}"
    yield settings_line(settings)
    yield _files(run.folder)


def _outcome(run: Run, row: Row) -> str:
    if row.status != DONE:
        return f"{row.status}: {row.reason}"
    if row.task != TRAINING.name:
        return f"finished at {row.content['finished']}"
    weights, seconds = row.content["weights"]["got"], duration(row.content["seconds"])
    return f"finished: {summary(row.content)}; {weights:,} weights, trained in {seconds}"


def _unfinished(run: RunFolder) -> str:
    saved = run.load_state()
    return f"not finished: {_progress(saved.progress) if saved else 'no epoch is over'}"


def _progress(progress: Progress) -> str:
    """How far a training is, in words."""
    steps = f" and {progress.step} steps" if progress.step else ""
    done = f"{progress.epoch} epochs{steps} done in {duration(progress.seconds)}"
    if progress.best_epoch < 0:
        return done
    best, test = percent(progress.best_validation), percent(progress.test_at_best)
    return f"{done}; best validation accuracy {best} after epoch {epoch_number(progress.best_epoch)}, test {test}"


def _files(folder: Path) -> Table:
    table = Table("file", box=SIMPLE_HEAD)
    table.add_column("bytes", justify="right")
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        table.add_row(printable(str(file.relative_to(folder))), f"{file.stat().st_size:,}")
    return table


# --- states of trainings --------------------------------------------------------------------------------------------


def _torch_file_parts(path: Path) -> Iterator[str | Table]:
    content = load_torch_file(path)
    if isinstance(content, Checkpoint):
        yield f"{path}: the state of the run {content.id}, from which it goes on"
        yield _progress(content.progress)
        yield _tensors(_described(content.model))
    else:
        yield f"{path}: the state of a network, from which later rounds of lottery tickets start"
        yield _tensors(_described(content))


def _described(state: dict[str, Any]) -> Tensors:
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {n: (str(t.dtype).removeprefix("torch."), tuple(t.shape), t.nbytes) for n, t in tensors.items()}


# --- tensors by name ------------------------------------------------------------------------------------------------


def _plain_tensors(path: Path) -> Tensors | None:
    """The tensors of a safetensors file without a manifest of ours; None if it is something else."""
    try:
        with safe_open(path, framework="pt") as file:
            if "dctps" in (file.metadata() or {}):
                return None
            return _described({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError):
        return None


def _tensors(tensors: Tensors) -> Table:
    table = Table("tensor", box=SIMPLE_HEAD, show_footer=True)
    table.columns[0].footer = "total"
    table.add_column("shape", no_wrap=True)
    table.add_column("type")
    table.add_column("bytes", f"{sum(size for _, _, size in tensors.values()):,}", justify="right")
    for name, (dtype, shape, size) in tensors.items():
        table.add_row(printable(name), " x ".join(map(str, shape)) or "-", dtype, f"{size:,}")
    return table


# --- files of dctps.save --------------------------------------------------------------------------------------------


def _layers(contents: Contents) -> Table:
    table = Table("layer", box=SIMPLE_HEAD)
    table.add_column("shape", no_wrap=True)
    for column in ("values", "density"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("offset", "alpha", "support"):
        table.add_column(column)
    for entry in contents.entries:
        support, alpha = contents.supports[entry.name], contents.alphas.get(entry.name)
        shown = "-" if alpha is None else f"{alpha.item():.4g}{'' if entry.train_alpha else ' (fixed)'}"
        places = "positions" if entry.seed is None else f"seed {entry.seed}"
        shape = " x ".join(map(str, entry.shape))
        row = (entry.name or "(itself)", shape, f"{entry.nnz:,}", percent(support.density), entry.offset or "none")
        table.add_row(*row, shown, places)
    return table


def _bytes(contents: Contents, total: int) -> Table:
    parts = part_bytes(contents, total)
    table = Table("part", box=SIMPLE_HEAD, show_footer=True)
    table.add_column("bytes", f"{total:,}", justify="right")
    table.columns[0].footer = "total"
    for name, size in parts.items():
        table.add_row(name, f"{size:,}")
    return table


def part_bytes(contents: Contents, total: int) -> dict[str, int]:
    """Bytes of the values, positions, alphas, biases of sparse layers, BatchNorm, the rest and the header."""
    sparse = {f"{entry.name}." if entry.name else "" for entry in contents.entries}
    normed = {n.removesuffix("running_mean") for n in contents.tensors if n.endswith(".running_mean")}
    parts = dict.fromkeys(("values", "positions", "alpha", "bias", "BatchNorm", "other parameters and buffers"), 0)
    for name, tensor in contents.tensors.items():
        prefix = name[: name.rfind(".") + 1]
        if name == POSITIONS or name.startswith("dctps/"):
            part = name.split("/")[1]
        elif prefix in normed:
            part = "BatchNorm"
        else:
            part = "bias" if prefix in sparse else "other parameters and buffers"
        parts[part] += tensor.numel() * tensor.element_size()
    return {**parts, "header": total - sum(parts.values())}
