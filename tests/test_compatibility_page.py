"""The table of docs/compatibility.md has a row for each test of a set-up, and nothing else."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "compatibility.md").read_text()
FILES = ("test_setups_torch.py", "test_setups_trainers.py", "test_setups_networks.py")


def rows(file):
    """Return the rows of the table that the tests of a file stand for: set-up, and what happens."""
    for node in ast.parse((TESTS / file).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            sentence = ast.get_docstring(node)
            assert sentence, f"{node.name} has no sentence for the table"
            setup, _, result = sentence.removesuffix(".").partition(": ")
            yield f"| {setup} | {result} |"


def test_each_row_is_a_test():
    expected = [row for file in FILES for row in rows(file)]
    assert re.findall(r"^\| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)[1:] == expected, "\n".join(expected)
    assert len(expected) >= 30
