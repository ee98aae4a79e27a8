"""`dctps bench --instruction-set`: torch and our kernels obey, and whoever would not is refused."""

import csv
import os
import subprocess
import sys

import pytest
import torch

from dctps.base import machine
from dctps.bench import figures, limits, names
from dctps.bench.subjects import Layers, Scaling, Steps
from dctps.cli import main, measure
from dctps.ops import native
from helpers.processes import environment

TINY = {
    "layers": "--model lenet --density 0.05 --batch 2 --repeats 1",
    "step": "--model lenet --density 0.05 --offset dct none --batch 2 --steps 1 --warmup 1",
    "scaling": "--sizes 8 --channels 4 --fixed-size 8 --fixed-channels 4 --densities 0.5 --batch 2 --repeats 1",
}
HAS_AVX2 = {native.instruction_set(), machine.torch_instruction_set()} <= {"avx2", "avx512"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setenv("DCTPS_TUNE", "0")
    monkeypatch.setattr(measure, "keep_memory", lambda: True)
    monkeypatch.setattr(figures, "available", lambda: False)
    for name in limits.VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def said(monkeypatch):
    """Let torch and our kernels say what they compute with."""

    def say(ours, torchs):
        monkeypatch.setattr(native, "instruction_set", lambda: ours)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: torchs)

    return say


@pytest.mark.process
@pytest.mark.skipif(not HAS_AVX2, reason="needs AVX2 and the native kernels")
@pytest.mark.parametrize("subject", TINY)
def test_torch_its_libraries_and_our_kernels_obey(subject, tmp_path):
    command = [sys.executable, "-m", "dctps", "bench", subject, *TINY[subject].split(), "--out", str(tmp_path)]
    variables = {**environment(), "DCTPS_CACHE": str(tmp_path), "ONEDNN_VERBOSE": "1"}
    run = subprocess.run(
        [*command, "--instruction-set", "avx2"], env=variables, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stderr
    (path,) = tmp_path.glob("*.csv")
    assert path.stem.endswith("-avx2")
    with path.open(newline="") as file:
        assert {(row["instruction_set"], row["torch_instruction_set"]) for row in csv.DictReader(file)} == {
            ("avx2", "avx2")
        }
    assert "cpu,isa:Intel AVX2\n" in run.stdout
    assert "jit:avx512" not in run.stdout
    assert run.stdout.count("sparseprop is left out: --instruction-set does not limit it") == (subject == "step")


def test_every_library_has_its_limit(monkeypatch):
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        patch.setattr(os, "environ", {"MKL_ENABLE_INSTRUCTIONS": "AVX512"})
        limits.limit(None)
        assert os.environ == {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}
        limits.limit("avx2")
        assert os.environ == {
            **{"DCTPS_ISA": "avx2", "ATEN_CPU_CAPABILITY": "avx2"},
            **{"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        }


def test_nothing_is_measured_once_torch_is_there(tmp_path, capsys):
    assert main(["bench", "step", *TINY["step"].split(), "--out", str(tmp_path), "--instruction-set", "avx2"]) == 2
    assert "has to be set before torch is imported" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert not set(limits.VARIABLES) & set(os.environ)


def test_the_best_instruction_set_needs_no_limit_but_must_be_there(said, tmp_path, monkeypatch, capsys):
    asked = ["bench", "layers", *TINY["layers"].split(), "--out", str(tmp_path), "--instruction-set", "avx512"]
    said("avx512", "AVX512")
    assert main(asked) == 0
    (path,) = tmp_path.iterdir()
    assert path.stem.endswith("-avx512")
    path.unlink()
    said("avx2", "AVX2")
    assert main(asked) == 2
    assert "torch computes with avx2, our kernels with avx2" in capsys.readouterr().err
    said("avx512", "AVX512")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # which torch does not tell
    assert main(asked) == 2
    assert "limited by ONEDNN_MAX_CPU_ISA=AVX2" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("ours", "torchs"), [("avx512", "AVX2"), ("avx2", "AVX512"), ("none", "AVX2")])
def test_a_limit_that_does_not_hold_is_an_error(ours, torchs, said):
    said(ours, torchs)
    limits.check(None)
    with pytest.raises(ValueError, match=f"torch computes with {torchs.lower()}, our kernels with {ours}"):
        limits.check("avx2")
    said("avx2", "AVX2")
    limits.check("avx2")


@pytest.mark.parametrize("peer", ["dense_compiled", "onnxruntime", "openvino", "sparseprop", "sparselab"])
def test_peers_that_cannot_be_limited_are_refused(peer):
    with pytest.raises(ValueError, match=f"does not limit {peer}; leave it out of --peers"):
        limits.limited_steps(Steps(peers=("published", peer)), print)


def test_another_version_is_refused(said, tmp_path, capsys):
    said("avx512", "AVX512")
    asked = ["bench", "step", "--model", "lenet", "--against", "HEAD", "--out", str(tmp_path)]
    assert main([*asked, "--instruction-set", "avx512"]) == 2
    assert "does not limit the processes that --against starts" in capsys.readouterr().err


def test_peers_that_nobody_named_are_left_out_with_a_word():
    words = []
    assert limits.limited_steps(Steps(offsets=("dct", "none")), words.append).peers == ("published",)
    assert words == ["sparseprop is left out: --instruction-set does not limit it"]
    assert limits.limited_steps(Steps(peers=()), words.append).peers == ()
    assert len(words) == 1


def test_limited_tables_have_names_of_their_own():
    assert names.step_name(Steps(width=16), "avx2") == "bench-step-resnet18-dct-1e-2+1e-3-b128-width-16-avx2"
    assert names.layers_name(Layers(), "avx2") == "bench-layers-resnet18-dct-1e-3-b32-avx2"
    assert names.scaling_name(Scaling(), "avx2") == "bench-scaling-dct-avx2"
