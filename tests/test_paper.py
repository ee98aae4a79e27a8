"""The paper's experiments as lists of runs."""

import collections

import pytest

from dctps import ALLOCATIONS
from dctps.core.offsets import TransformOffset
from dctps.data import DATASETS
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.cells import distinct
from dctps.experiments.paper import DENSE, DENSITIES, PAPER_METHODS, configured
from dctps.experiments.scales import PAPER
from dctps.models import MODELS
from dctps.train.settings import run_id

SCALES = ("paper", "laptop", "smoke")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_can_be_run(name, scale):
    experiment = EXPERIMENTS[name]
    cells = experiment.cells(experiment.scale(scale))
    assert cells
    for cell in cells:
        settings = cell.settings
        assert settings.model in MODELS
        assert settings.data in DATASETS
        assert settings.allocation in ALLOCATIONS
        assert cell.panel
        assert cell.line
        if settings.offset is not None:
            TransformOffset.parse(settings.offset)


def cells(name, scale="paper"):
    return distinct(EXPERIMENTS[name].cells(EXPERIMENTS[name].scale(scale)))


def test_figure_2_is_the_papers_grid():
    # 2 networks x 2 data sets x 3 seeds x (dense + 7 methods x 9 densities)
    assert len(cells("resnet50-vgg19")) == 2 * 2 * 3 * (1 + 7 * 9)
    assert DENSITIES == (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001)
    kinds = collections.Counter((c.settings.epochs, c.settings.batch_size, c.settings.lr) for c in cells("sgd"))
    assert set(kinds) == {(200, 128, 0.1), (200, 128, 0.03)}
    assert {c.settings.lr for c in cells("sgd") if c.line.startswith("DCTpS")} == {0.03}


def test_lenet_at_laptop_scale():
    runs = cells("lenet", "laptop")
    assert {c.settings.epochs for c in runs} == {15}
    assert {c.settings.seed for c in runs} == {0, 1}
    assert len({c.line for c in runs}) == 7
    assert len({c.settings.density for c in runs} - {None}) == 5


def test_methods_are_what_the_paper_describes():
    rigl = configured(PAPER.apply(cells("resnet50-vgg19")[0].settings), "RigL", density=0.01)
    assert (rigl.offset, rigl.allocation, rigl.rewire, rigl.drop_fraction) == (None, "erk_paper", "rigl", 0.3)
    assert (rigl.rewire_every, rigl.rewire_until) == (100, 0.75)
    both = [c.settings for c in cells("resnet50-vgg19") if c.line == "DCTpS + RigL"]
    assert {s.allocation for s in both} == {"epl_paper"}
    force = {(c.settings.data, c.settings.method_batches) for c in cells("resnet50-vgg19") if c.line == "FORCE"}
    assert force == {("cifar10", 1), ("cifar100", 10)}
    assert PAPER_METHODS[DENSE] == {"density": None}


def test_fixup_has_its_own_alphas_and_no_scores():
    fixup = [c for c in cells("mobilenet-fixup") if c.settings.model == "fixup_resnet110"]
    assert {c.settings.alpha for c in fixup if c.line.startswith("DCTpS")} == {"paper"}
    assert not {"FORCE", "SynFlow"} & {c.line for c in fixup}


def test_experiments_share_their_runs():
    ids = {c.id for c in cells("lenet", "laptop")}
    assert {c.id for c in cells("fixed-alpha", "laptop") if c.line == "alpha trains"} <= ids


def test_a_name_of_a_published_run_never_changes():
    # a default that moves or a setting that is renamed would orphan finished runs
    assert run_id(cells("lenet", "laptop")[0].settings) == "687b27671891"


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "params"])
def test_smaller_scales_have_fewer_runs(name):
    sizes = [len(cells(name, scale)) for scale in SCALES]
    assert sizes == sorted(sizes, reverse=True)
