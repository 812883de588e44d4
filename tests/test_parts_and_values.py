"""Classes made with attrs: values are compared and shown by their content, working parts are not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.syntax import files, last_name, names_in, nodes

WORKING = frozenset(
    {"Clock", "Lock", "RLock", "Monitor", "SqlStore", "Realtime", "JobRuntime", "JobsEngine"}
    | {"JobSubmission", "EventBus", "Transport", "ConnectionPool"}
)
"""Types that only working parts contain; their repr would show everything they contain in turn."""


def fields_of(made: ast.ClassDef) -> Iterator[set[str]]:
    for each in made.body:
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.annotation).startswith("Callable"):
            yield names_in(each.annotation)


def left_off(made: ast.ClassDef, *makers: str) -> set[str] | None:
    """Return what a decorator from ``makers`` switches off; ``None`` for other classes."""
    for decorator in made.decorator_list:
        if last_name(getattr(decorator, "func", decorator)) in makers:
            given = getattr(decorator, "keywords", [])
            return {each.arg for each in given if ast.unparse(each.value) == "False"}
    return None


def classes(source: list[ast.AST]) -> Iterator[tuple[ast.ClassDef, set[str]]]:
    for made in source:
        if isinstance(made, ast.ClassDef):
            methods = {each.name.strip("_") for each in made.body if isinstance(each, ast.FunctionDef)}
            given = [each.targets for each in made.body if isinstance(each, ast.Assign)]
            yield made, methods | {ast.unparse(target).strip("_") for targets in given for target in targets}


def compared_or_shown(source: list[ast.AST]) -> list[str]:
    return [
        made.name
        for made, methods in classes(source)
        if any(names & WORKING for names in fields_of(made))
        and (off := left_off(made, "frozen", "define")) is not None
        and not {"eq", "repr"} <= off | methods
    ]


@pytest.mark.full
def test_a_part_is_compared_by_identity_and_shown_by_its_name():
    """An error tracker that shows local variables would send settings, stores and requests otherwise."""
    assert [name for file in files() for name in compared_or_shown(nodes(file))] == []
