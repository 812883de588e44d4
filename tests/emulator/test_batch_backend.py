"""The backend of files and batches in virtual time: the course of a batch, its ends, and threads."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import pytest
from batch_backend_world import ME, World, entries
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.emulator import EmulatorSettings
from smartbatch.emulator.batches.batch_records import BatchBackendError, InputProblem
from smartbatch.emulator.batches.timeline import BatchRandomness, timeline
from tests.together import run_together


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
    world = World(batch_turnaround=100)
    world.create()
    billed = []
    for now in (0.0, 8.9, 9.0, 44.9, 90.0):
        world.backend.advance(now)
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
    assert [batch.id for batch in world.backend.batches(*ME, 5.0)] == names[::-1]


def test_another_key_or_provider_sees_nothing_of_it():
    """Neither batches nor files, and it can neither cancel nor delete them."""
    world = World(batch_turnaround=10)
    file = world.backend.put_file(*ME, "in.jsonl", b"x", 0.0)
    name = world.create(file_id=file.id).id
    for other in (("openai", "other"), ("anthropic", "k")):
        assert world.backend.batch(*other, name, 1.0) is None
        assert world.backend.batches(*other, 1.0) == []
        assert world.backend.cancel(*other, name, 1.0) is None
        assert world.backend.file(*other, file.id, 1.0) is None
        assert world.backend.files(*other, 1.0) == []
        assert not world.backend.delete_file(*other, file.id, 1.0)
        with pytest.raises(BatchBackendError, match="No batch found"):
            world.backend.outputs(*other, name, 20.0)
        with pytest.raises(BatchBackendError) as caught:
            world.backend.create(*other, entries(1), now=1.0, file_id=file.id)
        assert caught.value.reason == "no_such_file"


def test_ids_are_never_used_again():
    world = World()
    seen = set()
    for _ in range(3):
        file = world.backend.put_file(*ME, "in", b"", 0.0)
        batch = world.create()
        seen |= {file.id, batch.id, batch.output_id}
        world.backend.delete_file(*ME, file.id, 0.0)
        world.backend.delete(*ME, batch.id, 0.0)
        world.backend.reset()
    assert len(seen) == 9


def test_turnaround_varies_around_its_median():
    """Lognormal: half of the batches are faster, and the logarithms have the sigma."""
    rng = BatchRandomness(EmulatorSettings(batch_turnaround=60, batch_turnaround_sigma=0.5))
    logs = [math.log(rng.turnaround("openai", index)) for index in range(2000)]
    assert statistics.median(logs) == pytest.approx(math.log(60), abs=0.05)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.1)


@pytest.mark.full
@given(
    st.integers(1, 40),
    st.floats(0, 50),
    st.floats(0, 50),
    st.floats(0, 200),
    st.lists(st.floats(0, 400), min_size=1, max_size=12),
    st.sampled_from(["", "expire_part", "expire_all", "stuck", "no_money_lines", "cancel_completes"]),
    st.none() | st.floats(0, 300),
)
def test_counts_only_grow_and_add_up_at_any_time(
    count, validating, queueing, turnaround, times, fault, cancel
):
    """Whenever it is polled, in whatever steps; and the ledger agrees with what is returned."""
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
            world.backend.cancel(*ME, name, now)
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
def test_a_line_has_run_at_its_own_time(total, created, turnaround, position):
    plan = timeline(EmulatorSettings(), created, turnaround, total, frozenset(), failing=False)
    position %= total
    assert plan.ran(plan.line_at(position)) >= position + 1
    before = math.nextafter(plan.line_at(position), -math.inf)
    assert plan.ran(before) <= position + sum(plan.line_at(p) <= before for p in range(position, total))


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
    world = World(batch_turnaround=100, batch_cancel_seconds=30)
    name = world.create().id
    assert world.backend.cancel(*ME, name, 50.0).state == "cancelling"
    assert world.backend.cancel(*ME, name, 70.0).cancelling_at == 50.0
    assert world.batch(name, 79.9).state == "cancelling"
    batch = world.batch(name, 80.0)
    assert (batch.state, batch.ended_at) == ("cancelled", 80)
    assert (batch.counts.succeeded, batch.counts.cancelled) == (5, 5)
    assert Counter(line.outcome for line in world.lines(name)) == {"succeeded": 5, "cancelled": 5}
    assert world.figures()["lines_billed"] == 5
    assert world.ledger.batches[0].cancelled_at == 50.0


def test_a_cancel_in_the_validation_leaves_nothing_to_pay():
    world = World(batch_validating=10, batch_turnaround=100)
    name = world.create(problems=[InputProblem("x", "x")]).id
    world.backend.cancel(*ME, name, 5.0)
    batch = world.batch(name, 50.0)
    assert (batch.state, batch.counts.cancelled) == ("cancelled", 10)
    assert world.figures()["lines_ran"] == 0


def test_a_batch_may_win_the_race_against_its_cancel():
    world = World(batch_turnaround=100, batch_cancel_seconds=5, batch_faults={"cancel_completes": 1.0})
    name = world.create().id
    assert world.backend.cancel(*ME, name, 50.0).state == "cancelling"
    assert world.batch(name, 99.0).state == "cancelling"
    assert world.batch(name, 100.0).state == "completed"
    assert world.figures()["lines_billed"] == 10


def test_a_cancel_after_the_end_changes_nothing():
    world = World(batch_turnaround=10)
    name = world.create().id
    assert world.backend.cancel(*ME, name, 10.0).state == "completed"
    assert world.ledger.batches[0].cancelled_at is None


def test_a_stuck_batch_never_ends_unless_it_is_cancelled():
    world = World(batch_turnaround=10, batch_window=50, batch_faults={"stuck": 1.0, "cancel_completes": 1.0})
    name = world.create().id
    assert world.batch(name, 1e9).state == "running"
    assert world.batch(name, 1e9).counts.waiting == 5
    assert world.backend.cancel(*ME, name, 1e9).state == "cancelled"


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
    other = world.backend.create("openai", "k", entries(10), now=2.0, model="other")
    foreign = world.backend.create("openai", "k2", entries(10), now=2.0, model="m")
    assert world.batch(other.id, 50.0).state == "completed"
    assert world.backend.batch("openai", "k2", foreign.id, 50.0).state == "completed"
    assert world.batch(first.id, 50.0).state == "completed"
    assert world.batch(world.create(now=50.0).id, 99.0).state == "completed"
    assert world.figures()["lines_billed"] == 40


@pytest.mark.parametrize(("api", "refusal"), [("openai", "early"), ("anthropic", "late"), ("gemini", "late")])
def test_others_refuse_a_create_above_the_enqueued_tokens(api, refusal):
    world = World(api, batch_turnaround=10, batch_enqueued_tokens=70, batch_enqueued_refusal=refusal)
    world.create()
    with pytest.raises(BatchBackendError) as caught:
        world.create(now=1.0)
    assert caught.value.reason == "enqueued"
    assert world.figures()["by_outcome"] == {"created": 1, "refused": 1}
    assert world.create(now=20.0)


# threads


def test_threads_that_create_at_the_same_time_get_batches_of_their_own():
    world = World()
    names: list[str] = []

    def create() -> None:
        names.extend(world.create(count=2).id for _ in range(50))

    run_together(lambda _: create(), range(4))
    assert len(set(names)) == 200
    assert world.figures()["lines_billed"] == 400
