"""Pages of help: they come without torch, name what there is, keep their lines, and their examples work."""

import ast
import contextlib
import dataclasses
import inspect
import itertools
import re
import subprocess
import sys

import pytest
import tyro

import dctps
from dctps.analysis.page.content import CURVES
from dctps.bench import subjects
from dctps.cli import COMMANDS, bench, finetune, main, reproduce, sweep, train
from dctps.cli.flags import WIDEST, description
from dctps.cli.report import report
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.grids import read_grid
from dctps.methods.rewiring import REWIRINGS
from dctps.ops.functional import BACKENDS
from dctps.train.beforehand import check_beforehand
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.settings import PRESETS, Runtime, Settings

PAGES = ["", *COMMANDS, "data get", "bench layers", "bench step", "bench scaling"]


def page(name: str, capsys) -> str:
    """A page of help."""
    with contextlib.suppress(SystemExit):
        main([*name.split(), "--help"])
    return capsys.readouterr().out


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w:/-]+", text))


@pytest.mark.process
def test_help_and_version_come_without_torch():
    code = f"""
import sys
from dctps.cli import main
for page in [*{PAGES!r}, None]:
    try:
        main(["--version"] if page is None else [*page.split(), "--help"])
    except SystemExit:
        pass
    assert "torch" not in sys.modules, page
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith(f"dctps {dctps.__version__}\n")


@pytest.mark.parametrize(
    ("name", "registry"),
    [
        ("train", dctps.models.MODELS),
        ("train", dctps.data.DATASETS),
        ("train", {**dctps.OFFSETS, "none": None}),
        ("train", dctps.ALLOCATIONS),
        ("train", {**dctps.METHODS, "imp": None}),
        ("train", REWIRINGS),
        ("train", dctps.PROJECTIONS),
        ("train", dctps.ALPHAS),
        ("train", {**BACKENDS, "auto": None}),
        ("train", PRESETS),
        ("finetune", dctps.ALLOCATIONS),
        ("reproduce", EXPERIMENTS),
        ("data get", {name: info for name, info in dctps.data.DATASETS.items() if info.files}),
        ("data", {name: info for name, info in dctps.data.DATASETS.items() if info.files}),
    ],
)
def test_help_names_all_entries(name, registry, capsys):
    assert set(registry) <= words(page(name, capsys))


def test_defaults_that_stand_twice_are_the_same():
    assert inspect.signature(report).parameters["curves"].default == CURVES


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", [page for page in PAGES if page not in ("", "bench", "data")])
def test_no_line_is_wider_than_the_terminal(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = page(name, capsys).splitlines()[1:]  # without the usage, which tyro writes
    for line in itertools.takewhile(lambda line: not re.search("(positional arguments|options) ", line), lines):
        assert len(line) <= (WIDEST if line.startswith("  ") else columns), line  # examples are not broken


def test_a_description_keeps_paragraphs_and_examples(monkeypatch):
    def documented():
        """Do something with many words that do not fit into a terminal of forty columns.

          dctps first
          dctps second

        Then stop.

        Args:
            nothing: at all
        """

    monkeypatch.setenv("COLUMNS", "40")
    assert description(documented) == (
        "Do something with many words that do not\nfit into a terminal of forty columns.\n\n"
        "  dctps first\n  dctps second\n\nThen stop."
    )


@pytest.mark.parametrize(
    "flags",
    [
        *(
            Settings,
            FinetuneSettings,
            Runtime,
            train.Start,
            sweep.Machines,
            sweep.Place,
            sweep.Arguments,
            reproduce.Arguments,
        ),
        *(bench.Machine, subjects.Layers, subjects.Steps, subjects.Scaling),
    ],
    ids=lambda flags: f"{flags.__module__}.{flags.__name__}",
)
def test_a_flag_is_described_and_no_line_of_it_breaks_inside_a_sentence(flags):
    """tyro shows the lines of a field's docstring as they are."""
    body = ast.parse(inspect.getsource(flags)).body[0].body
    documented = {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    nested = {field.name for field in dataclasses.fields(flags) if dataclasses.is_dataclass(_type(field))}
    assert set(documented) | nested == {field.name for field in dataclasses.fields(flags)}
    for name, text in documented.items():
        for line in text.splitlines()[:-1]:
            assert line.rstrip().endswith((".", ":", ",", ";")), f"{name}: {line}"


def _type(field):
    return getattr(field.type, "__origin__", field.type)


# --- pipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("name", ["", "train", "bench"])
def test_a_pipe_that_closes_early_is_no_error(name):
    command = [sys.executable, "-m", "dctps", *name.split(), "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # before a word is written
    assert process.stderr.read() == b""
    assert process.wait() == 141


@pytest.mark.slow  # a step of each network is measured
def test_a_list_for_a_pipe_that_closes_early_is_no_error():
    command = [sys.executable, "-m", "dctps", "reproduce", "--list", "--scale", "smoke"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() in (1, 141)  # rich ends the process with 1


# --- examples -------------------------------------------------------------------------------------------------------


def examples(name, capsys):
    """The command lines in a page of help, without what is said about them."""
    lines = [line.strip() for line in page(name, capsys).splitlines() if line.startswith("  dctps ")]
    return [re.split(r"\s{2,}", line)[0].split()[1:] for line in lines]


def test_examples_of_trainings(capsys):
    found = [example for name in ("", "train") for example in examples(name, capsys) if example[0] == "train"]
    assert len(found) >= 4
    for example in found:
        first = train._parse(example[1:], Settings())
        chosen = train._parse(example[1:], train._base(first.start))
        check_beforehand(chosen.settings, chosen.runtime)


def test_the_grid_in_the_help_of_sweep_is_one(tmp_path, capsys):
    lines = [line[2:] for line in page("sweep", capsys).splitlines() if re.match(r"  (\[|\w+ = )", line)]
    (tmp_path / "grid.toml").write_text("\n".join(lines))
    assert len(read_grid(tmp_path / "grid.toml")) == 8
    for example in examples("sweep", capsys):
        tyro.cli(sweep.Arguments, args=example[1:])


def test_other_examples_are_read(capsys):
    found = [example for name in PAGES for example in examples(name, capsys)]
    for command, *arguments in found:
        assert command in COMMANDS
        if command == "reproduce":
            given = tyro.cli(reproduce.Arguments, args=arguments)
            assert given.list or given.name in EXPERIMENTS
        if command == "bench" and arguments[0] in bench.SUBJECTS:
            tyro.cli(bench.SUBJECTS[arguments[0]], args=arguments[1:]).asked.check()
        if command == "finetune":
            tyro.cli(finetune.Arguments, args=arguments)
        if command == "data":
            assert arguments[0] == "get"
            assert arguments[1] in (*dctps.data.DATASETS, "NAME")
