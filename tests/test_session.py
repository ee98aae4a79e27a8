"""How a run begins and goes on: its state is read once, and nobody else trains in its folder meanwhile."""

import dataclasses

import pytest

from dctps.train import fit, session
from dctps.train.loop import Trainer
from dctps.train.runs import Busy, Run
from helpers.marks import needs_digits
from helpers.runs import SMALL, runtime

pytestmark = needs_digits
SHORT = dataclasses.replace(SMALL, epochs=1)


def test_a_run_that_goes_on_reads_its_state_once(tmp_path, monkeypatch):
    fit(SHORT, runtime(tmp_path))
    run, read, reads = Run.at(SHORT, tmp_path), Run.load_state, []
    run.result.unlink()

    def locked_read(self):
        reads.append(self.folder)
        with pytest.raises(Busy), Run(self.folder).locked():
            pass
        return read(self)

    monkeypatch.setattr(Run, "load_state", locked_read)
    fit(SHORT, runtime(tmp_path))
    assert reads == [run.folder]


def test_a_folder_that_another_process_trained_in_meanwhile_is_left_alone(tmp_path, monkeypatch):
    prepare = session.prepare

    def prepare_slowly(*arguments, **options):
        if not Run.at(SHORT, tmp_path).folder.exists():
            with monkeypatch.context() as patch:
                patch.setattr(session, "prepare", prepare)
                fit(SHORT, runtime(tmp_path))
        return prepare(*arguments, **options)

    monkeypatch.setattr(session, "prepare", prepare_slowly)
    with pytest.raises(Busy, match=r"another process has trained in .* meanwhile"):
        fit(SHORT, runtime(tmp_path))
    monkeypatch.setattr(Trainer, "train", lambda self: pytest.fail("trained again"))
    assert fit(SHORT, runtime(tmp_path))["accuracy"]["best_epoch"] == 0


def test_the_folder_of_a_run_is_not_made_by_looking(tmp_path):
    run = Run.at(SHORT, tmp_path / "runs")
    assert (run.id, run.folder.parent) == (run.folder.name, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    assert Run.open(SHORT, tmp_path / "runs").folder == run.folder
    assert run.folder.is_dir()
