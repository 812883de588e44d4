"""The backend of files and batches in virtual time."""

from __future__ import annotations

import json
import math
import statistics
from contextlib import suppress
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.emulator import BATCH_FAULTS, LINE_FAULTS, Call, EmulatorSettings, Ledger
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import (
    AnswerLost,
    BatchBackendError,
    BatchSnapshot,
    Entry,
    OutputLine,
    parse_entry,
)
from smartbatch.emulator.batches.timeline import BatchRandomness, timeline
from smartbatch.emulator.openai.model_calls import parse_call
from smartbatch.emulator.parsed_requests import ModelOutput
from smartbatch.errors import ConfigError
from tests.threads_together import run_together

ME = ("openai", "k")


def entry(number: int, charge: int = 5) -> Entry:
    body = json.dumps({"answer": number, "usage": {"total_tokens": 7}}).encode()
    return Entry(f"id-{number}", f"prompt-{number}", charge, lambda identity: ModelOutput(body, 2, 7))


def entries(count: int) -> list[Entry]:
    return [entry(number) for number in range(count)]


class World:
    def __init__(self, api: str = "openai", **options: Any) -> None:
        self.ledger = Ledger()
        self.backend = BatchBackend(EmulatorSettings(**options), self.ledger)
        self.api = api

    def create(self, now: float = 0.0, count: int = 10, **options: Any) -> BatchSnapshot:
        return self.backend.create(self.api, "k", entries(count), now=now, model="m", **options)

    def batch(self, name: str, now: float) -> BatchSnapshot | None:
        return self.backend.batch(self.api, "k", name, now)

    def ended(self, now: float = 1000.0, **options: Any) -> BatchSnapshot:
        found = self.batch(self.create(**options).id, now)
        assert found is not None
        assert found.ended
        return found

    def lines(self, name: str, now: float = 1000.0) -> list[OutputLine]:
        return list(self.backend.outputs(self.api, "k", name, now))

    def figures(self) -> dict[str, Any]:
        return self.ledger.summary()["batches"]


def test_result_files_expire_after_their_own_lifetime_or_that_of_all_results():
    for lifetime, retention in ((100.0, 1000.0), (1000.0, 100.0)):
        world = World(batch_turnaround=10, batch_retention=retention)
        world.create(output_lifetime=lifetime)
        kept = [len(world.backend.files("openai", "k", now)) for now in (9.9, 10.0, 109.9, 110.0)]
        assert kept == [0, 1, 1, 0]


def test_a_batch_goes_from_validation_to_its_end_and_its_counts_grow():
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


def test_another_key_or_provider_sees_nothing_of_it():
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


def test_a_batch_may_win_the_race_against_its_cancel():
    world = World(batch_turnaround=100, batch_cancel_seconds=5, batch_faults={"cancel_completes": 1.0})
    name = world.create().id
    assert world.backend.cancel(*ME, name, 50.0).state == "cancelling"
    assert world.batch(name, 99.0).state == "cancelling"
    assert world.batch(name, 100.0).state == "completed"
    assert world.figures()["lines_billed"] == 10


def test_a_stuck_batch_never_ends_unless_it_is_cancelled():
    world = World(batch_turnaround=10, batch_window=50, batch_faults={"stuck": 1.0, "cancel_completes": 1.0})
    name = world.create().id
    assert world.batch(name, 1e9).state == "running"
    assert world.batch(name, 1e9).counts.waiting == 5
    assert world.backend.cancel(*ME, name, 1e9).state == "cancelled"


# enqueued tokens


# threads


def test_threads_that_create_at_the_same_time_get_batches_of_their_own():
    world = World()
    names: list[str] = []

    def create() -> None:
        names.extend(world.create(count=2).id for _ in range(50))

    run_together(lambda _: create(), range(4))
    assert len(set(names)) == 200
    assert world.figures()["lines_billed"] == 400


def test_a_late_create_comes_to_exist_within_its_time():
    world = World(batch_faults={"late_create": 1.0}, batch_late_seconds=100, batch_turnaround=10)
    with pytest.raises(AnswerLost) as caught:
        world.create(now=50.0)
    assert caught.value.damage == "reset"
    assert world.backend.batches(*ME, 50.0) == []
    [batch] = world.backend.batches(*ME, 150.0)
    assert 50.0 < batch.created_at <= 150.0
    [record] = world.ledger.batches
    assert (record.outcome, record.at, record.created_at) == ("late", 50.0, batch.created_at)
    # Same random numbers: absent just before, present at that very moment.
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


def test_a_fence_comes_too_late_for_a_create_that_has_arrived():
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


def test_a_single_line_has_nobody_to_swap_with():
    world = World(batch_faults={"swapped_answers": 1.0})
    [line] = world.lines(world.ended(count=1).id)
    assert json.loads(line.body)["answer"] == 0
    assert line.correct
    assert world.figures()["lines_lost"] == 0


def test_shuffled_results_are_all_there_in_another_order():
    world = World(batch_faults={"shuffled": 1.0})
    positions = [line.position for line in world.lines(world.ended().id)]
    assert positions != sorted(positions) == list(range(10))


# results


def test_downloads_are_cut_at_line_ends_and_within_lines():
    world = World(batch_faults={"cut_download": 1.0})
    cuts = []
    for _ in range(20):
        fetched = world.backend.fetch(*ME, world.create().id, 0.0, write=lambda line: line.body)
        cuts.append(b"".join(fetched.body)[-1:] in (b"", b"\n"))
    assert 3 < sum(cuts) < 17


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
    world.backend.delivered(name, world.lines(name))
    delivered = [line.position for line in world.ledger.batches[0].lines.values() if line.delivered]
    assert delivered == [0, 4, 5, 6, 7, 8, 9]


def test_a_download_is_the_same_every_time():
    world = World()
    body = {"model": "m", "input": ["some text"] * 3}
    call = parse_call("/v1/embeddings", body, EmulatorSettings())
    batch = world.backend.create(*ME, [parse_entry("v", lambda: call, EmulatorSettings()), entry(1)], now=0.0)
    first, second = (
        world.backend.fetch(*ME, batch.id, 1.0, write=lambda line: line.body).body for _ in range(2)
    )
    assert first == second
    assert len(first) > 10_000


def test_without_a_ledger_lines_run_while_their_results_are_read():
    ran: list[str | None] = []

    def noted(each: Entry) -> Entry:
        def run(identity: str) -> ModelOutput:
            ran.append(each.custom_id)
            return each.run(identity)

        return evolve(each, run=run)

    backend = BatchBackend(EmulatorSettings(), None)
    batch = backend.create("openai", "k", [noted(entry(number)) for number in range(10)], now=0.0)
    ended = backend.batch("openai", "k", batch.id, 1000.0)
    assert ended is not None
    assert (ended.state, ended.counts.succeeded, ran) == ("completed", 10, [])
    lines = iter(backend.outputs("openai", "k", batch.id, 1000.0))
    found = [next(lines)]
    assert ran == ["id-0"]
    found += lines
    assert len(ran) == 10
    world = World()
    assert [line.body for line in found] == [line.body for line in world.lines(world.ended().id)]


def test_every_fault_has_about_its_rate():
    rates = {"lost_create": 0.1, "late_create": 0.2, "stuck": 0.1, "expire_part": 0.3, "list_lag": 0.5}
    lines = {"missing_lines": 0.1, "swapped_answers": 0.2, "foreign_lines": 0.25}
    rng = BatchRandomness(EmulatorSettings(batch_faults=rates | lines))
    met = [rng.batch_faults("openai", index, {}) for index in range(4000)]
    met_lines = [rng.line_faults("openai", 0, position, None) for position in range(4000)]
    for name, rate in rates.items():
        assert sum(name in faults for faults in met) / 4000 == pytest.approx(rate, abs=0.03), name
    for name, rate in lines.items():
        assert sum(name in faults for faults in met_lines) / 4000 == pytest.approx(rate, abs=0.03), name
    assert not any({"lost_create", "late_create"} <= faults for faults in met)
    assert not any({"stuck", "expire_part"} <= faults for faults in met)
    assert any({"late_create", "list_lag"} <= faults for faults in met)


def test_other_requests_do_not_move_the_rng():
    rates = {"late_create": 0.3, "missing_lines": 0.3, "expire_part": 0.3, "shuffled": 0.5}

    def outcomes(busy: bool) -> list[Any]:
        world = World(batch_faults=rates, batch_turnaround=10, seed=5)
        told = []
        for step in range(20):
            if busy:
                world.backend.put_file(*ME, "f", b"", step * 100.0)
                with suppress(AnswerLost):
                    world.backend.create("anthropic", "k", entries(3), now=step * 100.0)
                world.backend.batches(*ME, step * 100.0)
            try:
                told.append(world.create(now=step * 100.0).id)
            except AnswerLost as lost:
                told.append(lost.damage)
        ends = world.backend.batches(*ME, 1e6)
        told += [(end.id, end.state, [line.position for line in world.lines(end.id, 1e6)]) for end in ends]
        return told

    calm = outcomes(busy=False)
    assert calm == outcomes(busy=True)
    assert "reset" in calm
    assert any("expired" in told for told in calm)


def test_scripts_name_faults_of_batches_and_lines():
    world = World(
        batch_fault_for=lambda index, label: ["lost_create", "shuffled"] if label.get("sb") == "x" else None,
        batch_line_fault_for=lambda index, position, custom_id: "item_error" if custom_id == "id-2" else None,
        batch_faults={"missing_lines": 1.0},
    )
    with pytest.raises(AnswerLost):
        world.create(label={"sb": "x"})
    plain = world.create(label={"sb": "y"})
    assert [line.custom_id for line in world.lines(plain.id)] == ["id-2"]
    assert world.figures()["by_outcome"] == {"lost": 1, "created": 1}


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
        EmulatorSettings(**options)


@pytest.mark.parametrize("fault", [*BATCH_FAULTS, *LINE_FAULTS])
def test_every_fault_can_be_met(fault):
    plain, spoiled = (World(batch_turnaround=10, batch_faults=rates) for rates in ({}, {fault: 1.0}))
    cancel = fault == "cancel_completes"
    assert heard(spoiled, cancel=cancel) != heard(plain, cancel=cancel)


def heard(world: World, *, cancel: bool) -> list[Any]:
    said: list[Any] = []
    try:
        said.append(world.create())
    except AnswerLost as lost:
        said.append(lost.damage)
    [name] = [record.id for record in world.ledger.batches]
    for now in (0.0, 1.0, 9.0, 10.0, 12.0):
        said += [world.backend.batches(*ME, now), world.batch(name, now)]
        if cancel:
            world.backend.cancel(*ME, name, now)
        try:
            said.append(
                world.backend.fetch(*ME, name, now, write=lambda line: repr(line).encode() + line.body)
            )
        except BatchBackendError as error:
            said.append(error.reason)
        else:
            said[-1] = said[-1].body
    return said


# the ledger


def test_a_prompt_paid_in_a_batch_and_in_real_time_is_paid_twice():
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


def test_the_ledger_file_restores_what_happened_to_batches(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    script = ["lost_create", "dropped_create", "late_create", None, "expire_part"]
    backend = BatchBackend(
        EmulatorSettings(
            batch_turnaround=10,
            batch_late_seconds=20,
            batch_fault_for=lambda index, label: script[index],
            batch_line_fault_for=lambda index, position, custom_id: (
                "missing_lines" if position == 1 else None
            ),
        ),
        ledger,
    )
    file = backend.put_file(*ME, "in", b"", 0.0)
    for step in range(5):
        with suppress(AnswerLost):
            backend.create(*ME, entries(4), now=float(step), label={"sb": str(step)}, file_id=file.id)
    backend.delete_file(*ME, file.id, 4.0)
    for batch in backend.batches(*ME, 100.0):
        backend.cancel(*ME, batch.id, 100.0)
        backend.fetch(*ME, batch.id, 100.0, write=lambda line: line.body).delivered()
    restored = Ledger.read(path)
    assert restored.batches == ledger.batches
    assert restored.summary() == ledger.summary()
    assert restored.full() == ledger.full()
    assert json.loads(json.dumps(ledger.full())) == ledger.full()
    outcomes = [record.outcome for record in restored.batches]
    assert outcomes == ["lost", "dropped", "fenced", "created", "created"]
    assert restored.summary()["batches"]["lines_lost"] == 3
    ledger.end()
    path.write_bytes(path.read_bytes().split(b"\n", 1)[0] + b"\n")
    Ledger(path).end()
    assert path.read_bytes() == b""


def test_a_reset_forgets_batches_and_what_they_still_do(tmp_path):
    world = World(batch_turnaround=10)
    old = world.create()
    world.ledger.reset()
    world.backend.advance(5.0)
    world.backend.delivered(old.id, [])
    assert world.ledger.batches == ()
    world.backend.reset()
    assert world.backend.batches(*ME, 20.0) == []
    assert world.figures()["creates"] == 0
