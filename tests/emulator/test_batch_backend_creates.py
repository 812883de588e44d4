"""Creates that go wrong, the files they name, and the lists they appear in."""

from __future__ import annotations

import math

import pytest
from batch_backend_world import ME, World

from smartbatch.emulator.batches.batch_records import AnswerLost, BatchBackendError


def test_a_lost_create_exists_without_an_answer():
    world = World(batch_faults={"lost_create": 1.0})
    with pytest.raises(AnswerLost) as caught:
        world.create(label={"sb": "n"})
    assert caught.value.damage == "reset"
    [batch] = world.backend.batches(*ME, 0.0)
    assert batch.label == {"sb": "n"}
    assert world.figures()["by_outcome"] == {"lost": 1}
    assert world.figures()["created"] == 1


def test_a_dropped_create_never_happened():
    world = World(batch_faults={"dropped_create": 1.0})
    with pytest.raises(AnswerLost) as caught:
        world.create()
    assert caught.value.damage == "reset_before"
    assert world.backend.batches(*ME, 1e6) == []
    assert (world.figures()["created"], world.figures()["lines_ran"]) == (0, 0)


def test_a_late_create_comes_to_exist_within_its_time():
    """It is seen from then on, created then, and runs from then."""
    world = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100, batch_turnaround=10)
    with pytest.raises(AnswerLost) as caught:
        world.create(now=50.0)
    assert caught.value.damage == "reset"
    assert world.backend.batches(*ME, 50.0) == []
    [batch] = world.backend.batches(*ME, 150.0)
    assert 50.0 < batch.created_at <= 150.0
    [record] = world.ledger.batches
    assert (record.outcome, record.at, record.created_at) == ("late", 50.0, batch.created_at)
    # In a world of its own the same random numbers: absent just before, there at the very moment.
    again = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100)
    with pytest.raises(AnswerLost):
        again.create(now=50.0)
    assert again.backend.batches(*ME, math.nextafter(batch.created_at, 0)) == []
    assert len(again.backend.batches(*ME, batch.created_at)) == 1


def late_world() -> tuple[World, str]:
    world = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100, batch_turnaround=10)
    file = world.backend.put_file("openai", "k", "in", b"", 0.0, identity="chosen")
    with pytest.raises(AnswerLost):
        world.create(file_id=file.id)
    return world, file.id


def test_deleting_the_input_file_fences_a_late_create_off():
    """It never comes to exist, costs nothing, and the ledger says why."""
    world, file = late_world()
    assert world.backend.delete_file(*ME, file, 0.0)
    assert world.backend.batches(*ME, 1e6) == []
    assert world.figures()["fenced"] == 1
    assert world.figures()["by_outcome"] == {"fenced": 1}
    assert world.figures()["lines_billed"] == 0


def test_a_fence_comes_too_late_for_a_create_that_has_arrived():
    """Deleting the file then does not stop the batch: it runs, and is billed."""
    world, file = late_world()
    assert world.backend.delete_file(*ME, file, 100.0)
    [batch] = world.backend.batches(*ME, 1e6)
    assert batch.state == "completed"
    assert batch.file_id == file
    assert (world.figures()["fenced"], world.figures()["lines_billed"]) == (0, 10)


def test_a_file_name_used_again_opens_the_fence():
    world, file = late_world()
    world.backend.delete_file(*ME, file, 0.0)
    world.backend.put_file("openai", "k", "in", b"", 0.0, identity="chosen")
    assert len(world.backend.batches(*ME, 1e6)) == 1


def test_a_create_that_names_a_missing_file_is_refused():
    world = World()
    with pytest.raises(BatchBackendError) as caught:
        world.create(file_id="file-gone")
    assert caught.value.reason == "no_such_file"
    assert world.figures()["by_outcome"] == {"refused": 1}


def test_a_chosen_file_name_is_taken_until_the_file_is_gone():
    """The second put meets the first; after a deletion or its time the name is free."""
    backend = World().backend
    backend.put_file(*ME, "a", b"1", 0.0, identity="chosen", lifetime=10.0)
    with pytest.raises(BatchBackendError) as caught:
        backend.put_file(*ME, "a", b"2", 9.9, identity="chosen")
    assert caught.value.reason == "exists"
    assert backend.file(*ME, "chosen", 9.9).data == b"1"
    assert backend.file(*ME, "chosen", 10.0) is None
    assert backend.files(*ME, 10.0) == []
    assert backend.put_file(*ME, "a", b"2", 10.0, identity="chosen").data == b"2"
    assert backend.delete_file(*ME, "chosen", 11.0)
    assert not backend.delete_file(*ME, "chosen", 11.0)


def test_files_are_listed_newest_first():
    backend = World().backend
    names = [backend.put_file(*ME, f"f{step}", b"", float(step)).id for step in range(3)]
    assert [file.id for file in backend.files(*ME, 9.0)] == names[::-1]


@pytest.mark.parametrize(("fault", "listed", "got"), [("list_lag", False, True), ("get_lag", True, False)])
def test_a_lagging_batch_is_not_seen_everywhere_at_once(fault, listed, got):
    """One way to look does not find it yet, the other does; after the lag both do."""
    world = World(batch_faults={fault: 1.0}, batch_list_lag=60, batch_get_lag=60, batch_turnaround=5)
    name = world.create().id
    assert bool(world.backend.batches(*ME, 0.0)) is listed
    assert bool(world.batch(name, 0.0)) is got
    assert world.backend.batches(*ME, 60.0)
    assert world.batch(name, 60.0)
