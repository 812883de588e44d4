"""How often the garbage collector looks, while modules are imported and while a command runs."""

from __future__ import annotations

import gc

from smartbatch._importing import NEW_OBJECTS, collected_seldom


def test_a_command_is_collected_seldom_and_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    with collected_seldom():
        assert gc.get_threshold() == (NEW_OBJECTS, *before[0][1:])
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_objects_that_the_program_itself_keeps_from_the_collector_stay_so() -> None:
    before = gc.get_freeze_count()
    gc.freeze()
    try:
        kept = gc.get_freeze_count()
        with collected_seldom():
            assert gc.get_freeze_count() == kept
        assert gc.get_freeze_count() == kept
    finally:
        if not before:
            gc.unfreeze()
