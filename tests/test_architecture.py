"""The tree: imports point one way, files and functions stay small, public names are what they promise."""

import ast
import graphlib
from pathlib import Path

import pytest

import dctps

SOURCE = Path(dctps.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))

# A package may import from the packages before it and from itself, never from one behind it.
ORDER = [
    "base",
    "core",
    "ops",
    "nn",
    "checkpoint",
    "federated",
    "export",
    "methods",
    "models",
    "data",
    "train",
    "experiments",
    "analysis",
    "bench",
    "cli",
]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def imported_names(path: Path) -> set[str]:
    """Every name that a file imports, with its module, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path) -> set[str]:
    """Our modules that a file imports, wherever in it."""
    names = imported_names(path)
    ours = {name.removeprefix("dctps.") for name in names if name.startswith("dctps.")}
    return {name if name in MODULES else name.rpartition(".")[0] for name in ours}


def package(name: str) -> str:
    return name.split(".")[0]


def test_every_module_lies_in_a_package_of_the_order():
    assert {package(name) for name in MODULES} - {"__init__", "__main__"} == set(ORDER)


@pytest.mark.parametrize("path", [f for f in FILES if f.parent != SOURCE], ids=module_name)
def test_imports_point_one_way(path):
    rank = ORDER.index(package(module_name(path)))
    assert {name for name in imported(path) if ORDER.index(package(name)) > rank} == set()


def test_modules_do_not_import_in_circles():
    graph = {name: imported(path) for name, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_tests_import_from_helpers_and_from_no_other_test(path):
    assert not {name for name in imported_names(path) if name.startswith(("test_", "conftest"))}


def test_names_of_functions_hide_no_module():
    assert not {name for name in dctps.__all__ if callable(getattr(dctps, name)) and (SOURCE / f"{name}.py").exists()}
    assert not {name for name in dctps.__all__ if callable(getattr(dctps, name)) and (SOURCE / name).is_dir()}


def test_models_and_data_know_nothing_of_sparsity():
    for name, path in MODULES.items():
        if package(name) in ("models", "data"):
            assert {package(n) for n in imported(path)} <= {package(name), "base"}, path


def reachable(name: str) -> set[str]:
    """Modules that a module imports, or that these import, and so on."""
    found, todo = set(), [name]
    while todo:
        new = imported(MODULES[todo.pop()]) - found
        found |= new
        todo += new
    return found


def test_figures_and_pages_import_no_trainer():
    trainers = {"train.loop", "train.session", "experiments.perform", "experiments.performers"}
    for name in MODULES:
        if package(name) == "analysis":
            assert not trainers & reachable(name), name


def test_the_mathematics_knows_no_module_of_torch():
    for name, path in MODULES.items():
        if package(name) == "core":
            names = {
                alias.name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            assert "nn" not in names, path


def test_offsets_the_choice_of_a_support_and_rewiring_are_apart():
    assert "core.allocation" not in imported(MODULES["core.offsets"])
    assert not {"core.offsets", "core.transforms"} & imported(MODULES["core.allocation"])
    assert not {"core.offsets", "core.transforms", "core.allocation"} & imported(MODULES["core.support"])
    for name, path in MODULES.items():
        if name.startswith("methods.rewiring"):
            axes = ("core.offsets", "core.transforms", "core.allocation", "methods.pruning")
            assert not [n for n in imported(path) if n.startswith(axes)], path


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
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
