"""The command as a newcomer runs it."""

import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import dctps
from dctps.checkpoint.contents import read
from dctps.cli import COMMANDS, main
from dctps.cli.inspection import part_bytes
from helpers.checkpoints import trained
from helpers.networks import cnn


@pytest.fixture
def path(tmp_path):
    net = dctps.sparsify(cnn(), 0.1, exclude="6", train_alpha=False)
    net[0].seed = None
    dctps.save(trained(net), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def test_inspect_shows_layers_and_bytes(path, capsys):
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    for word in ("16 x 3 x 3 x 3", "positions", "seed", "(fixed)", "BatchNorm", f"{path.stat().st_size:,}"):
        assert word in out


RUN = Path(__file__).with_name("golden") / "folder-v1" / "dc6bb6422ce9"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("", ["the folder of a run (task train)", "finished: test accuracy 85.83 %", "density=0.02", "metrics.jsonl"]),
        ("last.pt", ["the state of the run dc6bb6422ce9", "3 epochs done", "after epoch 3", "classifier.positions"]),
        ("best.safetensors", ["a network of dctps.save, with 4 sparse layers", "header"]),
        ("../c7ad6a081bef", ["failed: DataError: unknown data set 'nothing'"]),
        ("../counts-dc6bb6422ce9", ["(task counts)", "finished at", "supports.safetensors"]),
        (
            "../counts-dc6bb6422ce9/supports.safetensors",
            ["without a manifest of dctps", "classifier.positions", "2,116"],
        ),
    ],
)
def test_inspect_says_what_it_is(file, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["inspect", str(RUN / file)]) == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out


def test_inspect_of_a_run_under_way(tmp_path, capsys):
    for name in ("config.json", "last.pt"):
        (tmp_path / name).write_bytes((RUN / name).read_bytes())
    assert main(["inspect", str(tmp_path)]) == 0
    assert "not finished: 3 epochs done in 0:00; best validation accuracy 90 % after epoch 3" in capsys.readouterr().out
    (tmp_path / "last.pt").unlink()
    assert main(["inspect", str(tmp_path)]) == 0
    assert "not finished: no epoch is over" in capsys.readouterr().out


def test_inspect_of_dense_networks_and_of_the_start_of_tickets(tmp_path, capsys):
    save_file({"conv.weight": torch.zeros(2, 3)}, tmp_path / "best.safetensors")
    torch.save({"conv.weight": torch.zeros(2, 3)}, tmp_path / "rewind.pt")
    for name, words in (("best.safetensors", "network of a dense run"), ("rewind.pt", "rounds of lottery tickets")):
        assert main(["inspect", str(tmp_path / name)]) == 0
        out = capsys.readouterr().out
        assert words in out
        assert "2 x 3" in out


def test_inspect_of_folders_and_states_that_are_none(tmp_path, capsys):
    torch.save({"progress": 5}, tmp_path / "last.pt")
    for path, words in ((tmp_path, "is not the folder of a run"), (tmp_path / "last.pt", "last.pt is damaged (")):
        assert main(["inspect", str(path)]) == 2
        assert words in capsys.readouterr().err


def test_bytes_of_the_parts_add_up(path):
    total = path.stat().st_size
    parts = part_bytes(read(path), total)
    assert sum(parts.values()) == total
    assert parts["BatchNorm"] == 4 * 16 * 4 + 8  # weight, bias, mean, variance, and the 8-byte counter
    assert parts["alpha"] == 2 * 8
    assert parts["bias"] == 32 * 4
    assert parts["other parameters and buffers"] == (320 + 10) * 4
    assert parts["values"] == 4 * sum(entry.nnz for entry in read(path).entries)


def test_errors_are_one_line_and_exit_2(tmp_path, capsys):
    (tmp_path / "x").write_text("no such format")
    for name in ("missing", "x"):
        assert main(["inspect", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("dctps: ")
        assert error.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"dctps {command}" in capsys.readouterr().out


def test_demo_writes_a_table_and_a_figure(tmp_path, capsys):
    pytest.importorskip("sklearn", reason="needs the demo extra")
    assert main(["demo", "--epochs", "1", "--output", str(tmp_path / "out")]) == 0
    assert "DCTpS" in capsys.readouterr().out
    lines = (tmp_path / "out" / "demo.csv").read_text().splitlines()
    assert len(lines) == 8  # a header, dense, and two methods at three densities
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.process
def test_as_a_module_and_as_a_command():
    module = subprocess.run([sys.executable, "-m", "dctps", "--help"], capture_output=True, text=True, check=True)
    assert "inspect" in module.stdout


@pytest.mark.process
def test_listing_the_commands_imports_none_of_them():
    code = "import sys, dctps.cli; dctps.cli.main(['--help']); "
    code += "print('imported:', *sorted(name for name in sys.modules if name.startswith(('dctps', 'tyro', 'torch'))))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light = ("dctps.base.command_start", "dctps.base.lazy", "dctps.base.registry", "dctps.base.user_code", "dctps.cli")
    assert run.stdout.splitlines()[-1].split() == ["imported:", "dctps", "dctps.base", *light]
    assert all(command.help in run.stdout for command in COMMANDS.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_package_binds_modules_and_not_their_functions(command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert isinstance(getattr(dctps.cli, command), types.ModuleType)
