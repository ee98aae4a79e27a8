"""The facts of data sets: one registry knows them, and a new entry is known everywhere."""

import pytest
import torch

from dctps.analysis.figures.network_costs import layers_of
from dctps.analysis.page.costs import operations
from dctps.analysis.page.panels import accuracy_panels
from dctps.data import DATASETS, Dataset, DatasetInfo, load
from dctps.data.dataset import Remote
from dctps.data.download import get
from dctps.experiments.cells import Cell
from dctps.experiments.estimate import cell_seconds, key_of, needed_settings
from dctps.experiments.paper import panel
from dctps.experiments.results import Row
from dctps.experiments.step_times import step_seconds
from dctps.experiments.summary import chance
from dctps.models import build
from dctps.nn.costs import count_ops
from dctps.train.settings import Settings
from helpers.pages import training_result


def toy_data(root):
    images, labels = torch.zeros(6, 2, 12, 12, dtype=torch.uint8), torch.arange(6) % 4
    return Dataset("toy", images, labels, images, labels, classes=4, mean=(0.5, 0.5), std=(0.5, 0.5))


@pytest.fixture
def toy(monkeypatch):
    info = DatasetInfo("toy", "Toy Images", 2, 12, 4, 6, toy_data, (Remote("http://127.0.0.1:1/toy.bin", "0" * 32),))
    monkeypatch.setitem(DATASETS, "toy", info)
    return Settings(model="small_cnn", data="toy", epochs=3)


def test_names_are_the_keys():
    assert all(info.name == name for name, info in DATASETS.items())
    assert len({info.title for info in DATASETS.values()}) == len(DATASETS)


@pytest.mark.parametrize("name", ["digits", "digits32"])
def test_facts_are_those_of_the_loaded_images(name, tmp_path):
    data, info = load(name, tmp_path), DATASETS[name]
    assert data.train_images.shape == (info.training_images, *info.image_shape)
    assert data.classes == info.classes
    assert torch.equal(info(tmp_path).train_images, data.train_images)


def test_a_new_data_set_is_loaded_and_fetched_by_its_name(toy, tmp_path):
    assert load("toy", tmp_path).train_images.shape == (6, *DATASETS["toy"].image_shape)
    with pytest.raises(ValueError, match=r"cannot fetch http://127\.0\.0\.1:1/toy\.bin"):
        get("toy", tmp_path)


def test_chance_and_titles_of_a_new_data_set(toy):
    assert chance("toy") == 0.25
    assert panel(toy) == "small CNN, Toy Images"
    row = Row("x", None, "train", "done", toy, training_result(toy))
    (shown,) = accuracy_panels([row])
    assert (shown["title"], shown["chance"]) == ("small CNN, Toy Images, 3 epochs", 0.25)


def test_costs_of_a_new_data_set(toy):
    network = build("small_cnn", 4, in_channels=2)
    expected = count_ops(network, (2, 12, 12))
    layers = layers_of("small_cnn", "toy", None)
    assert sum(layer.products * layer.size for layer in layers) == expected.dense
    assert operations([Row("x", None, "train", "done", toy, training_result(toy))]) == [expected.performed]


def test_the_estimate_of_a_new_data_set(toy):
    (needed,) = needed_settings([Cell(toy)])
    assert needed.data == "toy"
    assert step_seconds(needed) > 0  # two channels, 12 x 12 pixels
    images = 6 * 0.9 + (6 * 0.1 + 6 * 0.2 * 0.5) / 3
    assert cell_seconds(Cell(toy), {key_of(needed): 0.5}) == pytest.approx(3 * images * 0.5 / toy.batch_size)


def test_multiply_adds_of_mnist_are_those_of_its_padded_images():
    settings = Settings(model="lenet", data="mnist")
    network = build("lenet", 10, in_channels=1)
    row = Row("x", None, "train", "done", settings, training_result(settings))
    assert operations([row]) == [count_ops(network, (1, 32, 32)).performed]
