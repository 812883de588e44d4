"""Classes made with attrs: a value is compared and shown by what it holds, a part that works is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define, field, frozen

from smartbatch._values import Record, Value
from tests.syntax import files, last_name, names_in, nodes

WORKING = frozenset(
    {"Clock", "Lock", "RLock", "Monitor", "SqlStore", "OpenedStore", "Realtime", "JobRuntime", "JobService"}
    | {"JobSubmission", "EventBus", "Transport", "ConnectionPool"}
)
"""What only parts hold: its repr would go on through all that it holds in turn."""

COMPILED = {"Embedding"}
"""It is compared with each request."""


def fields_of(made: ast.ClassDef) -> Iterator[set[str]]:
    """The names in the annotation of each field; what a field calls is no part of the class."""
    for each in made.body:
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.annotation).startswith("Callable"):
            yield names_in(each.annotation)


def left_off(made: ast.ClassDef, *makers: str) -> set[str] | None:
    """What attrs does not compile for a class made with one of ``makers``; ``None`` for other classes."""
    for decorator in made.decorator_list:
        if last_name(getattr(decorator, "func", decorator)) in makers:
            given = getattr(decorator, "keywords", [])
            return {each.arg for each in given if ast.unparse(each.value) == "False"}
    return None


def classes(source: list[ast.AST]) -> Iterator[tuple[ast.ClassDef, set[str]]]:
    """The classes, each with the names of its own methods, as attrs names them."""
    for made in source:
        if isinstance(made, ast.ClassDef):
            methods = {each.name.strip("_") for each in made.body if isinstance(each, ast.FunctionDef)}
            given = [each.targets for each in made.body if isinstance(each, ast.Assign)]
            yield made, methods | {ast.unparse(target).strip("_") for targets in given for target in targets}


def is_a(root: str, made: ast.ClassDef) -> bool:
    """Whether a class is compared and shown by its fields without attrs."""
    return root in map(last_name, made.bases)


def compared_or_shown(source: list[ast.AST]) -> list[str]:
    """The classes that hold what only parts hold, and are compared or shown by it all the same."""
    return [
        made.name
        for made, methods in classes(source)
        if any(names & WORKING for names in fields_of(made))
        and (off := left_off(made, "frozen", "define")) is not None
        and (is_a("Value", made) or is_a("Record", made) or not {"eq", "repr"} <= off | methods)
    ]


def compiled(source: list[ast.AST]) -> list[str]:
    """The classes for which attrs compiles what values and records share."""
    return [
        made.name
        for made, methods in classes(source)
        if (off := left_off(made, "frozen", "define")) is not None and not {"eq", "repr"} <= off | methods
    ]


def test_a_part_is_compared_by_identity_and_shown_by_its_name() -> None:
    """An error tracker that shows local variables would send settings, stores and requests otherwise."""
    assert [name for file in files() for name in compared_or_shown(nodes(file))] == []


def test_a_part_that_shows_what_it_holds_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "@frozen(eq=False)\nclass Shown:\n    clock: Clock\n"
        "@define\nclass Compared:\n    lock: threading.Lock\n"
        "@frozen(eq=False, repr=False)\nclass Both(Value):\n    clock: Clock\n"
        "@define(eq=False, repr=False)\nclass Changing(Record):\n    clock: Clock\n"
        "@define(eq=False, repr=False)\nclass Part:\n    clock: Clock\n"
        "@frozen\nclass Value:\n    seconds: float\n    make: Callable[[], Clock]\n"
    )
    source = list(ast.walk(ast.parse((tmp_path / "a.py").read_text())))
    assert compared_or_shown(source) == ["Shown", "Compared", "Both", "Changing"]


def test_values_and_records_share_how_they_are_compared_and_shown() -> None:
    """Compiled functions of their own take a tenth of the processor time until the first request."""
    own = [name for file in files() if "emulator" not in file.parts for name in compiled(nodes(file))]
    assert set(own) == COMPILED


def test_what_can_change_is_no_value() -> None:
    """Its hash would change with it."""
    found = [made for file in files() for made, _ in classes(nodes(file)) if is_a("Value", made)]
    assert len(found) > 100
    assert [made.name for made in found if left_off(made, "frozen") is None] == []


def test_a_class_with_compiled_functions_would_be_found() -> None:
    source = ast.parse(
        "@frozen\nclass Own:\n    seconds: float\n"
        "@frozen(eq=False)\nclass Shown:\n    seconds: float\n"
        "@define\nclass Changing:\n    seconds: float\n"
        "@define(eq=False)\nclass Named:\n    seconds: float\n    __repr__ = fields_repr\n"
        "@frozen(eq=False, repr=False)\nclass Shares(Value):\n    seconds: float\n"
    )
    assert compiled(list(ast.walk(source))) == ["Own", "Shown", "Changing"]


@frozen(eq=False, repr=False)
class Point(Value):
    """Each field in its own way."""

    x: float
    name: str = field(default="", eq=False)
    secret: str = field(default="", repr=False)
    values: tuple[int, ...] = field(default=(), repr=len)


def test_a_value_is_equal_to_one_of_its_class_with_equal_fields() -> None:
    class Other(Point):
        pass

    assert Point(1.0) == Point(1.0, name="not compared")
    assert hash(Point(1.0)) == hash(Point(1.0, name="not compared"))
    assert Point(1.0) != Point(2.0)
    assert Point(1.0, secret="a") != Point(1.0)
    assert Point(1.0) != Other(1.0)
    assert Point(1.0) != (1.0, "", "", ())
    assert {Point(1.0): "found"}[Point(1.0)] == "found"


def test_a_value_is_shown_by_its_fields() -> None:
    assert repr(Point(1.0, "a", "hidden", (1, 2))) == "Point(x=1.0, name='a', values=2)"


@define(eq=False, repr=False)
class Counts(Record):
    """It may change."""

    calls: int = 0
    told: int = field(default=0, eq=False)


def test_a_record_is_compared_and_shown_by_its_fields_as_they_are_now_and_has_no_hash() -> None:
    counts = Counts()
    counts.calls += 1
    assert counts == Counts(calls=1, told=2)
    assert counts != Counts()
    assert repr(counts) == "Counts(calls=1, told=0)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(counts)
