"""Grids of users: files to cells."""

import json

import pytest

from dctps.experiments.grids import grid, read_grid
from dctps.train.settings import Settings

TOML = """
[settings]
model = "lenet"
density = [0.05, 0.01]
seed = [0, 1, 2]

[[lines]]
name = "DCTpS"
[[lines]]
name = "Random"
offset = "none"
"""


def test_lists_stand_for_all_combinations(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text(TOML)
    cells = read_grid(file)
    assert len(cells) == 12
    assert cells[0].settings == Settings(model="lenet", density=0.05, seed=0)
    assert cells[-1].settings == Settings(model="lenet", density=0.01, seed=2, offset=None)
    assert {cell.line for cell in cells} == {"DCTpS", "Random"}


def test_json_has_the_same_grid(tmp_path):
    file = tmp_path / "grid.json"
    settings = {"model": "lenet", "density": [0.05, None], "milestones": [[1, 2], [3]]}
    file.write_text(json.dumps({"settings": settings}))
    cells = read_grid(file)
    assert [(c.settings.density, c.settings.milestones) for c in cells] == [
        (0.05, (1, 2)),
        (0.05, (3,)),
        (None, (1, 2)),
        (None, (3,)),
    ]


def test_milestones_alone_are_one_setting():
    assert grid({"settings": {"milestones": [5, 9]}})[0].settings.milestones == (5, 9)


def test_the_same_run_comes_once():
    assert len(grid({"settings": {"seed": [1, 1]}, "lines": [{"name": "a"}, {"name": "b"}]})) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "grid.json: "),
        ("[]", "a grid is an object"),
        ('{"setting": {}}', "a grid is an object"),
        ('{"settings": {"modell": "lenet"}}', "unknown settings modell"),
        ('{"settings": {"density": 2}}', "density must be in"),
        ('{"settings": {"seed": []}}', "the grid is empty"),
        ('{"lines": [1]}', "lines a list of objects"),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_file(tmp_path, text, words):
    file = tmp_path / "grid.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"grid\.json") as error:
        read_grid(file)
    assert words in str(error.value)
