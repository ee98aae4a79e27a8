"""The entries of docs/api.md: for each public name of dctps a heading, its signature and its docstring as Markdown.

Docstrings of this project have paragraphs, lines `argument: what it means` with indented lines behind them, and
examples that start with `>>>`. Arguments become a list, examples become blocks of code.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Container, Iterator
from types import ModuleType
from typing import Any

import dctps

WIDTH = 100  # of a signature on one line
MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")  # before the name of a class
ARGUMENT = re.compile(r"(?P<name>[a-z_]\w*): (?P<text>\S.*)", re.DOTALL)
CODE = re.compile(r"(`[^`]*`)")
PAGE = re.compile(r"\bdocs/([\w-]+)\.md")


def entry(name: str) -> str:
    """Return the entry of a public name: heading, signature, docstring, members."""
    value = getattr(dctps, name)
    parts = [f"### `{name}`", _signature(name, value), *_blocks(docstring(name)), *_members(name, value)]
    return "\n\n".join(part for part in parts if part)


def docstring(name: str) -> str:
    """Return the docstring of a public name; of a registry, the string that stands behind its definition."""
    value = getattr(dctps, name)
    if not isinstance(value, dict):
        own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
        return inspect.cleandoc(own or "")
    tree = ast.parse(inspect.getsource(importlib.import_module(dctps.PLACES[name])))
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
            text = (
                isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) and following.value.value
            )
            return inspect.cleandoc(text) if isinstance(text, str) else ""
    return ""


# --- signatures -----------------------------------------------------------------------------------------------------


def _signature(name: str, value: Any) -> str:
    if isinstance(value, ModuleType | dict) or getattr(value, "_is_protocol", False):
        return ""
    try:
        text = _call(name, inspect.signature(value))
    except ValueError:  # an exception that takes what all exceptions take
        return ""
    return f"```python\n{text}\n```"


def _call(name: str, signature: inspect.Signature) -> str:
    """Return a signature as one reads it: classes without their modules, one argument per line if it is long."""
    arguments = [_plain(argument) for argument in _arguments(signature)]
    empty = signature.return_annotation in (inspect.Signature.empty, None)
    result = "" if empty else " -> " + _plain(inspect.formatannotation(signature.return_annotation)).strip('"')
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){result}"])


def _arguments(signature: inspect.Signature) -> Iterator[str]:
    keywords = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            yield "*"
        keywords = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        yield str(parameter.replace(default=...) if inspect.isfunction(parameter.default) else parameter)


def _plain(text: str) -> str:
    return MODULES.sub("", text).replace("= Ellipsis", "= ...").replace("'", '"')


# --- docstrings -----------------------------------------------------------------------------------------------------


def _blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        if block.startswith(">>>"):
            yield f"```pycon\n{block}\n```"
        elif block.startswith("    "):
            yield block  # a formula, which Markdown shows as it is
        else:
            yield "\n".join(_lines(block))


def _lines(block: str) -> Iterator[str]:
    """Give the lines of a paragraph, or the points of a list of arguments."""
    points = re.split(r"\n(?!    )", block)
    arguments = [ARGUMENT.fullmatch(point) for point in points]
    if not all(arguments):
        yield _wrapped(markdown(block))
        return
    for argument in arguments:
        if argument:
            yield _wrapped(f"- `{argument['name']}`: {markdown(argument['text'])}", "  ")


def markdown(text: str, others: Container[str] = ()) -> str:
    """Return plain text as Markdown: what is not code is taken literally; public names and pages are linked.

    others: names that mean something else in this text.
    """
    parts = CODE.split(text)
    return "".join(_linked(part, others) if part.startswith("`") else _literally(part) for part in parts)


def _linked(code: str, others: Container[str]) -> str:
    name = code.strip("`")
    if name not in dctps.__all__ or name in others or isinstance(getattr(dctps, name), ModuleType):
        return code  # `train`, a module, is often an argument
    return f"[{code}](#{name.lower()})"


def _literally(text: str) -> str:
    text = text.replace("*", r"\*").replace("<", "&lt;")
    return PAGE.sub(r"[\1](\1.md)", text)


def _wrapped(text: str, indent: str = "") -> str:
    """Return text in lines of 120 columns, none of which begins with a sign that Markdown takes for one of a list."""
    kept = re.sub(r" (?=[-+#=>] |\d+\. )", "\0", " ".join(text.split()))
    lines = textwrap.wrap(kept, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


# --- members --------------------------------------------------------------------------------------------------------


def _members(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield _wrapped(_entries(value))
    elif isinstance(value, ModuleType):
        yield _list("Its names:", ((f"{name}.{member}", text) for member, text in _of_module(value)), vars(value))
    elif isinstance(value, type):
        yield _list("Its methods and properties:", _of_class(value))


def _entries(registry: dict[Any, Any]) -> str:
    keys = [key if isinstance(key, str) else key.__name__ for key in registry]
    return "Entries: " + ", ".join(f"`{key}`" for key in keys) + "."


def _list(title: str, members: Iterator[tuple[str, str]], others: Container[str] = ()) -> str:
    points = [_wrapped(f"- `{name}`: {markdown(text, others)}", "  ") for name, text in members]
    return "\n".join([title, "", *points]) if points else ""


def _of_module(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Give the public names of a package with the first lines of their docstrings, or the entries of registries."""
    for name in getattr(module, "__all__", None) or [*vars(module)]:
        member = getattr(module, name)
        here = callable(member) and member.__module__.startswith(module.__name__)
        if name.isupper() and isinstance(member, dict):
            yield name, _entries(member)
        elif here and not name.startswith("_") and member.__doc__:
            yield name, inspect.cleandoc(member.__doc__).splitlines()[0]


def _of_class(cls: type) -> Iterator[tuple[str, str]]:
    """Give the methods and properties that dctps defines and describes, and that are not those of torch's classes."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("dctps")]
    seen = {name for base in cls.__mro__ if base not in ours for name in vars(base)}
    seen |= getattr(cls, "__dataclass_fields__", {}).keys()
    for name, member in [pair for base in ours for pair in vars(base).items()]:
        function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
        if name.startswith("_") or name in seen or not inspect.isfunction(function) or not function.__doc__:
            continue
        seen.add(name)
        summary = inspect.cleandoc(function.__doc__).split("\n\n")[0]
        yield name if isinstance(member, property) else name + _names(function), summary


def _names(function: Any) -> str:
    """Return the names of the arguments of a method, as (shape, nnz, seed)."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return f"({', '.join(names)})"
