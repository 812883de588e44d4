"""Syntax trees of the library: files, imports and names."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from attrs import frozen

import smartbatch

ROOT = Path(smartbatch.__file__).parent


EXACTLY_AT = "smartbatch"


@frozen
class Import:
    file: Path
    line: int
    module: str
    late: bool
    """In a function, or only for type checkers."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT.parent)}:{self.line} imports {self.module}"


@cache
def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


def within(node: ast.AST) -> list[ast.AST]:
    """Like ``ast.walk``, but without contexts of names, which halves the time."""
    found = [node]
    for each in found:  # grows during the loop
        for name in each._fields:
            value = getattr(each, name, None)
            if isinstance(value, list):
                found += [part for part in value if isinstance(part, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


@cache
def nodes(file: Path) -> list[ast.AST]:
    return within(tree(file))


def room(file: Path) -> str:
    """Return the package of a file, or the name of a top-level file."""
    inside = file.relative_to(ROOT)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


IMPORTS_BY_NAME = ("import_module", "__import__", "imported")


def last_name(node: ast.AST) -> str:
    """Return the part after the last dot; empty for anything but a name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def names_in(node: ast.AST) -> set[str]:
    """Return the names in a tree, including those in strings."""
    found: set[str] = set()
    for each in within(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            found.update(re.findall(r"\w+", each.value))
        else:
            found.add(last_name(each))
    return found - {""}


def named_module(call: ast.Call) -> str:
    """Return the module imported by a call; if it is unknown, the library's top level, which no package may
    use.
    """
    name = call.args[0] if call.args else None
    if isinstance(name, ast.JoinedStr):
        name = name.values[0]
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value.rstrip(".")
    return EXACTLY_AT


@cache
def imports(file: Path) -> list[Import]:
    """Return all imports of a file, including those in functions and by calls."""

    late = {
        line
        for node in nodes(file)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in names_in(node.test))
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    found: list[Import] = []
    for node in nodes(file):
        if isinstance(node, ast.Import):
            named = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} is a relative import"
            module = node.module or ""
            named = [f"{module}.{name.name}" for name in node.names] if module == EXACTLY_AT else [module]
        elif isinstance(node, ast.Call) and last_name(node.func) in IMPORTS_BY_NAME:
            if file.name == "_fork.py":  # its callers name the module
                continue
            named = [named_module(node)]
        else:
            continue
        found += [Import(file, node.lineno, name, node.lineno in late) for name in named]
    return found


@cache
def annotated(file: Path) -> list[tuple[str, set[str]]]:
    return [
        (node.arg if isinstance(node, ast.arg) else last_name(node.target), names_in(node.annotation))
        for node in nodes(file)
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None
    ]


@cache
def assigned(file: Path) -> list[tuple[str, set[str]]]:
    return [
        (last_name(target), names_in(node.value))
        for node in nodes(file)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name | ast.Attribute)
    ]


def names_of(file: Path, *made_by: str) -> set[str]:
    """Return the names of variables assigned from, or annotated with, ``made_by``."""
    known = set(made_by)
    known.update([name for name, words in annotated(file) if words & known])
    for _ in range(3):  # follows names assigned from other names
        for name, words in assigned(file):
            if words & known:
                known.add(name)
    return known


def module_name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return the files imported by each file, including imports in functions and for type checkers.

    A package whose ``__init__`` loads its names on first use imports nothing: its imports are for type
    checkers.
    """
    names = {module_name(file, root): file for file in sorted(root.rglob("*.py"))}
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        found = graph.setdefault(name, set())
        for node in nodes(file):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                whole = {f"{node.module}.{each.name}" for each in node.names}
                found.update(one for one in whole | {node.module} if one in names)
                if whole & names.keys() and all(one in names for one in whole):
                    found.discard(node.module)  # the files of the package, not the package
            elif isinstance(node, ast.Import):
                found.update(each.name for each in node.names if each.name in names)
        found.discard(name)
        if file.name == "__init__.py" and any(
            isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree(file).body
        ):
            found.clear()
    return graph


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def private_names(file: Path) -> set[str]:
    """Return the private names that a file defines."""
    found: set[str] = set()
    for node in nodes(file):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
            found.update(str(each.value) for each in ast.walk(node.value) if isinstance(each, ast.Constant))
    return {name for name in found if is_private(name)}


def code_lines(file: Path) -> list[tuple[int, str]]:
    """Return stripped lines with numbers, without imports, signatures, docstrings and comments."""
    aside: set[int] = set()
    for node in nodes(file):
        if isinstance(node, ast.Import | ast.ImportFrom):
            aside.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            aside.update(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            aside.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = ((number, line.strip()) for number, line in enumerate(file.read_text("utf-8").splitlines(), 1))
    return [(number, line) for number, line in lines if number not in aside and line and line[0] != "#"]


def written_lines(file: Path) -> int:
    """Count lines of code: neither blank, comment nor docstring."""
    aside = {
        number
        for node in nodes(file)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    lines = (line.strip() for line in file.read_text("utf-8").splitlines())
    return sum(1 for number, line in enumerate(lines, 1) if line and line[0] != "#" and number not in aside)
