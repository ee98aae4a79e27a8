"""What packages say of their public names: the imports that stand under TYPE_CHECKING."""

import ast
from pathlib import Path
from types import ModuleType


def checked_imports(package: ModuleType) -> dict[str, str]:
    """The module of each name that a package imports for type checkers alone."""
    tree = ast.parse(Path(package.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    places = {}
    for node in (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)):
        for alias in node.names:
            own = node.module == package.__name__  # a module of the package itself
            places[alias.name] = f"{node.module}.{alias.name}" if own else node.module
    return places
