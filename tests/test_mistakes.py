"""The mistakes of a first hour: each is told at once, in one line that says what is possible."""

import dataclasses
import json
import sys
import tomllib
from pathlib import Path

import pytest
from torch import nn

import dctps
from dctps.base.extras import EXTRAS, missing
from dctps.base.registry import lookup, unknown
from dctps.base.user_code import call
from dctps.cli import main
from dctps.experiments.board import Board, describe
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.train.settings import Runtime, Settings
from helpers.runs import SMALL

ROOT = Path(__file__).parents[1]
USER_CODE = """
from torch import nn

def raises():
    raise RuntimeError("no cheese\\n in the house")

def wrong_layer():
    return nn.Linear("many", 3)

def wants_more(cheese):
    return nn.Flatten()
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """A newcomer's folder, without data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DCTPS_DATA", str(tmp_path / "data"))
    (tmp_path / "first_hour.py").write_text(USER_CODE)
    yield
    sys.modules.pop("first_hour", None)


def told(capsys, *arguments: str) -> str:
    """What a command that cannot work says: one line, before anything is made."""
    before = sorted(Path().iterdir())
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dctps: ")
    assert captured.err.count("\n") == 1
    assert [path for path in sorted(Path().iterdir()) if path.name != "__pycache__"] == before
    return captured.err


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train --model lenet5", "unknown model 'lenet5'; choose one of: small_cnn, lenet, "),
        ("train --model lenet5", "; the nearest are lenet, "),
        ("train --data cifar --model lenet", "or folder:PATH; the nearest are cifar10, cifar100"),
        (
            "train --offset fft",
            "unknown offset 'fft'; choose one of: dct, dct_signed, dst, hartley, hadamard, srht, rotation, none",
        ),
        ("train --allocation elp", "unknown allocation 'elp'"),
        ("train --method snap --density 0.1", "unknown method 'snap'"),
        ("train --projection thin --density 0.1", "unknown projection 'thin'"),
        (
            "train --alpha papper",
            "unknown alpha 'papper'; choose one of: paper, exact, preserve, leverage, or leverage/LR/STEPS; "
            "the nearest is paper",
        ),
        ("train --backend gpu", "unknown backend"),
        ("trian", "the nearest is train"),
        ("reproduce lenett", "; the nearest is lenet"),
        ("data get cifar", "; the nearest are cifar10, cifar100"),
        ("bench layers --model lenet5", "or say package.module:function; the nearest are lenet, "),
        ("train --config /nope", "there is no file /nope to read settings from"),
        ("train --config /", "/ is a folder, not a file to read settings from"),
        ("sweep /nope.toml", "there is no file /nope.toml to read a grid from"),
    ],
)
def test_names_that_nobody_knows(arguments, words, capsys):
    assert words in told(capsys, *arguments.split())


def test_an_unknown_name_is_told_with_the_nearest():
    assert unknown("model", "x", ["lenet"]) == "unknown model 'x'; choose one of: lenet"
    with pytest.raises(ValueError, match=r"choose one of: lenet, vgg11; the nearest is lenet$"):
        lookup({"lenet": 1, "vgg11": 2}, "Lenet", "model")


def test_an_entry_that_a_user_adds_is_known(monkeypatch, tmp_path):
    build = dctps.models.MODELS["small_cnn"]
    monkeypatch.setitem(dctps.models.MODELS, "mine", build)
    monkeypatch.setitem(dctps.OFFSETS, "my_offset", dctps.TransformOffset("dst", signs="channel"))
    settings = dataclasses.replace(SMALL, model="mine", offset="my_offset", images=60, epochs=1)
    assert dctps.train.fit(settings, Runtime(runs=tmp_path, quiet=True, keep_memory=False))["weights"]["got"] > 0


def test_a_grid_with_an_unknown_name_runs_nothing(capsys):
    settings = {"model": ["small_cnn", "lenet5"], "data": "digits"}
    Path("grid.json").write_text(json.dumps({"settings": settings}))
    assert "unknown model 'lenet5'" in told(capsys, "sweep", "grid.json")


# --- code of the user -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            "raises",
            "cannot build 'first_hour:raises': it raised RuntimeError: no cheese in the house (first_hour.py, line 5)",
        ),
        ("wrong_layer", "(first_hour.py, line 8)"),
        ("wants_more", "cannot build 'first_hour:wants_more' (missing a required argument: 'cheese')"),
        ("nothing", "has no attribute 'nothing'"),
    ],
)
def test_a_builder_that_raises(function, words, capsys):
    arguments = ["train", "--model", f"first_hour:{function}", "--data", "digits"]
    assert words in told(capsys, *arguments)


def test_a_module_that_raises_when_it_is_imported():
    Path("broken_module.py").write_text("1 / 0\n")
    with pytest.raises(
        ValueError, match=r"cannot import 'broken_module:f': ZeroDivisionError: .*broken_module.py, line 1"
    ):
        call("broken_module:f", "a network")


def test_images_that_are_too_small(capsys):
    words = "; digits32 has the same images as 3 x 32 x 32\n"
    assert words in told(capsys, "train", "--model", "lenet", "--data", "digits")


# --- arguments of fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((nn.Linear(2, 2),), "fit builds the network itself, so it takes no Linear"),
        ((nn.Linear(2, 2), Settings()), "fit builds the network itself"),
        ((Runtime(), Settings()), "the first argument of fit is a Settings, not a Runtime"),
        ((Settings(), Settings()), "the second argument of fit is a Runtime, not a Settings"),
        (({"model": "lenet"},), "the first argument of fit is a Settings, not a dict"),
    ],
)
def test_arguments_of_fit(arguments, words):
    with pytest.raises(TypeError, match=r"fit\(Settings") as error:
        dctps.train.fit(*arguments)
    assert words in str(error.value)


def test_paths_may_be_strings():
    runtime = Runtime(runs="somewhere", data_root="~/data")
    assert (runtime.runs, runtime.data_root) == (Path("somewhere"), Path.home() / "data")
    assert Runtime() == Runtime(runs=Path("runs"), data_root=None)
    for wrong in (3, "", None):
        with pytest.raises(ValueError, match=r"runs cannot be .*; it is the path of a folder"):
            Runtime(runs=wrong)


def test_a_string_is_where_runs_go(tmp_path):
    settings = dataclasses.replace(SMALL, images=60, epochs=1)
    dctps.train.fit(settings, Runtime(runs=str(tmp_path / "here"), quiet=True, keep_memory=False))
    assert len(list((tmp_path / "here").iterdir())) == 1


# --- packages that are not installed --------------------------------------------------------------------------------


@pytest.fixture
def absent(monkeypatch):
    """Makes it look as if a module were not installed."""
    return lambda module: monkeypatch.setitem(sys.modules, module, None)


def test_extras_are_those_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in EXTRAS.values():
        assert any(entry.startswith(package) for entry in extras[extra]), package
    ours = {extra for extra in extras if extra not in ("test", "dev", "docs")}
    assert {extra for _, extra in EXTRAS.values()} == ours


def test_the_advice_works_in_a_clone():
    assert missing("PIL", "this") == "this needs pillow; install it in your clone of dctps with: pip install '.[data]'"
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert "dctps[" not in sources
    assert sources.count("pip install '") == 1  # in one place


GRID = {"settings": {"model": "small_cnn", "data": "digits", "seed": [0, 1]}}


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("sklearn", "demo", "demo"),
        ("matplotlib", "demo", "demo"),
        ("sklearn", "train --data digits --model small_cnn", "demo"),
        ("sklearn", "sweep grid.json", "demo"),
        ("sklearn", "reproduce lenet --scale smoke", "demo"),
        ("matplotlib", "reproduce lenet --scale smoke", "figures"),
        ("plotly", "report .", "report"),
        ("ray", "sweep grid.json --engine ray", "ray"),
        ("tensorboard", "train --data digits --model small_cnn --tensorboard", "tensorboard"),
        ("PIL", "train --data tiny_imagenet --model small_cnn", "data"),
        ("PIL", "train --data folder:. --model small_cnn", "data"),
        ("pooch", "data get mnist", "data"),
    ],
)
def test_a_missing_package_is_told_before_the_first_run(module, arguments, extra, absent, capsys):
    Path("grid.json").write_text(json.dumps(GRID))
    absent(module)
    assert f"pip install '.[{extra}]'" in told(capsys, *arguments.split())


# --- none -----------------------------------------------------------------------------------------------------------

NONES = [None, "none", "None"]


@pytest.mark.parametrize("none", NONES)
def test_no_offset_has_one_meaning_in_python(none):
    assert dctps.DpsLinear(4, 3, density=0.5, offset=none).offset is None
    assert dctps.sparsify(nn.Sequential(nn.Linear(4, 3)), 0.5, offset=none)[0].offset is None
    assert Settings(offset=none) == Settings(offset=None)


@pytest.mark.parametrize("none", ["none", "None"])
def test_no_offset_has_one_meaning_in_flags_and_files(none, tmp_path):
    from dctps.bench.subjects import Layers, Scaling, Steps
    from dctps.cli.train import _base, _parse
    from dctps.experiments.grids import read_grid

    assert _parse(["--offset", none], Settings()).settings.offset is None
    assert _parse(["--offset", "none", "--method", none], Settings()).settings.method is None
    for name, text in (("config.toml", f'offset = "{none}"'), ("config.json", json.dumps({"offset": none}))):
        Path(name).write_text(text)
        assert _base(_parse(["--config", name], Settings()).start).offset is None
    Path("grid.toml").write_text(f'[settings]\noffset = ["{none}", "dct_signed"]\n')
    assert [(cell.settings.offset, cell.line) for cell in read_grid(Path("grid.toml"))] == [
        (None, "offset none"),
        ("dct_signed", ""),
    ]
    assert Layers(offset=none).offset == Scaling(offset=none).offset == "none"
    assert Steps(offsets=(none, "dct")).offsets == ("none", "dct")


def test_no_offset_is_measured():
    arguments = "--model small_cnn --input-shape 3 8 8 --repeats 1 --offset None --batch 2 --no-keep-memory"
    assert main(["bench", "layers", *arguments.split()]) == 0
    assert [path.name for path in Path("results").iterdir()] == [
        "bench-layers-small_cnn-none-1e-3-b2-input_shape-3x8x8.csv"
    ]


def test_none_is_among_the_offsets_of_the_error():
    with pytest.raises(ValueError, match="srht, rotation, none, or say transform/order/signs/rows/seed"):
        dctps.DpsLinear(4, 3, density=0.5, offset="fft")


# --- progress -------------------------------------------------------------------------------------------------------


def test_the_progress_of_a_scale_names_the_data_that_are_used(tmp_path):
    experiment = EXPERIMENTS["lenet"]
    smoke, paper = (experiment.cells(experiment.scale(scale)) for scale in ("smoke", "paper"))
    assert describe(smoke[0]) == "LeNet-5, CIFAR-10 (run on digits 32 x 32), dense, seed 0"
    assert describe(paper[0]) == "LeNet-5, CIFAR-10, dense, seed 0"
    first = next(iter(Board(smoke, tmp_path)._table().columns[0].cells))
    assert "(run on digits 32 x 32)" in first
