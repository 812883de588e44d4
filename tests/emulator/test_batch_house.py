"""The house of files and batches, driven in virtual time."""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smartbatch.emulator import BATCH_FAULTS, LINE_FAULTS, Call, Ledger, Settings
from smartbatch.emulator.api import Done
from smartbatch.emulator.house import House
from smartbatch.emulator.house_plan import BatchDice, timeline
from smartbatch.emulator.house_records import (
    Entry,
    HouseError,
    Line,
    Lost,
    Problem,
    RemoteBatch,
    entry_of,
    wrong_entry,
)
from smartbatch.emulator.openai_embeddings import parse_embeddings
from smartbatch.emulator.requests import Refused
from smartbatch.errors import ConfigError

ME = ("openai", "k")


def entry(number: int, charge: int = 5) -> Entry:
    body = json.dumps({"answer": number, "usage": {"total_tokens": 7}}).encode()
    return Entry(f"id-{number}", f"prompt-{number}", charge, lambda identity: Done(body, 2, 7))


def entries(count: int) -> list[Entry]:
    return [entry(number) for number in range(count)]


class World:
    """A house, its ledger, and the account of one client."""

    def __init__(self, api: str = "openai", **options: Any) -> None:
        self.ledger = Ledger()
        self.house = House(Settings(**options), self.ledger)
        self.api = api

    def create(self, now: float = 0.0, count: int = 10, **options: Any) -> RemoteBatch:
        return self.house.create(self.api, "k", entries(count), now=now, model="m", **options)

    def batch(self, name: str, now: float) -> RemoteBatch | None:
        return self.house.batch(self.api, "k", name, now)

    def ended(self, now: float = 1000.0, **options: Any) -> RemoteBatch:
        """Create a batch and return it at a late time."""
        found = self.batch(self.create(**options).id, now)
        assert found is not None
        assert found.ended
        return found

    def lines(self, name: str, now: float = 1000.0) -> list[Line]:
        return self.house.outputs(self.api, "k", name, now)

    def figures(self) -> dict[str, Any]:
        return self.ledger.summary()["batches"]


def by_position(lines: list[Line]) -> dict[int | None, list[Line]]:
    found: dict[int | None, list[Line]] = {}
    for line in lines:
        found.setdefault(line.position, []).append(line)
    return found


# the course of a batch


def test_a_batch_goes_from_validation_to_its_end_and_its_counts_grow():
    """Every state at its time; a tenth of the run is left for putting the results together."""
    world = World(batch_validating=10, batch_queueing=10, batch_turnaround=120)
    name = world.create().id
    seen = {now: world.batch(name, now) for now in (0, 9.9, 10, 19.9, 20, 65, 110, 119.9, 120)}
    states = [batch.state for batch in seen.values()]
    assert states == [
        "validating",
        "validating",
        "queued",
        "queued",
        "running",
        "running",
        "finalizing",
        "finalizing",
        "completed",
    ]
    assert [batch.counts.succeeded for batch in seen.values()] == [0, 0, 0, 0, 0, 5, 10, 10, 10]
    assert [batch.counts.waiting for batch in seen.values()] == [10, 10, 10, 10, 10, 5, 0, 0, 0]
    last = seen[120]
    assert (last.created_at, last.started_at, last.finalizing_at, last.ended_at) == (0, 20, 110, 120)
    assert seen[119.9].ended_at is None
    assert (last.input_tokens, last.output_tokens) == (50, 20)


def test_a_line_is_billed_exactly_when_it_has_run():
    """Not earlier, and not only when somebody asks for the batch."""
    world = World(batch_turnaround=100)
    world.create()
    billed = []
    for now in (0.0, 8.9, 9.0, 44.9, 90.0):
        world.house.advance(now)
        billed.append(world.figures()["lines_billed"])
    assert billed == [0, 0, 1, 4, 10]
    [record] = world.ledger.batches
    assert [line.at for line in record.lines.values()] == [9.0 * step for step in range(1, 11)]
    assert {line.billed for line in record.lines.values()} == {7}


def test_without_any_time_a_batch_ends_at_once():
    world = World()
    assert world.create().state == "completed"


def test_the_newest_batch_comes_first_in_the_list():
    world = World()
    names = [world.create(now=float(step)).id for step in range(3)]
    assert [batch.id for batch in world.house.batches(*ME, 5.0)] == names[::-1]


def test_another_key_or_provider_sees_nothing_of_it():
    """Neither batches nor files, and it can neither cancel nor delete them."""
    world = World(batch_turnaround=10)
    file = world.house.put_file(*ME, "in.jsonl", b"x", 0.0)
    name = world.create(file_id=file.id).id
    for other in (("openai", "other"), ("anthropic", "k")):
        assert world.house.batch(*other, name, 1.0) is None
        assert world.house.batches(*other, 1.0) == []
        assert world.house.cancel(*other, name, 1.0) is None
        assert world.house.file(*other, file.id, 1.0) is None
        assert world.house.files(*other, 1.0) == []
        assert not world.house.delete_file(*other, file.id, 1.0)
        with pytest.raises(HouseError, match="No batch found"):
            world.house.outputs(*other, name, 20.0)
        with pytest.raises(HouseError) as caught:
            world.house.create(*other, entries(1), now=1.0, file_id=file.id)
        assert caught.value.reason == "no_such_file"


def test_ids_are_never_used_again():
    """Not after a deletion, and not after a reset."""
    world = World()
    seen = set()
    for _ in range(3):
        file = world.house.put_file(*ME, "in", b"", 0.0)
        batch = world.create()
        seen |= {file.id, batch.id, batch.output_id}
        world.house.delete_file(*ME, file.id, 0.0)
        world.house.delete(*ME, batch.id, 0.0)
        world.house.reset()
    assert len(seen) == 9


def test_turnaround_varies_around_its_median():
    """Lognormal: half of the batches are faster, and the logarithms have the sigma."""
    dice = BatchDice(Settings(batch_turnaround=60, batch_turnaround_sigma=0.5))
    logs = [math.log(dice.turnaround("openai", index)) for index in range(2000)]
    assert statistics.median(logs) == pytest.approx(math.log(60), abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.1)


@given(
    st.integers(1, 40),
    st.floats(0, 50),
    st.floats(0, 50),
    st.floats(0, 200),
    st.lists(st.floats(0, 400), min_size=1, max_size=12),
    st.sampled_from(["", "expire_part", "expire_all", "stuck", "no_money_lines", "cancel_completes"]),
    st.none() | st.floats(0, 300),
)
@settings(max_examples=150, deadline=None)
def test_counts_only_grow_and_add_up_at_any_time(
    count, validating, queueing, turnaround, times, fault, cancel
):
    """Whenever somebody looks, in whatever steps; and the ledger agrees with what is seen."""
    world = World(
        batch_validating=validating,
        batch_queueing=queueing,
        batch_turnaround=turnaround,
        batch_cancel_seconds=3.0,
        batch_fault_for=lambda index, label: fault or (),
    )
    name = world.create(count=count).id
    ran, ended = 0, False
    for now in sorted(times):
        if cancel is not None and cancel <= now:
            world.house.cancel(*ME, name, now)
            cancel = None
        seen = world.batch(name, now)
        counts = seen.counts
        total = counts.waiting + counts.succeeded + counts.errored + counts.cancelled + counts.expired
        assert total == count
        assert counts.succeeded + counts.errored >= ran
        assert seen.ended or not ended
        ran, ended = counts.succeeded + counts.errored, seen.ended
        assert world.figures()["lines_ran"] == ran
    if ended:
        assert len(world.lines(name)) == count


@given(st.integers(1, 200), st.floats(0, 1e6), st.floats(1e-3, 1e5), st.integers(0, 199))
@settings(max_examples=300, deadline=None)
def test_a_line_has_run_at_its_own_time(total, landed, turnaround, position):
    """However the division rounds."""
    plan = timeline(Settings(), landed, turnaround, total, frozenset(), failing=False)
    position %= total
    assert plan.ran(plan.line_at(position)) >= position + 1
    before = math.nextafter(plan.line_at(position), -math.inf)
    assert plan.ran(before) <= position + sum(plan.line_at(p) <= before for p in range(position, total))


# creates that go wrong


def test_a_lost_create_exists_though_nobody_was_told():
    world = World(batch_faults={"lost_create": 1.0})
    with pytest.raises(Lost) as caught:
        world.create(label={"sb": "n"})
    assert caught.value.damage == "reset"
    [batch] = world.house.batches(*ME, 0.0)
    assert batch.label == {"sb": "n"}
    assert world.figures()["by_fate"] == {"lost": 1}
    assert world.figures()["landed"] == 1


def test_a_dropped_create_never_happened():
    world = World(batch_faults={"dropped_create": 1.0})
    with pytest.raises(Lost) as caught:
        world.create()
    assert caught.value.damage == "reset_before"
    assert world.house.batches(*ME, 1e6) == []
    assert (world.figures()["landed"], world.figures()["lines_ran"]) == (0, 0)


def test_a_late_create_comes_to_exist_within_its_time():
    """It is seen from then on, created then, and runs from then."""
    world = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100, batch_turnaround=10)
    with pytest.raises(Lost) as caught:
        world.create(now=50.0)
    assert caught.value.damage == "reset"
    assert world.house.batches(*ME, 50.0) == []
    [batch] = world.house.batches(*ME, 150.0)
    assert 50.0 < batch.created_at <= 150.0
    [record] = world.ledger.batches
    assert (record.fate, record.at, record.landed_at) == ("late", 50.0, batch.created_at)
    # In a world of its own the same dice: absent just before, there at the very moment.
    again = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100)
    with pytest.raises(Lost):
        again.create(now=50.0)
    assert again.house.batches(*ME, math.nextafter(batch.created_at, 0)) == []
    assert len(again.house.batches(*ME, batch.created_at)) == 1


def late_world() -> tuple[World, str]:
    world = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100, batch_turnaround=10)
    file = world.house.put_file("openai", "k", "in", b"", 0.0, identity="chosen")
    with pytest.raises(Lost):
        world.create(file_id=file.id)
    return world, file.id


def test_deleting_the_input_file_fences_a_late_create_off():
    """It never comes to exist, costs nothing, and the ledger says why."""
    world, file = late_world()
    assert world.house.delete_file(*ME, file, 0.0)
    assert world.house.batches(*ME, 1e6) == []
    assert world.figures()["fenced"] == 1
    assert world.figures()["by_fate"] == {"fenced": 1}
    assert world.figures()["lines_billed"] == 0


def test_a_fence_comes_too_late_for_a_create_that_has_landed():
    """Deleting the file then does not hurt the batch: it runs, and is billed."""
    world, file = late_world()
    assert world.house.delete_file(*ME, file, 100.0)
    [batch] = world.house.batches(*ME, 1e6)
    assert batch.state == "completed"
    assert batch.file_id == file
    assert (world.figures()["fenced"], world.figures()["lines_billed"]) == (0, 10)


def test_a_file_name_used_again_opens_the_fence():
    """Whoever chooses names must not choose one twice."""
    world, file = late_world()
    world.house.delete_file(*ME, file, 0.0)
    world.house.put_file("openai", "k", "in", b"", 0.0, identity="chosen")
    assert len(world.house.batches(*ME, 1e6)) == 1


def test_a_create_that_names_a_missing_file_is_refused():
    world = World()
    with pytest.raises(HouseError) as caught:
        world.create(file_id="file-gone")
    assert caught.value.reason == "no_such_file"
    assert world.figures()["by_fate"] == {"refused": 1}


def test_a_chosen_file_name_is_taken_until_the_file_is_gone():
    """The second put meets the first; after a deletion or its time the name is free."""
    house = World().house
    house.put_file(*ME, "a", b"1", 0.0, identity="chosen", lifetime=10.0)
    with pytest.raises(HouseError) as caught:
        house.put_file(*ME, "a", b"2", 9.9, identity="chosen")
    assert caught.value.reason == "exists"
    assert house.file(*ME, "chosen", 9.9).data == b"1"
    assert house.file(*ME, "chosen", 10.0) is None
    assert house.files(*ME, 10.0) == []
    assert house.put_file(*ME, "a", b"2", 10.0, identity="chosen").data == b"2"
    assert house.delete_file(*ME, "chosen", 11.0)
    assert not house.delete_file(*ME, "chosen", 11.0)


def test_files_are_listed_newest_first():
    house = World().house
    names = [house.put_file(*ME, f"f{step}", b"", float(step)).id for step in range(3)]
    assert [file.id for file in house.files(*ME, 9.0)] == names[::-1]


@pytest.mark.parametrize(("fault", "listed", "got"), [("list_lag", False, True), ("get_lag", True, False)])
def test_a_lagging_batch_is_not_seen_everywhere_at_once(fault, listed, got):
    """One way to look does not find it yet, the other does; after the lag both do."""
    world = World(batch_faults={fault: 1.0}, batch_list_lag=60, batch_get_lag=60, batch_turnaround=5)
    name = world.create().id
    assert bool(world.house.batches(*ME, 0.0)) is listed
    assert bool(world.batch(name, 0.0)) is got
    assert world.house.batches(*ME, 60.0)
    assert world.batch(name, 60.0)


# ends


def test_what_has_not_run_within_the_window_expires_unbilled():
    world = World(batch_turnaround=100, batch_window=50)
    batch = world.ended()
    assert (batch.state, batch.ended_at, batch.expires_at) == ("expired", 50, 50)
    assert (batch.counts.succeeded, batch.counts.expired) == (5, 5)
    assert [line.outcome for line in world.lines(batch.id)] == ["succeeded"] * 5 + ["expired"] * 5
    assert world.figures()["lines_billed"] == 5
    assert None not in (batch.output_id, batch.error_id)


@pytest.mark.parametrize(("fault", "done"), [("expire_part", 5), ("expire_all", 0)])
def test_a_batch_can_expire_with_part_or_nothing_done(fault, done):
    world = World(batch_turnaround=10, batch_faults={fault: 1.0})
    batch = world.ended()
    assert (batch.state, batch.ended_at, batch.expires_at) == ("expired", 10, 10)
    assert (batch.counts.succeeded, batch.counts.expired) == (done, 10 - done)
    assert world.figures()["lines_billed"] == done
    assert (batch.output_id is None) == (done == 0)


def test_a_cancelled_batch_keeps_what_has_run():
    """It ends after its cancelling; nothing runs meanwhile."""
    world = World(batch_turnaround=100, batch_cancel_seconds=30)
    name = world.create().id
    assert world.house.cancel(*ME, name, 50.0).state == "cancelling"
    assert world.house.cancel(*ME, name, 70.0).cancelling_at == 50.0
    assert world.batch(name, 79.9).state == "cancelling"
    batch = world.batch(name, 80.0)
    assert (batch.state, batch.ended_at) == ("cancelled", 80)
    assert (batch.counts.succeeded, batch.counts.cancelled) == (5, 5)
    assert Counter(line.outcome for line in world.lines(name)) == {"succeeded": 5, "cancelled": 5}
    assert world.figures()["lines_billed"] == 5
    assert world.ledger.batches[0].cancelled_at == 50.0


def test_a_cancel_in_the_validation_leaves_nothing_to_pay():
    world = World(batch_validating=10, batch_turnaround=100)
    name = world.create(problems=[Problem("x", "x")]).id
    world.house.cancel(*ME, name, 5.0)
    batch = world.batch(name, 50.0)
    assert (batch.state, batch.counts.cancelled) == ("cancelled", 10)
    assert world.figures()["lines_ran"] == 0


def test_a_batch_may_win_the_race_against_its_cancel():
    world = World(batch_turnaround=100, batch_cancel_seconds=5, batch_faults={"cancel_completes": 1.0})
    name = world.create().id
    assert world.house.cancel(*ME, name, 50.0).state == "cancelling"
    assert world.batch(name, 99.0).state == "cancelling"
    assert world.batch(name, 100.0).state == "completed"
    assert world.figures()["lines_billed"] == 10


def test_a_cancel_after_the_end_changes_nothing():
    world = World(batch_turnaround=10)
    name = world.create().id
    assert world.house.cancel(*ME, name, 10.0).state == "completed"
    assert world.ledger.batches[0].cancelled_at is None


def test_a_stuck_batch_never_ends_unless_it_is_cancelled():
    """Also past its window."""
    world = World(batch_turnaround=10, batch_window=50, batch_faults={"stuck": 1.0, "cancel_completes": 1.0})
    name = world.create().id
    assert world.batch(name, 1e9).state == "running"
    assert world.batch(name, 1e9).counts.waiting == 5
    assert world.house.cancel(*ME, name, 1e9).state == "cancelled"


def test_a_batch_that_fails_its_validation_runs_nothing():
    world = World(batch_validating=10, batch_turnaround=100, batch_faults={"fail_validation": 1.0})
    name = world.create().id
    assert world.batch(name, 9.9).state == "validating"
    assert world.batch(name, 9.9).problems == ()
    batch = world.batch(name, 10.0)
    assert (batch.state, batch.output_id, batch.error_id) == ("failed", None, None)
    assert batch.problems[0].code == "invalid_request"
    assert world.lines(name) == []
    assert world.figures()["lines_ran"] == 0


# enqueued tokens


def test_a_batch_above_the_enqueued_tokens_fails_after_its_create():
    """OpenAI's way: only its model and account count, and only until the others have ended."""
    world = World(batch_turnaround=10, batch_validating=1, batch_enqueued_tokens=70)
    first = world.create()
    second = world.create(now=1.0)
    failed = world.batch(second.id, 2.0)
    assert (failed.state, failed.problems[0].code) == ("failed", "token_limit_exceeded")
    assert "Limit: 70 enqueued tokens" in failed.problems[0].message
    other = world.house.create("openai", "k", entries(10), now=2.0, model="other")
    stranger = world.house.create("openai", "k2", entries(10), now=2.0, model="m")
    assert world.batch(other.id, 50.0).state == "completed"
    assert world.house.batch("openai", "k2", stranger.id, 50.0).state == "completed"
    assert world.batch(first.id, 50.0).state == "completed"
    assert world.batch(world.create(now=50.0).id, 99.0).state == "completed"
    assert world.figures()["lines_billed"] == 40


@pytest.mark.parametrize(("api", "refusal"), [("openai", "early"), ("anthropic", "late"), ("gemini", "late")])
def test_others_refuse_a_create_above_the_enqueued_tokens(api, refusal):
    """Nothing is created, so there is nothing that could fail later."""
    world = World(api, batch_turnaround=10, batch_enqueued_tokens=70, batch_enqueued_refusal=refusal)
    world.create()
    with pytest.raises(HouseError) as caught:
        world.create(now=1.0)
    assert caught.value.reason == "enqueued"
    assert world.figures()["by_fate"] == {"landed": 1, "refused": 1}
    assert world.create(now=20.0)


# lines that go wrong


def world_of_lines(
    fault: str, *, positions: tuple[int, ...] = (3,), **options: Any
) -> tuple[World, list[Line]]:
    world = World(
        batch_line_fault_for=lambda index, position, custom_id: fault if position in positions else None,
        **options,
    )
    return world, world.lines(world.ended().id)


def test_a_missing_line_is_billed_and_in_no_result():
    """The ledger knows that asking again is the only way."""
    world, lines = world_of_lines("missing_lines")
    assert 3 not in by_position(lines)
    assert len(lines) == 9
    [lost] = [line for line in world.ledger.batches[0].lines.values() if line.lost]
    assert (lost.custom_id, lost.billed) == ("id-3", 7)


def test_a_doubled_line_comes_twice_with_different_answers_and_is_billed_once():
    world, lines = world_of_lines("doubled_lines")
    first, second = by_position(lines)[3]
    assert first.custom_id == second.custom_id == "id-3"
    assert first.body != second.body
    assert (first.true, second.true) == (True, False)
    assert world.figures()["lines_billed"] == 10


def test_a_swapped_answer_is_that_of_another_line():
    world, lines = world_of_lines("swapped_answers")
    [line] = by_position(lines)[3]
    assert json.loads(line.body)["answer"] == 4
    assert not line.true
    assert world.figures()["lines_lost"] == 1


def test_a_single_line_has_nobody_to_swap_with():
    world = World(batch_faults={"swapped_answers": 1.0})
    [line] = world.lines(world.ended(count=1).id)
    assert json.loads(line.body)["answer"] == 0
    assert line.true
    assert world.figures()["lines_lost"] == 0


def test_a_foreign_line_carries_an_id_nobody_asked_for():
    _, lines = world_of_lines("foreign_lines")
    [foreign] = by_position(lines)[None]
    assert foreign.custom_id not in {f"id-{number}" for number in range(10)}
    assert len(lines) == 11


@pytest.mark.parametrize(
    ("fault", "error"), [("status_zero", "zero"), ("item_error", "server"), ("item_invalid", "invalid")]
)
def test_a_failed_line_is_not_billed(fault, error):
    world, lines = world_of_lines(fault)
    [line] = by_position(lines)[3]
    assert (line.outcome, line.error, line.body) == ("errored", error, b"")
    assert world.figures()["lines_billed"] == 9
    assert world.house.batches(*ME, 1e3)[0].counts.errored == 1


def test_an_answer_without_usage_is_billed_all_the_same():
    world, lines = world_of_lines("no_usage")
    assert json.loads(by_position(lines)[3][0].body) == {"answer": 3}
    assert "usage" in json.loads(by_position(lines)[4][0].body)
    assert world.figures()["lines_billed"] == 10


def test_malformed_lines_are_cut_or_garbage_and_leave_the_others_whole():
    world, _ = world_of_lines("malformed_lines", positions=tuple(range(0, 10, 2)), batch_turnaround=1)
    name = world.ledger.batches[0].id
    data = world.house.fetch(*ME, name, 10.0, write=lambda line: line.body).body
    rows = data.split(b"\n")[:-1]
    whole = [position for position, row in enumerate(rows) if is_json(row)]
    assert (len(rows), whole) == (10, [1, 3, 5, 7, 9])
    assert any(row.startswith(b"\x00") for row in rows)
    assert any(row.startswith(b'{"answer"') for row in rows[::2])


def is_json(row: bytes) -> bool:
    try:
        json.loads(row)
    except ValueError:
        return False
    return True


def test_a_request_that_is_wrong_fails_when_its_turn_comes():
    world = World()
    refused = Refused(400, "no messages", code="c")
    batch = world.house.create(*ME, [wrong_entry("a", refused), entry(1)], now=0.0)
    wrong, right = world.lines(batch.id)
    assert (wrong.outcome, wrong.status, wrong.error, wrong.body) == ("errored", 400, "refused", refused.body)
    assert right.outcome == "succeeded"
    assert world.figures()["lines_billed"] == 1


def test_without_money_every_line_fails_and_nothing_is_billed():
    world = World(batch_faults={"no_money_lines": 1.0})
    batch = world.ended()
    assert (batch.state, batch.output_id, batch.counts.errored) == ("completed", None, 10)
    assert {line.error for line in world.lines(batch.id)} == {"no_money"}
    assert world.figures()["lines_billed"] == 0


def test_shuffled_results_are_all_there_in_another_order():
    world = World(batch_faults={"shuffled": 1.0})
    positions = [line.position for line in world.lines(world.ended().id)]
    assert positions != sorted(positions) == list(range(10))


def test_wrong_counts_differ_from_the_lines():
    world = World(batch_faults={"wrong_counts": 1.0})
    batch = world.ended()
    assert batch.counts.succeeded == 9
    assert len(world.lines(batch.id)) == 10


def test_an_odd_status_is_told_for_half_of_the_run():
    world = World(batch_turnaround=100, batch_faults={"odd_status": 1.0})
    name = world.create().id
    assert [bool(world.batch(name, now).odd) for now in (0, 44, 46, 100)] == [True, True, False, False]


# results


def test_results_are_there_from_the_end_until_their_retention():
    world = World(batch_turnaround=10, batch_retention=100)
    name = world.create().id
    for now, reason in ((9.9, "not_ended"), (110.0, "gone")):
        with pytest.raises(HouseError) as caught:
            world.lines(name, now)
        assert caught.value.reason == reason
    batch = world.batch(world.create(now=200.0).id, 210.0)
    assert world.house.file(*ME, batch.output_id, 211.0).batch == batch.id
    assert world.house.file(*ME, batch.output_id, 310.0) is None
    with pytest.raises(HouseError) as caught:
        world.lines("batch_unknown")
    assert caught.value.reason == "not_found"


def test_results_may_be_unavailable_for_a_while():
    world = World(batch_turnaround=10, batch_results_outage=20, batch_faults={"results_unavailable": 1.0})
    name = world.create().id
    with pytest.raises(HouseError) as caught:
        world.lines(name, 29.9)
    assert caught.value.reason == "unavailable"
    assert len(world.lines(name, 30.0)) == 10


def test_only_the_first_download_of_a_file_is_cut():
    """Each part has its own first; the length is not told; what was cut off is not booked as delivered."""
    world = World(batch_faults={"cut_download": 1.0})
    name = world.ended().id

    def fetch() -> Any:
        return world.house.fetch(*ME, name, 1000.0, write=lambda line: line.body, part="succeeded")

    cut, whole = fetch(), fetch()
    assert isinstance(cut.body, list)
    assert whole.body.startswith(b"".join(cut.body))
    assert len(b"".join(cut.body)) < len(whole.body)
    cut.delivered()
    assert world.figures()["lines_delivered"] == b"".join(cut.body).count(b"\n")
    whole.delivered()
    assert world.figures()["lines_delivered"] == 10


def test_downloads_are_cut_at_line_ends_and_within_lines():
    world = World(batch_faults={"cut_download": 1.0})
    cuts = []
    for _ in range(20):
        fetched = world.house.fetch(*ME, world.create().id, 0.0, write=lambda line: line.body)
        cuts.append(b"".join(fetched.body)[-1:] in (b"", b"\n"))
    assert 3 < sum(cuts) < 17


def test_each_part_has_its_own_lines():
    world, lines = world_of_lines("item_error")
    name = world.ledger.batches[0].id
    sizes = {
        part: world.house.fetch(
            *ME, name, 10.0, part=part, write=lambda line: line.custom_id.encode()
        ).body.count(b"\n")
        for part in ("succeeded", "failed", "all", None)
    }
    assert sizes == {"succeeded": 9, "failed": 1, "all": 10, None: 10}
    assert len(lines) == 10


def test_only_answers_that_are_true_are_booked_as_delivered():
    world = World(
        batch_line_fault_for=lambda index, position, custom_id: {
            1: "malformed_lines",
            2: "swapped_answers",
            3: "item_error",
            4: "doubled_lines",
            5: "foreign_lines",
        }.get(position)
    )
    name = world.ended().id
    world.house.delivered(name, world.lines(name))
    delivered = [line.position for line in world.ledger.batches[0].lines.values() if line.delivered]
    assert delivered == [0, 4, 5, 6, 7, 8, 9]


def test_results_files_can_be_deleted_and_say_what_they_hold():
    world = World()
    batch = world.ended()
    [file] = world.house.files(*ME, 1000.0)
    assert (file.id, file.batch, file.part, file.purpose) == (
        batch.output_id,
        batch.id,
        "succeeded",
        "batch_output",
    )
    written = world.house.size(*ME, batch.id, 1000.0, write=lambda line: line.body, part="succeeded")
    assert written == sum(len(line.body) + 1 for line in world.lines(batch.id))
    assert world.house.delete_file(*ME, file.id, 1000.0)
    assert world.house.file(*ME, file.id, 1000.0) is None
    assert not world.house.delete_file(*ME, file.id, 1000.0)


def test_geminis_results_are_in_one_file():
    """Answers and errors together; a batch that came inline has none."""
    world = World("gemini", batch_faults={"item_error": 1.0})
    file = world.house.put_file("gemini", "k", "in", b"", 0.0)
    batch = world.ended(file_id=file.id)
    assert world.house.file("gemini", "k", world.ended().output_id, 1000.0) is None
    assert (batch.output_id[:6], batch.error_id) == ("batch-", None)
    assert world.house.file("gemini", "k", batch.output_id, 1000.0).part == "all"


def test_a_download_is_the_same_every_time():
    """Small answers are kept, vectors are made again."""
    world = World()
    task = parse_embeddings(None, {"model": "m", "input": ["some text"] * 3})  # type: ignore[arg-type]
    batch = world.house.create(*ME, [entry_of("v", task, Settings()), entry(1)], now=0.0)
    first, second = (
        world.house.fetch(*ME, batch.id, 1.0, write=lambda line: line.body).body for _ in range(2)
    )
    assert first == second
    assert len(first) > 10_000


# dice and hooks


def test_every_fault_has_about_its_rate():
    """One of each group at most; the others fall together as often as their rates say."""
    rates = {"lost_create": 0.1, "late_create": 0.2, "stuck": 0.1, "expire_part": 0.3, "list_lag": 0.5}
    lines = {"missing_lines": 0.1, "swapped_answers": 0.2, "foreign_lines": 0.25}
    dice = BatchDice(Settings(batch_faults=rates | lines))
    met = [dice.of_batch("openai", index, {}) for index in range(4000)]
    met_lines = [dice.of_line("openai", 0, position, None) for position in range(4000)]
    for name, rate in rates.items():
        assert sum(name in faults for faults in met) / 4000 == pytest.approx(rate, abs=0.03), name
    for name, rate in lines.items():
        assert sum(name in faults for faults in met_lines) / 4000 == pytest.approx(rate, abs=0.03), name
    assert not any({"lost_create", "late_create"} <= faults for faults in met)
    assert not any({"stuck", "expire_part"} <= faults for faults in met)
    assert any({"late_create", "list_lag"} <= faults for faults in met)


def test_other_requests_do_not_move_the_dice():
    """Looking, uploading and other accounts change nothing in what a create and its lines meet."""
    rates = {"late_create": 0.3, "missing_lines": 0.3, "expire_part": 0.3, "shuffled": 0.5}

    def story(busy: bool) -> list[Any]:
        world = World(batch_faults=rates, batch_turnaround=10, seed=5)
        told = []
        for step in range(20):
            if busy:
                world.house.put_file(*ME, "f", b"", step * 100.0)
                with suppress(Lost):
                    world.house.create("anthropic", "k", entries(3), now=step * 100.0)
                world.house.batches(*ME, step * 100.0)
            try:
                told.append(world.create(now=step * 100.0).id)
            except Lost as lost:
                told.append(lost.damage)
        ends = world.house.batches(*ME, 1e6)
        told += [(end.id, end.state, [line.position for line in world.lines(end.id, 1e6)]) for end in ends]
        return told

    calm = story(busy=False)
    assert calm == story(busy=True)
    assert "reset" in calm
    assert any("expired" in told for told in calm)


def test_scripts_name_faults_of_batches_and_lines():
    """By index, label, position and custom id; several at once for a batch; None leaves it to the dice."""
    world = World(
        batch_fault_for=lambda index, label: ["lost_create", "shuffled"] if label.get("sb") == "x" else None,
        batch_line_fault_for=lambda index, position, custom_id: "item_error" if custom_id == "id-2" else None,
        batch_faults={"missing_lines": 1.0},
    )
    with pytest.raises(Lost):
        world.create(label={"sb": "x"})
    plain = world.create(label={"sb": "y"})
    assert [line.custom_id for line in world.lines(plain.id)] == ["id-2"]
    assert world.figures()["by_fate"] == {"lost": 1, "landed": 1}


@pytest.mark.parametrize("hook", ["batch_fault_for", "batch_line_fault_for"])
def test_a_script_with_an_unknown_fault_is_an_error(hook):
    world = World(**{hook: lambda *place: "gremlin"})
    with pytest.raises(ConfigError, match=f"{hook} named an unknown fault 'gremlin'"):
        world.create()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_faults": {"gremlin": 1.0}}, "gremlin"),
        ({"batch_faults": {"lost_create": 1.5}}, "lost_create"),
        ({"batch_faults": {"lost_create": 0.6, "late_create": 0.6}}, "more than 1"),
        ({"batch_turnaround": -1.0}, "batch_turnaround"),
        ({"batch_window": math.inf}, "batch_window"),
        ({"batch_enqueued_tokens": 0}, "batch_enqueued_tokens"),
        ({"batch_enqueued_refusal": "never"}, "batch_enqueued_refusal"),
        ({"batch_max_lines": 0}, "batch_max_lines"),
    ],
)
def test_settings_out_of_range_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        Settings(**options)


@pytest.mark.parametrize("fault", [*BATCH_FAULTS, *LINE_FAULTS])
def test_every_fault_can_be_met(fault):
    """Each name is known to the dice, and something comes of it."""
    plain, spoiled = (World(batch_turnaround=10, batch_faults=rates) for rates in ({}, {fault: 1.0}))
    cancel = fault == "cancel_completes"
    assert heard(spoiled, cancel=cancel) != heard(plain, cancel=cancel)


def heard(world: World, *, cancel: bool) -> list[Any]:
    """Everything a client can hear of one batch; ids are the same in all worlds."""
    said: list[Any] = []
    try:
        said.append(world.create())
    except Lost as lost:
        said.append(lost.damage)
    [name] = [record.id for record in world.ledger.batches]
    for now in (0.0, 1.0, 9.0, 10.0, 12.0):
        said += [world.house.batches(*ME, now), world.batch(name, now)]
        if cancel:
            world.house.cancel(*ME, name, now)
        try:
            said.append(world.house.fetch(*ME, name, now, write=lambda line: repr(line).encode() + line.body))
        except HouseError as error:
            said.append(error.reason)
        else:
            said[-1] = said[-1].body
    return said


# the ledger


def test_a_prompt_paid_in_a_batch_and_in_real_time_is_paid_twice():
    """In whatever order; one whose answer could never be had does not count."""
    world = World(
        batch_line_fault_for=lambda index, position, custom_id: "missing_lines" if position == 1 else None
    )
    world.ended(now=50.0)
    for index, prompt in enumerate(["prompt-0", "prompt-1", "prompt-99"]):
        call = Call(index, 100.0, "POST /v1/chat/completions", prompt=prompt)
        world.ledger.open(call)
        world.ledger.close(call, status=200, billed=5, delivered=True)
    assert world.ledger.paid_twice() == ["prompt-0"]
    assert sorted(world.ledger.paid_twice(excluding_lost=False)) == ["prompt-0", "prompt-1"]
    assert world.ledger.summary()["paid_twice"] == 1
    assert world.ledger.summary()["prompts_billed"] == 11


def test_two_batches_with_the_same_prompts_are_paid_twice_before_anybody_fetched_them():
    """An answer that can be fetched is not lost."""
    world = World()
    world.create()
    world.create(now=1.0)
    assert len(world.ledger.paid_twice()) == 10


def test_the_ledger_file_restores_what_happened_to_batches(tmp_path):
    """Every fate, every line, what was delivered; and the file of a batch alone is known as a ledger."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    script = ["lost_create", "dropped_create", "late_create", None, "expire_part"]
    house = House(
        Settings(
            batch_turnaround=10,
            batch_late_seconds=20,
            batch_fault_for=lambda index, label: script[index],
            batch_line_fault_for=lambda index, position, custom_id: (
                "missing_lines" if position == 1 else None
            ),
        ),
        ledger,
    )
    file = house.put_file(*ME, "in", b"", 0.0)
    for step in range(5):
        with suppress(Lost):
            house.create(*ME, entries(4), now=float(step), label={"sb": str(step)}, file_id=file.id)
    house.delete_file(*ME, file.id, 4.0)
    for batch in house.batches(*ME, 100.0):
        house.cancel(*ME, batch.id, 100.0)
        house.fetch(*ME, batch.id, 100.0, write=lambda line: line.body).delivered()
    restored = Ledger.read(path)
    assert restored.batches == ledger.batches
    assert restored.summary() == ledger.summary()
    assert restored.full() == ledger.full()
    assert json.loads(json.dumps(ledger.full())) == ledger.full()
    fates = [record.fate for record in restored.batches]
    assert fates == ["lost", "dropped", "fenced", "landed", "landed"]
    assert restored.summary()["batches"]["lines_lost"] == 3
    ledger.end()
    path.write_bytes(path.read_bytes().split(b"\n", 1)[0] + b"\n")
    Ledger(path).end()
    assert path.read_bytes() == b""


def test_a_reset_forgets_batches_and_what_they_still_do(tmp_path):
    """Events of a batch from before are not entered any more."""
    world = World(batch_turnaround=10)
    old = world.create()
    world.ledger.reset()
    world.house.advance(5.0)
    world.house.delivered(old.id, [])
    assert world.ledger.batches == ()
    world.house.reset()
    assert world.house.batches(*ME, 20.0) == []
    assert world.figures()["creates"] == 0


# speed and threads


def test_a_create_some_looks_and_the_results_take_well_under_a_millisecond():
    """A simulation does it a hundred thousand times; the best of many is not moved by a busy machine."""
    world = World(batch_turnaround=1)
    work = entries(5)
    best = math.inf
    for step in range(200):
        begin = time.perf_counter()
        name = world.house.create("openai", str(step), work, now=2.0 * step).id
        for look in range(4):
            world.house.batch("openai", str(step), name, 2.0 * step + 0.3 * look)
        world.house.outputs("openai", str(step), name, 2.0 * step + 1)
        best = min(best, time.perf_counter() - begin)
    assert best < 0.001


def test_threads_that_create_at_the_same_time_get_batches_of_their_own():
    world = World()
    names: list[str] = []

    def create() -> None:
        names.extend(world.create(count=2).id for _ in range(50))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 200
    assert world.figures()["lines_billed"] == 400
