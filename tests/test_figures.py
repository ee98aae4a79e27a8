"""Figures and tables from made-up rows: what is drawn where, which words are on it, and that nothing is left unsaid."""

import ast
import csv
import dataclasses
import itertools
import math
import re
import shutil
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dctps
from dctps import models
from dctps.analysis.figures import captions, layout, learning, network_costs, spectra, style, table1
from dctps.analysis.figures import draw as figures
from dctps.analysis.figures.groups import GROUPS, parts
from dctps.analysis.figures.layer_counts import lowest
from dctps.analysis.figures.looks import DASHES, MARKERS, assign_looks
from dctps.analysis.figures.tables import Table, markdown
from dctps.analysis.looks import DOTTED, GREY, LOOKS, ORANGE, Look
from dctps.analysis.page import looks as page_looks
from dctps.bench import figures as bench_figures
from dctps.cli import demo
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.cells import Cell, distinct
from dctps.experiments.paper import DENSE
from dctps.experiments.perform import perform
from dctps.experiments.results import Results, Row, read_cells
from dctps.experiments.sheet import read_sheet, sheet_rows, write_sheet
from dctps.experiments.tasks.counts import LayerRow
from dctps.experiments.tasks.jacobian import SingularValueRow
from dctps.experiments.tasks.task import SheetRow
from dctps.experiments.tasks.training import EpochRow, TrainingRow
from dctps.train.settings import Runtime, Settings
from helpers.runs import runtime
from helpers.sheets import training

Figure = pytest.importorskip("matplotlib.figure").Figure


# --- made-up rows ---------------------------------------------------------------------------------------------------


def row(cell):
    """A result without a run, of the right form."""
    density, seed = cell.settings.density or 1.0, cell.settings.seed
    content = {"settings": dataclasses.asdict(cell.settings), "commit": "abc", "pruning": None}
    if cell.task == "counts":
        names = ("conv1", "conv2", "shortcut", "fc")
        sizes = dict(zip(names, (27, 9000, 64, 640), strict=True))
        layers = [{"name": name, "nnz": int(density * size), "size": size} for name, size in sizes.items()]
        content |= {"layers": layers, "others": 11}
    elif cell.task == "jacobian":
        content |= {"singular_values": [[density, density / 2], [3 * density, density / 2]]}
    else:
        accuracy = 0.9 + 0.1 * math.log10(density) / 4 + 0.01 * seed
        names = ("best_validation", "test_at_best", "final_validation", "final_test")
        content |= {"accuracy": {"best_epoch": 1, **dict.fromkeys(names, accuracy)}, "seconds": 1.0}
        content |= {"weights": {"asked": 10, "got": round(1e4 * density), "size": 10_000}, "bytes": {"file": 80}}
    return Row(cell.id, Path(), cell.task, "done", cell.settings, content)


def lines_of(name, scale="smoke", panels=None):
    """The lines of an experiment of the paper, of all its panels or the first so many."""
    experiment = EXPERIMENTS[name]
    chosen = experiment.scale(scale)
    cells = experiment.cells(chosen)
    kept = list(dict.fromkeys(cell.panel for cell in cells))[:panels]
    cells = [cell for cell in cells if cell.panel in kept]
    return sheet_rows(name, chosen.name, cells, Results([row(cell) for cell in distinct(cells)], []))


def trainings(accuracies, line="DCTpS", **changes):
    """Lines from {density: accuracies of the seeds, or statuses}."""
    return [
        training(**{"line": line, "density": density, "seed": seed, "id": f"{line}{density}{seed}", **own} | changes)
        for density, found in accuracies.items()
        for seed, one in enumerate(found)
        for own in [{"status": one} if isinstance(one, str) else {"test_at_best": one, "best_validation": one}]
    ]


def drawn(lines, experiment="resnet50-vgg19"):
    """The only figure of these lines, with its texts laid out."""
    (figure,) = figures.make([dataclasses.replace(line, experiment=experiment) for line in lines]).values()
    return figure


def labelled(axes, label):
    return [line for line in axes.get_lines() if line.get_label() == label]


def small_print(figure):
    (text,) = [text for text in figure.texts if text.get_label() == "small print"]
    return " ".join(text.get_text().split())


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def texts(axes):
    return " ".join(text.get_text() for text in axes.texts)


def epochs_of(curves, **changes):
    """Lines from {(method, seed): validation accuracies}, of the experiment that draws them."""
    plain = {"experiment": "offsets", "scale": "laptop", "panel": "LeNet-5, CIFAR-10", "density": 0.01, "epochs": 3}
    return [
        EpochRow(
            **{field.name: getattr(training(), field.name) for field in dataclasses.fields(SheetRow)}
            | {**plain, "line": line, "seed": seed, "id": f"{line}{seed}", "epoch": i, "validation": one, **changes}
        )
        for (line, seed), curve in curves.items()
        for i, one in enumerate(curve, 1)
    ]


# --- all of them ----------------------------------------------------------------------------------------------------


def test_every_experiment_has_a_figure():
    assert {experiment.kind for experiment in EXPERIMENTS.values()} | {figures.LEARNING} == set(figures.FIGURES)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_drawn(name, tmp_path):
    lines = lines_of(name, panels=2)
    paths = figures.draw(lines, tmp_path)
    assert paths
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert all(path.name.startswith(f"{name}-{lines[0].scale}") for path in paths)
    assert {path.suffix for path in paths} in ({".png", ".pdf"}, {".md", ".csv"})


@pytest.mark.parametrize("name", ["lenet", "layer-counts", "jacobian", "table1", "params"])
def test_without_any_result_there_is_an_empty_figure_that_says_so(name):
    experiment = EXPERIMENTS[name]
    cells = experiment.cells(experiment.scale("smoke"))
    for made in figures.make(sheet_rows(name, "smoke", cells, Results([], []))).values():
        if isinstance(made, Table):
            assert "missing" in made.markdown
        else:
            made.draw_without_rendering()
            own = len(cells) // (1 if name == "lenet" else 4)  # a figure for each of four networks
            assert f"{own} of {own} runs missing" in small_print(made)


@pytest.mark.parametrize("name", ["lenet", "layer-counts", "jacobian", "table1"])
def test_a_sheet_is_enough_to_draw_the_same_again(name, tmp_path):
    lines = lines_of(name, panels=1)
    first = figures.draw(lines, tmp_path / "first")
    write_sheet(lines, tmp_path / "sheet.csv")
    second = figures.redraw(tmp_path / "sheet.csv", tmp_path / "second")
    assert [path.name for path in first] == [path.name for path in second]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, second, strict=True))


def test_tables_do_not_overwrite_the_sheet_that_they_are_made_from(tmp_path):
    write_sheet(lines_of("table1"), tmp_path / "table1-smoke.csv")
    assert tmp_path / "table1-smoke.csv" not in figures.redraw(tmp_path / "table1-smoke.csv")


def test_without_matplotlib_there_are_tables_and_a_clear_error(monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[figures\]'"):
        figures.make(lines_of("lenet"))
    assert figures.make(lines_of("params"))


def test_nothing_and_unknown_experiments_are_refused():
    with pytest.raises(ValueError, match="no lines"):
        figures.make([])
    with pytest.raises(ValueError, match="unknown experiment 'mine'"):
        figures.make([training(experiment="mine")])


@pytest.mark.parametrize("name", ["lenet", "mobilenet-fixup", "allocations", "offsets", "jacobian"])
def test_words_have_room(name):
    for figure in figures.make(lines_of(name, "paper", panels=4 if name == "allocations" else 2)).values():
        figure.draw_without_rendering()
        page = figure.bbox
        (box,) = [found.get_window_extent() for found in figure.legends]
        for other in (box, *(text.get_window_extent() for text in figure.texts)):
            assert page.x0 <= other.x0 <= other.x1 <= page.x1
            assert page.y0 <= other.y0 <= other.y1 <= page.y1
        visible = [axes for axes in figure.axes if axes.get_visible()]
        assert not any(box.overlaps(axes.get_tightbbox()) for axes in visible)
        assert not any(box.overlaps(text.get_window_extent()) for text in figure.texts)
        for axes in visible:
            ticks = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(sorted(ticks, key=lambda tick: tick.x0)))


# --- the look of methods --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, e in EXPERIMENTS.items() if e.kind == "accuracy"])
def test_methods_of_a_figure_can_be_told_apart_in_grey(name):
    names = list(dict.fromkeys(line.line for line in lines_of(name)))
    found = assign_looks(names)
    assert len({(look.marker, look.filled) for look in found.values()}) == len(names)
    assert len({(look.colour, look.dash) for look in found.values()}) == len(names)


def test_lines_of_other_names_do_not_look_like_a_method():
    found = assign_looks(["mine", "DCTpS", "yours", "RigL"])
    assert len({look.marker for look in found.values()}) == 4
    assert found["DCTpS"] == LOOKS["DCTpS"]


def test_a_method_looks_the_same_in_every_figure():
    first, second = assign_looks(["FORCE", "mine", "DCTpS"]), assign_looks(["DCTpS", "SynFlow", "FORCE", "x", "mine"])
    assert all(first[name] == second[name] for name in ("FORCE", "DCTpS"))
    for name in ("resnet50-vgg19", "sgd"):
        (figure,) = figures.make(lines_of(name)).values()
        (line,) = labelled(figure.axes[0], "DCTpS")
        assert (line.get_color(), line.get_marker()) == ("#0072b2", "o")


def test_every_look_has_words_of_matplotlib():
    assert {look.marker for look in LOOKS.values()} <= set(MARKERS)
    assert {look.dash for look in LOOKS.values()} <= set(DASHES)


def test_imp_can_be_read_on_white():
    (figure,) = figures.make([dataclasses.replace(x, experiment="sgd") for x in trainings(THREE, "IMP")]).values()
    (line,) = labelled(figure.axes[0], "IMP")
    assert (line.get_color(), line.get_marker()) == (GREY, "h")


def test_a_new_method_needs_one_look(monkeypatch):
    monkeypatch.setitem(LOOKS, "mine", Look(ORANGE, "pentagon", DOTTED))
    (line,) = labelled(drawn(trainings(THREE, "mine")).axes[0], "mine")
    assert (line.get_color(), line.get_marker()) == (ORANGE, "p")
    assert page_looks.assign_looks(["mine"])["mine"] == (ORANGE, "pentagon", page_looks.DASHES[DOTTED])


# --- accuracy -------------------------------------------------------------------------------------------------------

THREE = {0.05: (0.9, 0.92, 0.94), 0.001: (0.8, 0.8, 0.83), 0.01: (0.85, 0.86, 0.9)}
BASELINE = trainings({None: (0.93, 0.95, 0.94)}, DENSE)


def test_lines_have_the_means_in_order_of_density():
    figure = drawn(BASELINE + trainings(THREE))
    (axes,) = figure.axes
    (line,) = labelled(axes, "DCTpS")
    assert list(line.get_xdata()) == [0.001, 0.01, 0.05]
    assert list(line.get_ydata()) == pytest.approx([81, 87, 92])
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "test accuracy, %")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1 %", "1 %", "5 %"]
    assert legend(figure) == [DENSE, "DCTpS", "chance"]


def test_the_deviation_is_shaded_where_there_is_one():
    def shaded(lines):
        (axes,) = drawn(lines).axes
        return [band.get_paths()[0].get_extents() for band in axes.collections]

    (band,) = shaded(trainings(THREE))
    assert (band.y0, band.y1) == pytest.approx((81 - 3**0.5, 94))
    assert shaded(trainings({0.05: (0.9,), 0.01: (0.8,)})) == []


def test_the_dense_network_is_a_dashed_black_line_with_its_mean():
    (axes,) = drawn(BASELINE + trainings(THREE)).axes
    (line,) = labelled(axes, DENSE)
    assert list(line.get_ydata()) == pytest.approx([94, 94])
    assert (line.get_color(), line.is_dashed()) == ("black", True)
    assert "dense: 94.0 %" in texts(axes)
    assert not labelled(drawn(trainings(THREE)).axes[0], DENSE)


def test_collapses_are_dashed_down_to_chance():
    gone = ("collapsed",) * 3
    lines = trainings({0.05: (0.9,) * 3, 0.01: (0.8,) * 3, 0.001: gone, 0.0001: gone}, "FORCE")
    figure = drawn(lines)
    (axes,) = figure.axes
    (line,), (hollow,) = labelled(axes, "FORCE"), labelled(axes, "_collapsed")
    assert list(line.get_ydata()) == pytest.approx([math.nan, math.nan, 80, 90], nan_ok=True)
    segments = [(list(s.get_xdata()), list(s.get_ydata())) for s in labelled(axes, "_collapse")]
    assert segments == [([0.0001, 0.001], [10, 10]), ([0.001, 0.01], [10, pytest.approx(80)])]
    assert all(segment.get_linestyle() == "--" for segment in labelled(axes, "_collapse"))
    assert (list(hollow.get_xdata()), hollow.get_markerfacecolor()) == ([0.0001, 0.001], "white")
    assert legend(figure)[-1] == "collapsed (at chance)"
    assert "6 of 12 runs collapsed" in small_print(figure)


def test_a_method_that_collapses_sometimes_has_the_mean_of_the_others():
    figure = drawn(trainings({0.05: (0.9, 0.9, 0.9), 0.01: (0.8, "collapsed", 0.7)}, "FORCE"))
    (axes,) = figure.axes
    assert list(labelled(axes, "FORCE")[0].get_ydata()) == pytest.approx([75, 90])
    assert not labelled(axes, "_collapse")
    assert "1 of 6 runs collapsed" in small_print(figure)


def test_a_density_without_results_is_a_gap_and_is_counted():
    figure = drawn(trainings({0.05: (0.9,), 0.01: ("missing",), 0.005: ("failed",), 0.001: (0.7,)}))
    (line,) = labelled(figure.axes[0], "DCTpS")
    assert list(line.get_ydata()) == pytest.approx([70, math.nan, math.nan, 90], nan_ok=True)
    said = "paper scale: 160 epochs; one seed; 1 of 4 runs failed; 1 of 4 runs missing"
    assert small_print(figure) == said


def test_nothing_missing_is_not_mentioned():
    said = small_print(drawn(trainings(THREE)))
    assert said == "paper scale: 160 epochs; mean and standard deviation (band or bar) of 3 seeds"
    assert small_print(drawn(trainings({0.05: (0.9,)}))) == "paper scale: 160 epochs; one seed"
    said = small_print(drawn(trainings({0.05: (0.9, "missing", "missing")})))  # seeds that were not run do not count
    assert said == "paper scale: 160 epochs; one seed; 2 of 3 runs missing"


def test_a_method_without_any_result_is_left_out_of_the_legend():
    figure = drawn(trainings({0.05: (0.9,)}) + trainings({0.05: ("missing",)}, "FORCE"))
    assert legend(figure) == ["DCTpS", "chance"]


def test_scales_are_said_in_words_for_each_panel():
    lines = trainings({0.05: (0.9,)}, scale="laptop", images=5000, epochs=5)
    assert small_print(drawn(lines)) == "laptop scale: 5 epochs, 5,000 images; one seed"
    narrow = [dataclasses.replace(line, panel="B", width=8, epochs=6) for line in lines]
    said = small_print(drawn(lines + narrow))
    assert said == "laptop scale: 5 epochs, 5,000 images (A); 6 epochs, 5,000 images, width 8 (B); one seed"


def test_a_panel_says_what_was_run_in_its_place():
    def title(**changes):
        return drawn(trainings({0.05: (0.9,)}, **changes)).axes[0].get_title()

    assert title(panel="LeNet-5, CIFAR-10") == "LeNet-5, CIFAR-10"
    assert title(panel="ResNet50, CIFAR-100") == "ResNet50, CIFAR-100\n(run as LeNet-5, CIFAR-10)"
    assert title(panel="LeNet-5, CIFAR-100") == "LeNet-5, CIFAR-100\n(run as LeNet-5, CIFAR-10)"


def test_lenet_has_numbers_of_weights_and_validation_accuracy():
    lines = trainings({0.05: (0.9,), 0.01: (0.8,)}, weights_got=77)
    (axes,) = drawn([dataclasses.replace(line, test_at_best=0.1) for line in lines], "lenet").axes
    (line,) = labelled(axes, "DCTpS")
    assert list(line.get_xdata()) == [77, 77]
    assert list(line.get_ydata()) == pytest.approx([80, 90])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("trainable weights", "validation accuracy, %")


def test_the_axis_can_be_the_size_of_the_file():
    lines = [
        dataclasses.replace(row, file_bytes=29_000 + 1000 * row.seed) for row in trainings({0.001: (0.3, 0.4, 0.5)})
    ]
    figure = drawn(lines + trainings({0.01: (0.8,)}, file_bytes=60_000), "bytes")
    (axes,) = figure.axes
    (line,) = labelled(axes, "DCTpS")
    assert list(line.get_xdata()) == [30_000, 60_000]  # the mean of the seeds
    assert list(line.get_ydata()) == pytest.approx([40, 80])
    ticks = [label.get_text() for label in axes.get_xticklabels() if label.get_visible()]
    assert axes.get_xlabel() == "size of the file, kB"
    assert {"30", "50"} <= set(ticks)


@pytest.mark.parametrize(("panels", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (6, (3, 2))])
def test_panels_are_grouped_as_in_the_paper(panels, shape):
    lines = [line for i in range(panels) for line in trainings({0.05: (0.9,)}, panel=f"panel {i}")]
    figure = drawn(lines)
    assert figure.axes[0].get_gridspec().get_geometry() == shape
    assert len([axes for axes in figure.axes if axes.get_visible()]) == panels
    assert len(figure.legends) == 1


# --- weights per layer ----------------------------------------------------------------------------------------------


def long_lines(kind, found, task, **changes):
    """Lines of layers or singular values from {density: numbers, or a status}."""
    plain = {f.name: getattr(training(), f.name) for f in dataclasses.fields(training()) if f.name in _COMMON}
    plain |= {"task": task, **changes}
    lines = []
    for density, numbers in found.items():
        own = {**plain, "density": density, "id": f"{density}"}
        if isinstance(numbers, str):
            lines.append(kind(**own | {"status": numbers}))
            continue
        for index, number in enumerate(numbers, 1):
            value = {"nnz": number, "size": 100} if kind is LayerRow else {"mean": number, "examples": 8}
            lines.append(kind(**own, index=index, **value))
    return lines


_COMMON = {field.name for field in dataclasses.fields(LayerRow)} & {
    field.name for field in dataclasses.fields(TrainingRow)
}


def counted(found, **changes):
    return drawn(long_lines(LayerRow, found, "counts", **changes), "synflow-counts")


def test_layers_without_weights_are_seen_at_zero():
    figure = counted({0.01: (100, 200, 300), 0.0001: (100, 0, 300)})
    (axes,) = figure.axes
    assert [list(labelled(axes, label)[0].get_ydata()) for label in ("1 %", "0.01 %")] == [
        [100, 200, 300],
        [100, 0, 300],
    ]
    (ring,) = labelled(axes, "_empty")
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([2], [0])
    assert axes.get_yscale() == "symlog"
    assert axes.get_ylim()[0] < 0
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["0", "1", "10"]
    assert legend(figure) == ["1 %", "0.01 %", "layer without weights"]
    assert "before any training" in small_print(figure)


def test_insets_are_made_where_they_show_something():
    full, empty, close = [50, 60, 70], [50, 0, 70], [5, 0, 70]
    assert lowest({0.01: full}) == lowest({0.01: full, 0.001: empty}) == lowest({0.01: full, 0.001: [5, 6, 7]}) == {}
    assert lowest({0.01: full, 0.001: close}) == {0.001: close}
    assert lowest({0.05: full, 0.01: empty, 0.005: empty, 0.001: close}) == {0.001: close, 0.01: empty}
    assert not counted({0.01: full, 0.001: empty}).axes[0].child_axes
    (inset,) = counted({0.01: empty, 0.001: close}).axes[0].child_axes
    assert [(line.get_label(), list(line.get_xdata())) for line in inset.get_lines()] == [
        ("1 %", [2]),
        ("0.1 %", [1, 2]),
    ]
    assert inset.get_xlim() == inset.figure.axes[0].get_xlim()


def test_methods_that_collapsed_are_named_in_the_panel():
    (axes,) = counted({0.01: (10, 20, 30), 0.001: "collapsed", 0.0001: "collapsed"}).axes
    assert axes.get_title().splitlines()[-1].replace(captions.NO_BREAK, " ") == "collapsed: 0.1 %, 0.01 %"


def test_networks_with_many_methods_have_a_figure_each():
    made = figures.make(lines_of("layer-counts"))
    assert list(made) == [f"-{name}-cifar-10" for name in ("resnet50", "vgg19", "resnet18", "mobilenetv2")]
    titles = [axes.get_title() for axes in made["-vgg19-cifar-10"].axes]
    assert titles == ["Random (uniform)", "Random (EPL)", "FORCE", "SynFlow"]
    (figure,) = figures.make(lines_of("epl-epf-counts", "paper")).values()
    assert [axes.get_title() for axes in figure.axes][:2] == ["ResNet50, CIFAR-10: EPL", "ResNet50, CIFAR-10: EPF"]
    (figure,) = figures.make(lines_of("synflow-counts", "paper")).values()
    assert figure.axes[0].get_title() == "VGG19, CIFAR-10"


# --- spectra --------------------------------------------------------------------------------------------------------


def spectrum(found, **changes):
    figure = drawn(long_lines(SingularValueRow, found, "jacobian", **changes), "jacobian")
    (axes,) = figure.axes
    return figure, axes


def test_curves_of_singular_values():
    figure, axes = spectrum({0.01: (4.0, 2.0, 1.0), 0.001: (0.4, 0.2, 0.1)})
    assert [(line.get_label(), list(line.get_ydata())) for line in axes.get_lines()] == [
        ("1 %", [4, 2, 1]),
        ("0.1 %", [0.4, 0.2, 0.1]),
    ]
    assert axes.get_yscale() == "log"
    assert axes.get_title() == "DCTpS"
    assert "means over 8 test images" in small_print(figure)


def test_zero_spectra_are_named():
    _, axes = spectrum({0.01: (4.0, 2.0), 0.001: (0.0, 0.0), 0.0001: (0.0, 0.0), 0.0002: "collapsed"})
    assert [line.get_label() for line in axes.get_lines()] == ["1 %"]
    assert axes.get_title().replace(captions.NO_BREAK, " ") == "DCTpS\nzero: 0.1 %, 0.01 %\ncollapsed: 0.02 %"


def test_equal_spectra_are_one_curve_and_only_equal_ones():
    same = {0.01: (4.0, 2.0), 0.001: (4.0, 2.0 + 1e-12), 0.0001: (4.0, 2.0)}
    _, axes = spectrum(same)
    (line,) = axes.get_lines()
    assert list(line.get_ydata()) == [4, 2]
    assert axes.get_title() == "DCTpS\nthe same at all 3 densities"
    _, axes = spectrum(same | {0.0001: (4.0, 2.0 + 1e-6)})
    assert (len(axes.get_lines()), axes.get_title()) == (3, "DCTpS")
    _, axes = spectrum(same | {0.0001: (0.0, 0.0)})
    assert (len(axes.get_lines()), "the same" in axes.get_title()) == (2, False)
    _, axes = spectrum({0.01: (4.0, 2.0)})
    assert ([line.get_label() for line in axes.get_lines()], axes.get_title()) == (["1 %"], "DCTpS")


def test_rounding_is_not_drawn_and_that_is_said():
    figure, axes = spectrum({0.01: (4.0, 2.0, 1e-16), 0.001: (1e-13, 1e-14, 1e-15)})
    drawn_values = [list(line.get_ydata()) for line in axes.get_lines()]
    assert drawn_values[0] == pytest.approx([4, 2, math.nan], nan_ok=True)
    assert drawn_values[1] == [1e-13, 1e-14, 1e-15]
    assert "which are rounding, are left out" in small_print(figure)


def test_real_spectra_of_dctps_do_not_depend_on_density(tmp_path):
    base = Settings(model="lenet", data="digits32")

    def cell(density, offset, line):
        settings = dataclasses.replace(base, density=density, offset=offset, allocation="epl_paper")
        return Cell(settings, "jacobian", "LeNet-5, digits32", line)

    cells = [
        cell(d, offset, line) for d in (0.05, 0.005) for offset, line in (("dct", "DCTpS"), (None, "Random (EPL)"))
    ]
    for one in cells:
        perform(one, runtime(tmp_path))
    lines = sheet_rows("jacobian", "smoke", cells, read_cells(cells, tmp_path))
    (figure,) = figures.make(lines).values()
    assert [axes.get_title() for axes in figure.axes] == ["DCTpS\nthe same at all 2 densities", "Random (EPL)"]
    found = spectra.spectra_of([line for line in lines if line.line == "DCTpS"])
    assert min(min(own) for own in found.values()) > 0


# --- tables ---------------------------------------------------------------------------------------------------------

TABLE_E1 = {
    "ResNet50": (23467712, 53130, 23520842),
    "VGG19": (20024000, 11018, 20035018),
    "MobileNetV2": (2261824, 35098, 2296922),
    "FixupResNet110": (1719856, 282, 1720138),
    "ResNet18": (11164352, 9610, 11173962),
}


def test_parameters_are_those_of_the_paper(tmp_path):
    cells = EXPERIMENTS["params"].cells(EXPERIMENTS["params"].scale("paper"))
    for cell in cells:
        perform(cell, runtime(tmp_path))
    (table,) = figures.make(sheet_rows("params", "paper", cells, read_cells(cells, tmp_path))).values()
    assert {name: tuple(numbers) for name, *numbers, _ in table.rows} == TABLE_E1
    assert [row[-1] for row in table.rows] == [54, 17, 58, 110, 21]  # convolutions and linear layers
    assert "| VGG19          | 20,024,000 |             11,018 | 20,035,018 |     17 |" in table.markdown


def test_networks_without_a_result_are_missing_from_the_table_by_name():
    lines = [dataclasses.replace(line, panel="VGG19") for line in long_lines(LayerRow, {None: "missing"}, "counts")]
    (table,) = figures.make([dataclasses.replace(line, experiment="params") for line in lines]).values()
    assert table.rows == [["VGG19", None, None, None, None]]
    assert "missing" in table.markdown


def test_markdown_is_aligned():
    assert markdown(["a", "bb"], [["long", "1"]]) == "| a    | bb |\n|------|---:|\n| long |  1 |\n"


def drops(**methods):
    lines = trainings({None: (0.7, 0.7, 0.7)}, DENSE)
    for name, found in methods.items():
        lines += trainings(found, name)
    (table,) = figures.make([dataclasses.replace(line, experiment="table1") for line in lines]).values()
    return table


def test_drops_against_the_dense_network():
    table = drops(DCTpS={0.01: (0.65, 0.64, 0.66), 0.001: (0.71, 0.73, "missing")}, FORCE={0.01: ("collapsed",) * 3})
    first = table.markdown.split("Cost and size")[0].replace("\u2212", "-")
    assert "| DCTpS         | -5.0 ± 1.0 | +2.0 ± 1.4 (2 of 3) |" in first
    assert "| FORCE         |    -60.0 † |             missing |" in first
    assert "| dense: 70.0 % |" in first
    numbers = {(row[1], row[2]): row[3:8] for row in table.rows}
    assert numbers["DCTpS", 0.001] == [2.0, pytest.approx(1.4142, abs=1e-4), 2, 3, 0]
    assert numbers["FORCE", 0.01] == [-60.0, None, 0, 3, 3]
    assert "1 of 12 runs missing" in table.markdown


def test_without_the_dense_network_there_is_no_drop():
    lines = trainings({None: ("missing",)}, DENSE) + trainings({0.01: (0.6,), 0.001: ("missing",)})
    (table,) = figures.make([dataclasses.replace(line, experiment="table1") for line in lines]).values()
    assert "| dense: missing |         1 % |   0.1 % |" in table.markdown
    assert "| DCTpS          | no baseline | missing |" in table.markdown
    assert table.rows[1][3] is None


LAYERS = [network_costs.LayerShape((4, 2, 2, 2), 10), network_costs.LayerShape((16, 8), 1)]  # mn = 32 and 128


def amounts(found):
    return found.initial, found.training, found.training_end, found.final


def test_costs_by_hand():
    def cost(method, density=0.25, passes=None, every=None):
        return amounts(network_costs.multiply_adds(LAYERS, method, density, passes, every))

    dense = 10 * 32 + 128
    assert cost(DENSE, None) == (0, dense, dense, dense)
    assert cost("Random (uniform)") == (0, 112, 112, 112)  # 8 weights, ten times, and 32
    assert cost("IMP") == (0, dense, 112, 112)
    assert cost("SynFlow", passes=100) == (100 * dense, 112, 112, 112)
    assert cost("SynFlow") == (None, 112, 112, 112)
    assert cost("DCTpS") == (0, *[10 * (20 + 24) + 20 + 64] * 3)  # q = 8 and 16, twenty weights each
    every = cost("RigL", every=4)
    assert every[1] - every[3] == dense // 4


def test_bytes_by_hand():
    def size(method, density=0.25):
        return amounts(network_costs.device_bytes(LAYERS, method, density))

    assert size(DENSE, None) == (640,) * 4
    assert size("Random (uniform)") == (320,) * 4  # 40 weights and their positions
    assert size("IMP") == (640, 640, 320, 320)
    assert size("FORCE") == (640, 320, 320, 320)
    assert size("DCTpS") == (328,) * 4  # and two alphas


@pytest.mark.parametrize(("method", "options"), [("DCTpS", {}), ("Random (EPL)", {"offset": None})])
def test_costs_are_those_that_are_counted_in_a_network(method, options):
    layers = network_costs.layers_of("lenet", "cifar10", None)
    network = dctps.sparsify(models.build("lenet"), 0.01, allocation="epl_paper", **options)
    counted = dctps.count_ops(network, (3, 32, 32)).paper
    assert network_costs.multiply_adds(layers, method, 0.01, None, None).final == counted


def test_costs_that_cannot_be_known_are_left_out():
    lines = trainings({None: (0.7,)}, DENSE, data="folder:x") + trainings({0.01: (0.6,)}, data="folder:x")
    (table,) = figures.make([dataclasses.replace(line, experiment="table1") for line in lines]).values()
    assert "Cost and size" not in table.markdown
    assert table.rows[1][8:] == [None] * 8
    rare = drops(DCTpS={1e-6: (0.5,) * 3})  # fewer weights than layers: the rule gives none
    assert rare.rows[1][8:] == [None] * 8


def test_large_numbers_have_units():
    assert [table1.count(n) for n in (0, 999, 1000, 23_467_712, 1_298_014_208, 778_808_524_800)] == [
        *("0", "999", "1 k", "23.5 M"),
        *("1.3 G", "779 G"),
    ]


# --- accuracy against epochs ----------------------------------------------------------------------------------------


def test_epochs_are_means_over_the_seeds_that_reached_them():
    assert learning.means(epochs_of({("a", 0): [0.1, 0.4], ("a", 1): [0.3]})) == {1: pytest.approx(0.2), 2: 0.4}
    assert learning.means(epochs_of({("a", 0): [None, 0.4]})) == {2: 0.4}


def test_networks_and_densities_have_panels():
    names, resnet = ("DCT as published", "no offset"), "ResNet18, CIFAR-10"
    curves = {(name, seed): [0.1, 0.2, 0.2 + seed / 10] for name in names for seed in (0, 1)}
    lines = [
        *epochs_of(curves, density=0.01),
        *epochs_of(curves, density=0.05),
        *epochs_of(curves, density=0.05, panel="ResNet18, CIFAR-10", model="resnet18"),
    ]
    lines.append(dataclasses.replace(lines[0], density=0.001, status="missing", epoch=None, validation=None, id="gone"))
    ((suffix, figure),) = figures.make(lines).items()
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert suffix == "-epochs"
    assert titles == [
        f"{name}, density {d} %" for name, d in (("LeNet-5, CIFAR-10", 5), ("LeNet-5, CIFAR-10", 1), (resnet, 5))
    ]
    (curve,) = labelled(figure.axes[0], "no offset")
    assert list(curve.get_xdata()) == [1, 2, 3]
    assert list(curve.get_ydata()) == pytest.approx([10, 20, 25])
    assert legend(figure) == [*names, "chance"]
    assert "means of 2 seeds; 1 of 5 runs missing" in small_print(figure)


def test_epochs_come_from_the_runs_and_survive_a_sheet(tmp_path):
    settings = Settings(model="lenet", data="digits32", images=200, epochs=2, batch_size=50, density=0.05)
    cell = Cell(settings, panel="LeNet-5, CIFAR-10", line="DCT as published")
    perform(cell, Runtime(runs=tmp_path))
    absent = dataclasses.replace(cell, settings=dataclasses.replace(settings, seed=1))
    lines = sheet_rows("offsets", "smoke", [cell, absent], read_cells([cell, absent], tmp_path), EpochRow)
    assert [(line.epoch, line.status) for line in lines] == [(1, "done"), (2, "done"), (None, "missing")]
    assert all(0 <= line.validation <= 1 and line.loss > 0 for line in lines[:2])
    write_sheet(lines, tmp_path / "sheet.csv")
    assert read_sheet(tmp_path / "sheet.csv") == lines
    assert "1 of 2 runs missing" in small_print(figures.make(lines)["-epochs"])


# --- at most six lines in a panel -----------------------------------------------------------------------------------


def shown(figure):
    return [axes for axes in figure.axes if axes.get_visible()]


def names_in(axes):
    """The methods or densities that a panel shows; the dense network and chance are there to compare with."""
    found = [line.get_label() for line in axes.get_lines()]
    return [name for name in found if not name.startswith("_") and name != DENSE]


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("name", [n for n, e in EXPERIMENTS.items() if e.kind not in figures.TABLES])
def test_no_panel_has_more_than_six_lines_and_none_is_lost(name, scale):
    rows = lines_of(name, scale, panels=1)
    for figure in figures.make(rows).values():
        assert max(len(names_in(axes)) for axes in shown(figure)) <= style.MOST_LINES == 6
        if EXPERIMENTS[name].kind == "accuracy":
            drawn_names = {line for axes in shown(figure) for line in names_in(axes)}
            assert drawn_names == {row.line for row in rows} - {DENSE}
            assert drawn_names <= set(legend(figure))


def test_every_group_names_lines_of_its_experiment():
    for name, groups in GROUPS.items():
        lines = {cell.line for cell in EXPERIMENTS[name].cells(EXPERIMENTS[name].scale("paper"))} - {DENSE}
        assert {line for own in groups.values() for line in own} == lines


def test_a_part_that_shows_nothing_new_is_left_out():
    lines = [line for part in GROUPS["scale"].values() for line in part]
    with_norms = [line for line in dict.fromkeys(lines) if "values" not in line and line != "random rotation"]
    titles = [part.title for part in parts("scale", [], with_norms)]
    assert titles == ["offsets and rules", "numbers for alpha", "controls"]


LINE_NAMES = st.lists(st.sampled_from([*LOOKS, *(f"other {i}" for i in range(30))]), max_size=40, unique=True)


@given(LINE_NAMES, st.sampled_from([*GROUPS, "lenet"]))
def test_parts_have_all_lines_and_few_each(names, experiment):
    found = parts(experiment, [], names)
    assert {line for part in found for line in part.lines} == set(names) - {DENSE}
    assert all(len(part.lines) == len(set(part.lines)) <= style.MOST_LINES for part in found)
    assert len(found) == 1 or (all(part.lines for part in found) and len({part.title for part in found}) == len(found))


def test_the_parts_of_a_panel_stand_side_by_side_on_the_same_axes():
    names = [f"method {i}" for i in range(8)]
    few = trainings(THREE, "DCTpS", panel="few")
    many = [line for i, name in enumerate(names) for line in trainings({0.05: (0.1 * i + 0.1,), 0.01: (0.1,)}, name)]
    figure = drawn(many + few)
    whole, first, second = shown(figure)  # a panel that is whole comes first
    assert [axes.get_title().splitlines()[0] for axes in (whole, first, second)] == ["few", "A", "A"]
    assert first.get_subplotspec().rowspan == second.get_subplotspec().rowspan != whole.get_subplotspec().rowspan
    assert first.get_ylim() == second.get_ylim() != whole.get_ylim()
    assert first.get_title() != second.get_title()


def test_learning_curves_are_split_too():
    curves = {(f"method {i}", 0): [0.1, 0.2] for i in range(7)}
    (figure,) = figures.make(epochs_of(curves)).values()
    assert sorted(len(names_in(axes)) for axes in shown(figure)) == [1, 6]


# --- markers that would hide one another, or stand alone ------------------------------------------------------------


def test_lines_of_one_density_stand_side_by_side():
    figure = drawn(trainings({0.01: (0.9,)}) + trainings({0.01: (0.9,)}, "FORCE"))
    (axes,) = figure.axes
    places = [labelled(axes, name)[0].get_xdata()[0] for name in ("DCTpS", "FORCE")]
    assert places[0] < 0.01 < places[1]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 %"]
    assert "side by side" in small_print(figure)
    assert "side by side" not in small_print(drawn(trainings(THREE)))


def test_a_point_without_neighbours_has_its_deviation_as_a_bar():
    def bars(found):
        (axes,) = drawn(trainings(found)).axes
        return [b.get_segments()[0][:, 1].tolist() for b in axes.collections if hasattr(b, "get_segments")]

    assert bars({0.05: (0.9, 0.9), 0.01: ("missing",) * 2, 0.001: (0.1, 0.3)}) == [
        [pytest.approx(20 - 200**0.5), pytest.approx(20 + 200**0.5)]
    ]
    assert bars(THREE) == []


def test_all_densities_lie_inside_the_axis():
    (axes,) = drawn(trainings({0.05: ("missing",), 0.01: (0.8,), 0.001: (0.7,)})).axes
    low, high = axes.get_xlim()
    assert low < 0.001 < 0.05 < high


# --- axes and words -------------------------------------------------------------------------------------------------


@given(st.floats(-30, 10), st.floats(0.5, 40))
def test_decades_are_round_and_few(low, height):
    axis = Figure().subplots().yaxis
    axis.axes.set(yscale="log", ylim=(10**low, 10 ** (low + height)))
    layout.set_decades(axis)
    powers = [round(math.log10(tick)) for tick in axis.get_majorticklocs()]
    assert len(powers) <= 7
    steps = {b - a for a, b in itertools.pairwise(powers)} or {1}
    assert len(steps) == 1
    assert all(power % next(iter(steps)) == 0 for power in powers)


@given(st.lists(st.text("abc", min_size=1, max_size=12), min_size=1, max_size=60), st.integers(12, 100))
def test_small_print_has_lines_of_nearly_the_same_length(words, most):
    text = " ".join(words)
    lines = layout._wrapped(text, most).splitlines()
    assert " ".join(lines) == text
    assert max(map(len, lines)) <= most
    assert len(lines) == len(textwrap.wrap(text, most))


def test_empty_heads_of_panels_say_why():
    full, close = long_lines(LayerRow, {0.01: (50, 60)}, "counts"), {0.01: (50, 60), 0.001: (5, 0)}
    rows = [*full, *long_lines(LayerRow, close, "counts", line="Random")]
    figure = drawn(rows, "epl-epf-counts")
    assert [texts(axes) for axes in figure.axes] == [
        "every layer of these curves has weights",
        "layers with at most 10 weights at 0.1 %",
    ]


# --- one house style ------------------------------------------------------------------------------------------------

SOURCE = Path(dctps.__file__).parent
STYLED = [
    *sorted(path for path in (SOURCE / "analysis/figures").glob("*.py") if path.name != "style.py"),
    SOURCE / "bench/figures.py",
    SOURCE / "cli/demo.py",
]
OF_STYLE = {"fontsize", "labelsize", "linewidth", "elinewidth", "markersize", "markeredgewidth", "alpha", "dpi"}
OF_STYLE |= {"figsize", "color", "facecolor", "ecolor", "markerfacecolor", "markeredgecolor", "capsize", "linestyle"}
ABSENT = (0, "", "none")  # no line, no edge, no filling


def literals(path):
    """The options of a style that a file sets by a number or a text of its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        pairs = []
        if isinstance(node, ast.Call):
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        elif isinstance(node, ast.Dict):
            pairs = [
                (key.value, value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
        for name, value in pairs:
            if name in OF_STYLE and isinstance(value, ast.Constant) and value.value not in ABSENT:
                yield f"{path.name}, line {value.lineno}: {name} {value.value!r}"


@pytest.mark.parametrize("path", STYLED, ids=lambda path: path.parent.name + "/" + path.name)
def test_only_the_house_style_sets_sizes_and_colours(path):
    assert list(literals(path)) == []
    text = path.read_text()
    assert path.name == "layout.py" or "Figure(" not in text  # pages come from the layout
    assert not re.findall(r'"#[0-9a-f]{3,8}"', text)


def test_the_figures_of_the_bench_and_the_demo_have_the_house_style(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(layout, "write", lambda figure, path, ending="png": (made.append(figure), path.touch()))
    for table in ("bench-scaling-dct", "bench-step-vgg19-dct-1e-2-b128"):
        shutil.copy(RESULTS / f"{table}.csv", tmp_path)
        bench_figures.redraw(tmp_path / f"{table}.csv")
    demo.redraw(RESULTS / "demo.csv", tmp_path / "demo.png")
    made += figures.make(lines_of("lenet")).values()
    for figure in made:
        axes = figure.axes[0]
        sizes = axes.xaxis.label.get_size(), axes.get_xticklabels()[0].get_size(), figure._suptitle.get_size()
        assert sizes == (style.TEXT, style.TICK, style.PAGE_TITLE)
        assert not axes.spines.top.get_visible()
        assert axes.xaxis.get_gridlines()[0].get_linewidth() == style.SETTINGS["grid.linewidth"]
        assert (figure.dpi, figure.get_size_inches()[0] in style.WIDTHS.values()) == (style.DPI, True)
        assert small_print(figure)


# --- figures of measurements ----------------------------------------------------------------------------------------

RESULTS = Path(__file__).parents[1] / "results"


def scaling(tmp_path, monkeypatch):
    """The figure of the committed table, and its rows."""
    made = []
    monkeypatch.setattr(layout, "write", lambda figure, path, ending="png": (made.append(figure), path.touch()))
    shutil.copy(RESULTS / "bench-scaling-dct.csv", tmp_path)
    bench_figures.redraw(tmp_path / "bench-scaling-dct.csv")
    with (tmp_path / "bench-scaling-dct.csv").open() as file:
        return made[0], list(csv.DictReader(file))


def test_the_guides_are_fits_and_the_panels_say_how_far_times_and_fits_grow(tmp_path, monkeypatch):
    figure, rows = scaling(tmp_path, monkeypatch)
    panels = [(layer, sweep) for layer in ("linear", "conv") for sweep in ("size", "density")]
    for axes, panel in zip(figure.axes, panels, strict=True):
        for contender, name in (("dense", "fit a + b m n"), ("ours", "fit a + b q log2 q + c nnz")):
            own = [r for r in rows if (r["layer"], r["sweep"], r["contender"]) == (*panel, contender)]
            times = [float(r["median_ms"]) for r in own]
            (curve,), (guide,) = labelled(axes, contender), labelled(axes, name)
            assert list(curve.get_ydata()) == times
            fit = guide.get_ydata()
            # It is a fit of these times. torch's own linear layer of 512 takes twice the time of its fit: it is the
            # first for which torch's library takes two threads.
            least = 0.4 if (contender, panel) == ("dense", ("linear", "size")) else 0.6
            assert all(least < f / t < 1.6 for f, t in zip(fit, times, strict=True))
            said = re.search(rf"{contender}: time x ([\d,.]+), fit x ([\d,.]+)", texts(axes))
            for text, growth in zip(said.groups(), (times[-1] / times[0], fit[-1] / fit[0]), strict=True):
                assert float(text.replace(",", "")) == pytest.approx(growth, rel=0.05)
    assert "a fixed time and a time for each counted multiply-add" in small_print(figure)


def test_the_caption_says_what_the_guides_are():
    readme = (RESULTS.parent / "README.md").read_text()
    (caption,) = re.findall(r"!\[([^\]]*)\]\(docs/scaling\.png\)", readme)
    assert "a fixed time plus a time for each counted multiply-add" in caption


def test_words_of_the_scaling_figure_have_room(tmp_path, monkeypatch):
    figure, _ = scaling(tmp_path, monkeypatch)
    figure.draw_without_rendering()
    for axes in figure.axes:
        (words,) = [text.get_window_extent() for text in axes.texts]
        for line in axes.get_lines():
            corners = axes.transData.transform(list(zip(line.get_xdata(), line.get_ydata(), strict=True)))
            assert not any(words.contains(*corner) for corner in corners)
        ticks = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(ticks))


def test_steps_are_told_in_words(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(layout, "write", lambda figure, path, ending="png": (made.append(figure), path.touch()))
    name = "bench-step-vgg19-dct+dct_signed+hadamard-spatial-channel-lowest-0-1e-3-b128.csv"
    shutil.copy(RESULTS / name, tmp_path)
    assert bench_figures.redraw(tmp_path / name) == tmp_path / name.replace(".csv", ".png")
    labels = [label.get_text() for label in made[0].axes[0].get_yticklabels()]
    offsets = ("DCT", "DCT, channel order, signs", "Hadamard, signs")
    assert labels == [f"VGG19, 0.1 %\n{offset}" for offset in offsets]


def test_a_table_from_before_a_column_is_drawn(tmp_path):
    with (RESULTS / "bench-step-vgg19-dct-1e-2-b128.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "peak_bytes"} for row in csv.DictReader(file)]
    with (tmp_path / "old.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert bench_figures.redraw(tmp_path / "old.csv").exists()


def test_tables_without_a_figure_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has no figure: only the tables of"):
        bench_figures.redraw(RESULTS / "bench-roofline.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="has no figure"):
        bench_figures.redraw(tmp_path / "empty.csv")
