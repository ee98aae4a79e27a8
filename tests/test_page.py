"""The page of a folder of runs: names of methods, panels, means, the table, and that what files say stays text."""

import base64
import dataclasses
import hashlib
import html.parser
import itertools
import json
import re
import statistics
import sys

import pytest

import dctps
from dctps.analysis.looks import LOOKS
from dctps.analysis.page import render as pages
from dctps.analysis.page.content import payload
from dctps.analysis.page.costs import operations, weight_bytes
from dctps.analysis.page.curves import POINTS, chosen, curves
from dctps.analysis.page.looks import DASHES, assign_looks, plotly_look, spare_looks
from dctps.analysis.page.panels import FIELDS, accuracy_panels, by_line, details, key, titles
from dctps.analysis.page.render import write_page
from dctps.analysis.page.table import in_order, table
from dctps.checkpoint.contents import read as read_file
from dctps.cli.inspection import part_bytes
from dctps.cli.report import report
from dctps.core.allocation import ALLOCATIONS
from dctps.core.offsets import OFFSETS
from dctps.experiments.cells import varied
from dctps.experiments.glossary import meanings
from dctps.experiments.naming import method_name
from dctps.experiments.paper import DENSE, FORCE_BATCHES, PAPER_METHODS, SGD, configured
from dctps.experiments.results import Broken, Results, Row, read
from dctps.methods.pruning import METHODS
from dctps.methods.rewiring import REWIRINGS
from dctps.models import MODELS
from dctps.train.settings import PUBLISHED, Settings, run_id
from helpers.pages import BASE, EVIL, sparse, task_result, training_failure, training_result, write_metrics, write_run


def row(settings, tmp_path=None, **numbers):
    status = numbers.pop("status", "done")
    content = training_result(settings, **numbers) if status == "done" else training_failure(settings, status)
    folder = None if tmp_path is None else tmp_path / run_id(settings)
    return Row(run_id(settings), folder, "train", status, settings, content)


def made(results, tmp_path, **options):
    """The data of the page of some results."""
    out = tmp_path / "page.html"
    page = write_page(results, tmp_path / "runs", out, **options)
    return json.loads(Reader.of(out.read_text()).data), payload(page)


class Reader(html.parser.HTMLParser):
    """The elements and attributes of a page, its text outside scripts, and its data."""

    @classmethod
    def of(cls, text):
        self = cls()
        self.tags, self.attributes, self.text, self.data, self._inside = [], [], [], "", None
        self.feed(text)
        return self

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self._inside = dict(attrs).get("id", tag) if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag):
        self._inside = None if tag in ("script", "style") else self._inside

    def handle_data(self, data):
        if self._inside is None:
            self.text.append(data)
        elif self._inside == "data":
            self.data += data


@pytest.fixture
def without_plotly(monkeypatch):
    monkeypatch.setattr(pages, "_plotly", lambda: "/* plotly */")


# --- names of methods -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPER_METHODS)
@pytest.mark.parametrize("base", [PUBLISHED, SGD, varied(PUBLISHED, model="fixup_resnet20", data="cifar100")])
def test_the_papers_methods_have_the_papers_names(name, base):
    changes = {} if name == DENSE else {"density": 0.01}
    assert method_name(configured(base, name, **changes)) == name


def test_methods_that_differ_have_names_that_differ():
    axes = itertools.product(
        ("dct", "srht", None), ("epl", "epl_paper", "uniform", "sqrt"), (None, "snip", "force", "force_paper"),
        (None, "rigl", "set"), (1.0, 0.5, "preserve"), (True, False),
    )  # fmt: skip
    names = {}
    for offset, allocation, method, rewire, alpha, train_alpha in axes:
        settings = sparse(
            offset=offset, allocation=allocation, method=method, rewire=rewire, alpha=alpha, train_alpha=train_alpha
        )
        effect = (offset, allocation if method is None else None, method, rewire)
        effect += (alpha, train_alpha) if offset else ()
        names.setdefault(method_name(settings), set()).add(effect)
    assert all(len(effects) == 1 for effects in names.values())


def test_names_say_what_is_unusual():
    assert method_name(sparse()) == "DCTpS (exact EPL)"
    assert method_name(sparse(offset=None, allocation="epl_paper", norm_density=0.1)) == "Random (EPL), BatchNorm 10 %"
    assert method_name(sparse(projection="fastfood")) == "Hyperplane Projection (fastfood)"
    assert method_name(sparse(offset=None, method="imp", imp_round=2)) == "IMP, round 2"
    assert method_name(sparse(allocation="epl_paper", alpha="paper", train_alpha=False)) == "DCTpS, alpha fixed"


# --- panels, lines, points ------------------------------------------------------------------------------------------


def test_a_panel_is_all_but_method_density_and_seed():
    (one,) = accuracy_panels(
        [row(sparse(d, seed=s, offset=o)) for d in (0.1, 0.2) for s in (0, 1) for o in ("dct", None)]
    )
    assert one["title"] == "small CNN, digits, 3 epochs"
    assert [line["name"] for line in one["lines"]] == ["DCTpS (exact EPL)", "Random (exact EPL)"]
    assert one["runs"] == 8
    for name, value in {"epochs": 4, "width": 8, "batch_size": 5, "images": 10, "augment": False, "lr": 0.5}.items():
        two = accuracy_panels([row(sparse()), row(sparse(**{name: value}))])
        assert len({panel["title"] for panel in two}) == 2, name


RAW = re.compile(r"\w_\w|\bNone\b|\bTrue\b|\bFalse\b|/")  # keys and values of a program, which are no words
OTHER_VALUES = {  # a second value of each setting of a panel
    "model": "fixup_resnet20", "width": 8, "hidden": 20, "data": "tiny_imagenet", "images": 10, "backend": "torch",
    "optimizer": "adamw", "lr": 0.5, "momentum": 0.5, "weight_decay": 0.1, "schedule": "cosine", "milestones": (1, 2),
    "gamma": 0.5, "legacy_lr_order": True, "epochs": 1, "batch_size": 5, "augment": False, "split": "paper",
    "bf16": True, "channels_last": True, "compile": True,
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_titles_of_panels_are_in_words_and_tell_every_setting_apart(name):
    usual = Settings(model="lenet" if name == "hidden" else "small_cnn", data="digits")
    keys = [key(usual), key(dataclasses.replace(usual, **{name: OTHER_VALUES[name]}))]
    found = titles(keys)
    assert len(set(found)) == 2
    assert not any(RAW.search(title) for title in found), found
    assert not any(RAW.search(details(keys[1], [keys[1]])) for title in found)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@pytest.mark.parametrize("offset", [*OFFSETS, "dct/channel/position/random/3", None])
def test_names_of_methods_are_in_words_and_explained(allocation, offset):
    name = method_name(sparse(offset=offset, allocation=allocation))
    assert not RAW.search(name), name
    assert len(meanings([name])) >= (1 if name == "DCTpS" else 2)  # the offset, and the rule


def test_every_method_and_rewiring_is_explained():
    for method in [*METHODS, "imp"]:
        assert meanings([method_name(sparse(offset=None, method=method))]), method
    for rewire in REWIRINGS:
        name = method_name(sparse(offset=None, rewire=rewire, allocation="sqrt"))
        assert len(meanings([name])) == 2, name


def test_the_exact_rule_is_explained_apart_from_the_published_one():
    assert list(meanings(["DCTpS (exact EPL)"])) == ["DCTpS", "exact EPL"]
    assert list(meanings(["Random (EPL)", "Random (exact EPL)"])) == ["Random", "EPL", "exact EPL"]
    told = meanings(["EPL, exact EPL"])
    assert "fewer weights" in told["EPL"]
    assert "exactly as many weights" in told["exact EPL"]


def test_the_page_explains_the_names_that_are_on_it(tmp_path, without_plotly):
    write_run(tmp_path / "runs", training_result(sparse()))
    write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    text = Reader.of((tmp_path / "page.html").read_text()).text
    assert text.count("What the names mean") == 2  # the heading, and the link to it
    assert "exact EPL" in text
    assert "SynFlow" not in text


def test_every_setting_is_of_the_panel_or_of_the_method():
    of_method = {"offset", "allocation", "method", "rewire", "projection", "alpha", "train_alpha", "norm_density"}
    of_method |= {"frozen", "values_lr"}
    carried = {"method_steps", "method_batches", "imp_round", "imp_rewind", "rewire_every", "rewire_until"}
    rest = {"drop_fraction", "alpha_lr", "density", "seed"}
    assert {field.name for field in dataclasses.fields(Settings)} == {*FIELDS, *of_method, *carried, *rest}


def test_means_and_deviations_over_seeds():
    values = [0.5, 0.6, 0.9]
    rows = [row(sparse(seed=i), test=v, validation=v / 2, weights=10 * i) for i, v in enumerate(values)]
    (point,) = accuracy_panels(rows)[0]["lines"][0]["points"]
    assert point["n"] == 3
    assert point["test"] == pytest.approx(statistics.mean(values), rel=1e-5)  # the page keeps six digits
    assert point["test_deviation"] == pytest.approx(statistics.stdev(values), rel=1e-5)
    assert point["validation"] == pytest.approx(statistics.mean(values) / 2, rel=1e-5)
    assert point["weights"] == 10
    (alone,) = accuracy_panels(rows[:1])[0]["lines"][0]["points"]
    assert alone["test_deviation"] is None


def test_no_mean_over_runs_that_were_carried_out_differently():
    rows = [row(sparse(rewire="rigl", rewire_every=n, seed=s)) for n in (10, 100) for s in (0, 1)]
    assert {name: len(own) for name, own in by_line(rows).items()} == {
        "DCTpS + RigL (exact EPL), rewired every 10 steps": 2,
        "DCTpS + RigL (exact EPL), rewired every 100 steps": 2,
    }
    assert list(by_line(rows[:2])) == ["DCTpS + RigL (exact EPL)"]


def test_settings_without_effect_make_no_second_observation():
    rows = [row(dataclasses.replace(BASE, offset=offset)) for offset in ("dct", None)]
    (line,) = accuracy_panels(rows)[0]["lines"]
    assert (line["name"], line["points"][0]["n"], line["points"][0]["density"]) == (DENSE, 1, None)


def test_dctps_at_its_own_rate_stands_beside_the_others_and_says_so():
    base = dataclasses.replace(SGD, data="digits")
    rows = [row(configured(base, name, density=0.1)) for name in ("DCTpS", "RigL")]
    (one,) = accuracy_panels(rows)
    assert [line["name"] for line in one["lines"]] == ["RigL", "DCTpS, learning rate 0.03"]
    assert key(sparse(lr=0.03)) != key(sparse(lr=0.1))  # Adam's rates are all of the panel


def test_the_papers_force_is_one_line_on_each_data_set():
    rows = [row(configured(dataclasses.replace(BASE, data=data), "FORCE", density=0.1)) for data in FORCE_BATCHES]
    assert [[line["name"] for line in panel["lines"]] for panel in accuracy_panels(rows)] == [["FORCE"]] * 3


def test_collapsed_and_failed_runs_are_counted_and_in_no_mean():
    rows = [
        row(sparse(seed=0), test=0.7),
        row(sparse(seed=1), status="collapsed"),
        row(sparse(seed=2), status="failed"),
    ]
    (one,) = accuracy_panels([*rows, row(sparse(0.01), status="collapsed")])
    low, high = one["lines"][0]["points"]
    assert (high["test"], high["n"], high["collapsed"], high["failed"]) == (0.7, 1, 1, 1)
    assert (low["test"], low["n"], low["collapsed"]) == (None, 0, 1)
    assert one["chance"] == 0.1
    assert one["failed"] == 1
    assert accuracy_panels([row(sparse(data="folder:x"))])[0]["chance"] is None


def test_rounds_on_the_way_to_a_ticket_are_not_drawn():
    base = sparse(offset=None, method="imp")
    rows = [row(base), row(dataclasses.replace(base, imp_round=1))]
    assert accuracy_panels(rows)[0]["runs"] == 1


# --- looks ----------------------------------------------------------------------------------------------------------


def test_no_two_lines_look_alike():
    names = [*PAPER_METHODS, *(f"other {i}" for i in range(100))]
    found = assign_looks(names)
    assert set(found) == set(names)
    assert len(set(found.values())) == len(names)
    assert not set(spare_looks()) & set(map(plotly_look, LOOKS.values()))
    few = assign_looks([*PAPER_METHODS, *(f"other {i}" for i in range(10))])
    assert len({(colour, dash) for colour, _, dash in few.values()}) == len(few)  # also without their markers
    assert len(set(assign_looks(["Hyperplane Projection", "Hyperplane Projection (sparse)"]).values())) == 3
    assert len(assign_looks(f"other {i}" for i in range(500))) == 501


def test_every_look_has_words_of_plotly_and_a_swatch():
    script = pages._script()
    assert {look.dash for look in LOOKS.values()} <= set(DASHES)
    for marker in {look.marker for look in LOOKS.values()} - {None}:
        assert f'"{marker}": "M' in script or f' {marker}: "M' in script, marker


def test_the_page_and_the_figures_show_a_method_in_the_same_colour():
    shown = assign_looks(PAPER_METHODS)
    assert {name: look[0] for name, look in shown.items()} == {name: LOOKS[name].colour for name in PAPER_METHODS}


# --- before the first step ------------------------------------------------------------------------------------------


def test_weights_per_layer_and_spectra(tmp_path, without_plotly):
    for seed in (0, 1):
        layers = [{"name": n, "nnz": k + seed, "size": 100} for n, k in (("first", 10), ("last", 20))]
        write_run(tmp_path / "runs", task_result("counts", sparse(seed=seed), layers=layers, others=0))
        write_run(tmp_path / "runs", task_result("jacobian", sparse(seed=seed), singular_values=[[4, 0.0], [1, 1]]))
    data, _ = made(read(tmp_path / "runs"), tmp_path)
    (count,) = data["layers"][0]["densities"]
    assert count["lines"][0]["layers"] == ["first", "last"]
    assert count["lines"][0]["weights"] == [10.5, 20.5]
    (spectrum,) = data["spectra"][0]["densities"]
    line = spectrum["lines"][0]
    assert (line["middle"], line["low"], line["high"], line["n"]) == ([2, 0], [1, 0], [4, 1], 2)
    assert data["layers"][0]["title"] == "small CNN, digits"  # epochs do not matter


@pytest.mark.parametrize(
    ("task", "content"),
    [
        ("counts", {"layers": [{"name": "a", "nnz": "many", "size": 1}], "others": 0}),
        ("counts", {"layers": 3, "others": 0}),
        ("jacobian", {"singular_values": [[1, 2], [3]]}),
        ("jacobian", {"singular_values": [[1, "x"]]}),
        ("jacobian", {"singular_values": []}),
        ("jacobian", {"singular_values": [[-1.0]]}),
    ],
)
def test_damaged_content_is_listed_as_broken(tmp_path, without_plotly, task, content):
    write_run(tmp_path / "runs", task_result(task, sparse(), **content))
    page = write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    assert [one.name for one in page.broken] == [f"{task}-{run_id(sparse())}"]
    assert next(iter(content)) in page.broken[0].reason
    assert not page.rows


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.5", 1e308, -0.1])
def test_an_accuracy_that_is_no_number_is_listed_as_broken(tmp_path, without_plotly, bad):
    write_run(tmp_path / "runs", training_result(sparse(), test=bad))
    page = write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    (reason,) = [one.reason for one in page.broken]
    assert reason.startswith("result.json: accuracy.test_at_best is ")
    assert reason.endswith(", not a number from 0 to 1")


@pytest.mark.parametrize("bad", [{"status": ["x"]}, {"status": "lost"}, {"task": {}}])
def test_failures_of_an_unknown_kind_are_listed_as_broken(tmp_path, without_plotly, bad):
    write_run(tmp_path / "runs", training_failure(sparse()) | bad, "failure.json")
    page = write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    assert [f"{next(iter(bad))} is " in one.reason for one in page.broken] == [True]
    assert not page.rows


@pytest.mark.parametrize("bad", [10**400, float("nan"), 1e308, "many", None, [1]])
def test_numbers_beyond_reason_are_listed_as_broken(tmp_path, without_plotly, bad):
    write_run(tmp_path / "runs", training_result(sparse(), weights=bad))
    (broken,) = write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html").broken
    assert "weights.got is " in broken.reason


def test_a_run_whose_metrics_are_damaged_has_no_curve_and_is_named(tmp_path, without_plotly):
    for seed in (0, 1):
        write_metrics(write_run(tmp_path / "runs", training_result(sparse(seed=seed))), 2)
    damaged = tmp_path / "runs" / run_id(sparse()) / "metrics.jsonl"
    damaged.write_text(damaged.read_text().replace('"epoch": 1', '"epoch": "1"'))
    page = write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    assert len(page.rows) == 2
    assert [one.name for one in page.broken] == [run_id(sparse())]
    assert "metrics.jsonl is damaged (line 2: epoch is '1', not an integer from 0 on)" in page.broken[0].reason
    assert len(payload(page)["curves"]) == 1


# --- the table ------------------------------------------------------------------------------------------------------


def column(columns, name):
    (one,) = [c for c in columns if c["name"] == name]
    return [one["words"][v] for v in one["values"]] if "words" in one else one["values"]


def test_the_table_has_a_row_for_every_run():
    rows = in_order([row(sparse(seed=1, lr=0.5), test=0.123456789), row(BASE), row(sparse(), status="failed")])
    columns = table(rows)
    assert column(columns, "method") == [DENSE, "DCTpS (exact EPL)", "DCTpS (exact EPL)"]
    assert column(columns, "density") == [None, 0.1, 0.1]
    assert column(columns, "status") == ["done", "failed", "done"]
    assert column(columns, "test") == [90.0, None, 12.3457]
    published = "offset dct, alpha 1.0"
    assert column(columns, "other settings") == [published, published, f"{published}, lr 0.5"]
    assert column(columns, "epochs") == [3, 3, 3]
    assert column(columns, "network") == ["small CNN"] * 3
    assert column(columns, "seconds") == [1.5, None, 1.5]
    assert "task" not in [c["name"] for c in columns]
    assert "multiply-adds" not in [c["name"] for c in columns]


@pytest.mark.parametrize("changes", [{}, {"offset": None}, {"train_alpha": False}, {"norm_density": 0.5}])
def test_bytes_without_batchnorm_are_those_of_the_file(tmp_path, changes):
    settings = sparse(0.05, model="resnet18", width=4, data="cifar10", **changes)
    net = dctps.models.build("resnet18", 10, width=4)
    dctps.sparsify(net, 0.05, offset=settings.offset, train_alpha=settings.train_alpha)
    if settings.norm_density:
        dctps.sparsify_norms(net, 0.5)
    dctps.save(net, tmp_path / "net.safetensors")
    parts = part_bytes(read_file(tmp_path / "net.safetensors"), 0)
    got = row(settings, weights=dctps.report(net).nnz)
    assert weight_bytes(got) == parts["values"] + parts["alpha"] > 0


def test_bytes_of_networks_that_cannot_be_built_are_unknown(monkeypatch):
    monkeypatch.setitem(sys.modules, "evil", None)  # importing it would fail loudly
    assert weight_bytes(row(sparse(model="evil:net"))) is None
    assert weight_bytes(row(sparse(model="evil:net", offset=None))) == 400
    assert weight_bytes(row(dataclasses.replace(BASE, model="evil:net"))) == 400
    assert weight_bytes(row(sparse(hidden=3))) is None  # small_cnn has no such setting
    assert weight_bytes(row(sparse(model="vgg11", width=10**15))) is None
    assert weight_bytes(row(sparse(projection="dense"))) == 400


def test_multiply_adds_are_counted_once_for_each_kind_of_network(tmp_path, monkeypatch):
    rows = [row(sparse(0.05, seed=seed), tmp_path) for seed in (0, 1)]
    rows += [row(BASE, tmp_path), row(sparse(0.05, projection="dense"), tmp_path), row(sparse(0.3), status="failed")]
    net = dctps.sparsify(dctps.models.build("small_cnn", 10, in_channels=1), 0.05)
    for one in (rows[0], rows[3]):  # a projection has no such number, even if its file could be loaded
        one.folder.mkdir()
        dctps.save(net, one.folder / "best.safetensors")
    dense = dctps.models.build("small_cnn", 10, in_channels=1)
    expected = dctps.count_ops(net, (1, 8, 8)).performed
    whole = dctps.count_ops(dense, (1, 8, 8)).performed
    assert operations(rows) == [expected, expected, whole, None, None]
    assert column(table(rows, ops=True), "multiply-adds") == [expected, expected, whole, None, None]
    assert 0 < expected <= whole


# --- curves ---------------------------------------------------------------------------------------------------------


def test_curves_of_one_seed_each_come_first(tmp_path):
    rows = [row(sparse(d, seed=s), tmp_path) for d in (0.1, 0.2) for s in (0, 1, 2)]
    assert chosen(rows) == [0, 3, 1, 4, 2, 5]
    for one in rows:
        write_metrics(one.folder, 3)
    found = curves(rows, 3)
    assert sorted(found) == [0, 1, 3]
    assert found[0]["epoch"] == [0, 1, 2]
    assert found[0]["validation"] == [0, 0.3333, 0.6667]
    assert curves(rows, 0) == {}


def test_long_curves_are_thinned_out_and_keep_their_end(tmp_path):
    rows = [row(sparse(), tmp_path)]
    write_metrics(rows[0].folder, 1003)
    epochs = curves(rows, 1)[0]["epoch"]
    assert POINTS // 2 < len(epochs) <= POINTS
    assert epochs[-1] == 1002


def test_runs_without_metrics_have_no_curve(tmp_path):
    rows = [row(sparse(), tmp_path), row(sparse(seed=1), tmp_path)]
    rows[1].folder.mkdir()
    (rows[1].folder / "metrics.jsonl").write_bytes(b'[1]\n"x"\n\xff\n{"epoch": null}\n')
    assert curves(rows, 9) == {}


# --- the page -------------------------------------------------------------------------------------------------------


def test_what_files_say_stays_text(tmp_path, without_plotly):
    runs = tmp_path / "<i>runs & more"
    bad = dataclasses.replace(BASE, model="<b>net", data="folder:<u>", density=0.1, offset=None, method="<s>")
    write_run(runs, training_failure(bad, "failed", EVIL), "failure.json")
    write_run(runs, training_result(dataclasses.replace(bad, seed=1)))
    write_run(runs, "{", folder="<script>alert(3)<")
    write_run(runs, training_failure(sparse()) | {"id": "<img src=y>"}, "failure.json", folder="<img src=y>")
    out = tmp_path / "page.html"
    write_page(read(runs), runs, out)
    found = Reader.of(out.read_text())
    assert found.tags.count("script") == 3  # the data, plotly and ours
    assert not {"img", "b", "i", "u", "s"} & (set(found.tags) - {"b"})
    assert found.tags.count("b") == 5  # of the counts at the top
    assert {"Runs in ", "<i>runs & more", "<script>alert(3)<"} <= set(found.text)
    assert not set("<>&") & set(found.data)  # "<!-- <script " would swallow the end of the element
    data = json.loads(found.data)
    assert EVIL in data["reasons"].values()
    assert data["links"] == {str(data["ids"].index("<img src=y>")): "%3Cimg%20src%3Dy%3E"}
    assert not [a for a in found.attributes if a[1].startswith("on")]


def test_the_page_loads_nothing(tmp_path, without_plotly):
    write_run(tmp_path / "runs", training_result(sparse()))
    write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    found = Reader.of((tmp_path / "page.html").read_text())
    assert {value for _, name, value in found.attributes if name in ("src", "href")} == {"data:,", "#names"}
    (policy,) = [value for _, name, value in found.attributes if name == "content" and "default-src" in value]
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "*" not in policy
    assert "http" not in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_the_policy_admits_the_scripts_that_are_embedded(tmp_path, without_plotly):
    write_run(tmp_path / "runs", training_result(sparse()))
    write_page(read(tmp_path / "runs"), tmp_path / "runs", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2
    assert all(f"'sha256-{digest}'" in text for digest in digests)
    for name in pages.SCRIPTS:
        assert pages._asset(name) in scripts[1]


def test_names_that_are_not_valid_text(tmp_path, without_plotly):
    results = Results([], [Broken("caf\udce9", "damaged")])
    write_page(results, tmp_path, tmp_path / "page.html")
    assert "caf?" in (tmp_path / "page.html").read_text()


def test_links_are_relative_to_the_page(tmp_path, without_plotly):
    runs = tmp_path / "a b" / "runs"
    write_run(runs, training_result(sparse()))
    for out, base in (
        ("page.html", "./a%20b/runs/"),
        ("a b/runs/page.html", "././"),
        ("c/page.html", "./../a%20b/runs/"),
    ):
        (tmp_path / out).parent.mkdir(exist_ok=True)
        write_page(read(runs), runs, tmp_path / out)
        assert json.loads(Reader.of((tmp_path / out).read_text()).data)["base"] == base


def test_the_data_of_the_page_are_those_of_the_runs(tmp_path, without_plotly):
    for seed in range(3):
        write_metrics(write_run(tmp_path / "runs", training_result(sparse(seed=seed))), 4)
    write_run(tmp_path / "runs", "{}", "config.json", folder="begun")
    data, expected = made(read(tmp_path / "runs"), tmp_path, curves=2)
    assert data == json.loads(json.dumps(expected))
    assert len(data["ids"]) == 3
    assert len(data["curves"]) == 2
    text = " ".join(Reader.of((tmp_path / "page.html").read_text()).text)
    assert "curves of 2 of 3 runs" in text
    assert "unfinished" in text


def test_an_empty_folder_has_a_page(tmp_path, without_plotly):
    write_page(Results([], []), tmp_path, tmp_path / "page.html")
    assert "No run is over" in (tmp_path / "page.html").read_text()


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_what_is_on_it(tmp_path, without_plotly, capsys):
    write_run(tmp_path / "runs", training_result(sparse()))
    write_run(tmp_path / "runs", "", folder="empty")
    write_run(tmp_path / "runs", "{}", "config.json", folder="begun")
    (tmp_path / "runs" / "no run").mkdir()
    report(tmp_path / "runs", tmp_path / "page.html")
    said = capsys.readouterr().out
    assert "page.html: 1 run, 1 broken, 1 unfinished; 0.0 MB" in said


def test_plotly_is_inlined(tmp_path):
    pytest.importorskip("plotly", reason="needs the report extra")
    write_run(tmp_path / "runs", training_result(sparse()))
    report(tmp_path / "runs", tmp_path / "page.html")
    assert "plotly.js v" in (tmp_path / "page.html").read_text()
    assert Reader.of((tmp_path / "page.html").read_text()).tags.count("script") == 3


def test_without_plotly_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    write_run(tmp_path / "runs", training_result(sparse()))
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[report\]'"):
        report(tmp_path / "runs", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        report(tmp_path / "nowhere", tmp_path / "page.html")
    with pytest.raises(ValueError, match="curves"):
        report(tmp_path, tmp_path / "page.html", curves=-1)


@pytest.mark.parametrize("model", MODELS)
def test_the_layers_of_every_network_are_known(model):
    assert weight_bytes(row(sparse(model=model), weights=0)) >= 8 * 4
