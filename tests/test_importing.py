"""How often the garbage collector looks, while modules are imported and while a command runs."""

from __future__ import annotations

import gc
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from smartbatch._importing import NEW_OBJECTS, NEW_OBJECTS_OF_AN_SDK, collected_seldom, collector_slowed


@pytest.fixture(autouse=True)
def nothing_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a program: the tests freeze what they have collected, and count it once."""
    monkeypatch.setattr(gc, "get_freeze_count", inspect.unwrap(gc.get_freeze_count))
    gc.unfreeze()
    yield
    gc.freeze()


def test_a_command_is_collected_seldom_and_leaves_the_collector_as_it_was() -> None:
    before, made_before = gc.get_threshold(), [object()]
    with collected_seldom():
        assert gc.get_threshold() == (NEW_OBJECTS, *before[1:])
        assert any(each is made_before for each in gc.get_objects(generation=2))
    assert gc.get_threshold() == before


def test_a_command_keeps_nothing_from_the_collector_which_would_be_counted_at_each_import() -> None:
    with collected_seldom():
        assert gc.get_freeze_count() == 0


def test_objects_that_the_program_itself_keeps_from_the_collector_stay_so() -> None:
    gc.freeze()
    kept = gc.get_freeze_count()
    with collected_seldom():
        assert 0 < gc.get_freeze_count() <= kept  # a thread of another test may free some of them
    assert 0 < gc.get_freeze_count() <= kept


def test_the_collector_looks_seldom_while_a_module_is_imported_and_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_slowly.py").write_text("import gc; SEEN = gc.get_threshold()[0], gc.isenabled()")
    monkeypatch.syspath_prepend(tmp_path)
    before = gc.get_threshold()
    with collector_slowed("imported_slowly"):
        assert importlib.import_module("imported_slowly").SEEN == (NEW_OBJECTS_OF_AN_SDK, True)
    assert gc.get_threshold() == before


def test_a_module_that_is_imported_already_changes_nothing_of_the_collector() -> None:
    before = gc.get_threshold()
    with collector_slowed("gc"):
        assert gc.get_threshold() == before


@pytest.mark.parametrize("own", [0, NEW_OBJECTS_OF_AN_SDK + 1])
def test_a_program_that_wants_the_collector_as_seldom_or_never_keeps_that(own: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(own)
    try:
        with collector_slowed("not_imported"):
            assert gc.get_threshold()[0] == own
        assert gc.get_threshold()[0] == own
    finally:
        gc.set_threshold(*before)


def test_a_threshold_that_the_program_sets_while_a_module_is_imported_stays() -> None:
    before = gc.get_threshold()
    try:
        with collector_slowed("not_imported"):
            gc.set_threshold(5_000, 20, 20)
        assert gc.get_threshold() == (5_000, 20, 20)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_modules_imported_at_once_leave_the_collector_as_it_was(first_ends_first: bool) -> None:
    before = gc.get_threshold()
    first, second = collector_slowed("not_imported"), collector_slowed("not_imported_either")
    first.__enter__()
    second.__enter__()
    for each in (first, second) if first_ends_first else (second, first):
        each.__exit__(None, None, None)
    assert gc.get_threshold() == before
