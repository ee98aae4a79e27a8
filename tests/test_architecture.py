"""The tree: imports point one way, files and functions stay small, public names are what they promise."""

import ast
from pathlib import Path

import pytest

import dctps

SOURCE = Path(dctps.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# mathematics <- layers <- conversion and files <- commands; a module may import only from earlier lines
ORDER = [
    ["registry", "cache", "geometry", "files", "transforms", "support", "provenance", "memory", "draws", "imports"],
    ["offsets", "allocation", "coding", "materialise", "ranking", "feed"],
    ["sparse", "offset_products", "alphas", "projections"],
    ["kernels"],
    ["kernels.plans"],
    ["kernels.products"],
    ["operators"],
    ["functional"],
    ["tuning"],
    ["layers", "normalisation"],
    ["survey"],
    ["report", "costs"],
    ["convert"],
    ["manifest"],
    ["checkpoint"],
    ["loading"],
    ["subspace", "imp"],
    [f"models.{name}" for name in ("lenet", "vgg", "resnet", "mobilenetv2", "fixup_resnet", "small_cnn")],
    ["models"],
    ["data.dataset", "data.sources", "data.archives", "data.pickles", "data.images", "data.batches"],
    [f"data.{name}" for name in ("cifar", "mnist", "digits", "folder", "tiny_imagenet", "download")],
    ["data"],
    ["config", "console", "guards", "distributed"],
    ["growth", "peers"],
    ["dense_gradient", "optimiser_state"],
    ["moving"],
    ["rewiring", "reparameterisation"],
    ["saliency"],
    ["pruning"],
    ["optimise", "runs"],
    ["prepare"],
    ["train"],
    ["analysis", "analysis.jacobian", "experiments", "experiments.cells"],
    ["experiments.tasks", "experiments.scales"],
    ["experiments.results", "experiments.paper", "experiments.grids", "experiments.estimate"],
    ["experiments.engines", "experiments.naming", "experiments.sheet"],
    ["experiments.ray_engine", "experiments.sweep", "experiments.summary"],
    ["experiments.board"],
    ["analysis.style", "analysis.network_costs", "analysis.page_values", "analysis.page_looks"],
    [f"analysis.{name}" for name in ("accuracy", "layer_counts", "learning", "spectra", "tables", "table1")],
    ["analysis.figures"],
    [f"analysis.page_{name}" for name in ("costs", "panels", "layers", "curves", "table")],
    ["analysis.page"],
    [f"bench.{name}" for name in ("stopwatch", "calls", "sparseprop", "published", "footprint")],
    ["bench"],
    ["bench.networks", "bench.sheet", "bench.contenders"],
    ["bench.layers", "bench.steps", "bench.scaling"],
    ["bench.tables", "bench.figures"],
    ["cli.bench", "cli.data", "cli.demo", "cli.inspect", "cli.report", "cli.sweep", "cli.train"],
    ["cli.reproduce"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Our modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "dctps"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dctps":
            whole = node.module == "dctps"
            names |= {f"dctps.{alias.name}" for alias in node.names} if whole else {node.module}
    return {name.removeprefix("dctps.") for name in names}


def test_every_module_has_a_place_in_the_order():
    assert {module_name(path) for path in FILES} - {"__init__"} == set(RANK)


@pytest.mark.parametrize("path", [f for f in FILES if f != SOURCE / "__init__.py"], ids=module_name)
def test_imports_point_one_way(path):
    rank = RANK[module_name(path)]
    late = {name for name in imported(path) if RANK[name] >= rank}
    # two modules of one line may not import each other; mathematics may use what stands before it in its line
    allowed = {name for name in late if name in ORDER[rank][: ORDER[rank].index(module_name(path))]}
    assert late == allowed


OURS_FOR_DATA = {"files", "registry"}


def test_models_and_data_know_nothing_of_sparsity():
    for path in FILES:
        kind = module_name(path).split(".")[0]
        if kind in ("models", "data"):
            outside = {name for name in imported(path) if name.split(".")[0] != kind}
            assert outside <= (OURS_FOR_DATA if kind == "data" else set()), path


def test_offsets_and_the_choice_of_a_support_are_apart():
    assert "allocation" not in imported(SOURCE / "offsets.py")
    assert "offsets" not in imported(SOURCE / "allocation.py")
    assert not {"offsets", "allocation"} & imported(SOURCE / "support.py")


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 40, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_modules_say_what_they_are(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_public_names():
    assert all(hasattr(dctps, name) for name in dctps.__all__)
    assert dctps.__all__ == sorted(dctps.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert not any(Path(f).stem in ("utils", "common", "helpers") for f in FILES)
