"""What people see of a sweep."""

import dataclasses

import pytest

from dctps.experiments.board import Board, describe
from dctps.experiments.cells import Cell
from dctps.experiments.events import ENDED, EPOCH, STARTED, Event
from dctps.experiments.perform import claimed, note_failure
from dctps.train.settings import Settings
from helpers.pages import training_result

CELLS = [
    Cell(Settings(density=density, epochs=4, seed=seed), panel="net", line="DCTpS")
    for density in (0.05, 0.001)
    for seed in (0, 1)
]


@pytest.fixture
def board(tmp_path):
    return Board(CELLS, tmp_path)


def finish(cell, runs, status=None):
    with claimed(cell, runs) as run:
        if status is None:
            run.save_result(training_result(cell.settings))
        else:
            note_failure(cell, run, status, "because")


def counts(board):
    table = board._table()
    return {column.header: next(iter(column.cells)) for column in table.columns}


def test_a_cell_in_words():
    assert describe(CELLS[2]) == "net, DCTpS, 0.1 %, seed 0"
    assert describe(Cell(Settings(seed=3))) == "seed 3"


def test_cells_are_counted_by_what_became_of_them(board, tmp_path):
    with board:
        board(Event(CELLS[0], STARTED))
        assert counts(board)["running"] == "1"
        board(Event(CELLS[0], EPOCH, {"epoch": 1}))
        assert "0.5 of 4 runs" in board._table().title
        finish(CELLS[0], tmp_path)
        board(Event(CELLS[0], ENDED))
        finish(CELLS[1], tmp_path, "collapsed")
        board(Event(CELLS[1], ENDED))
        finish(CELLS[2], tmp_path, "failed")
        board(Event(CELLS[2], ENDED))
    seen = counts(board)
    assert (seen["done"], seen["collapsed"], seen["failed"], seen["waiting"]) == ("1", "1", "1", "1")


def test_lines_of_text_without_a_terminal(board, tmp_path, capsys):
    with board:
        finish(CELLS[1], tmp_path, "failed")
        board(Event(CELLS[1], ENDED))
    out = capsys.readouterr().out
    assert "4 runs, 0 of them done before" in out
    assert "1/4  net, DCTpS, 5 %, seed 1: failed (because)" in out


def test_what_was_done_before_is_seen(tmp_path):
    finish(CELLS[0], tmp_path)
    board = Board([*CELLS, dataclasses.replace(CELLS[0], panel="again")], tmp_path)
    assert board.before == 1
    assert len(board.cells) == 4
