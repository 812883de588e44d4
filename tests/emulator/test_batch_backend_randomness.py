"""Which batch and which line meets which fault, and what the ledger says of it."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import pytest
from batch_backend_world import ME, World, entries

from smartbatch.emulator import BATCH_FAULTS, LINE_FAULTS, Call, EmulatorSettings, Ledger
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import AnswerLost, BatchBackendError
from smartbatch.emulator.batches.timeline import BatchRandomness
from smartbatch.errors import ConfigError


def test_every_fault_has_about_its_rate():
    """One of each group at most; the others fall together as often as their rates say."""
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
    """Looking, uploading and other accounts change nothing in what a create and its lines meet."""
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
    """By index, label, position and custom id; a batch may have several; None draws at random."""
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
    """Each name is known to the random numbers, and something comes of it."""
    plain, spoiled = (World(batch_turnaround=10, batch_faults=rates) for rates in ({}, {fault: 1.0}))
    cancel = fault == "cancel_completes"
    assert heard(spoiled, cancel=cancel) != heard(plain, cancel=cancel)


def heard(world: World, *, cancel: bool) -> list[Any]:
    """Everything a client can read about one batch; ids are the same in all worlds."""
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


def test_two_batches_with_the_same_prompts_are_paid_twice():
    world = World()
    world.create()
    world.create(now=1.0)
    assert len(world.ledger.paid_twice()) == 10


def test_the_ledger_file_restores_what_happened_to_batches(tmp_path):
    """Every outcome, every line, what was delivered; and the file of a batch alone is known as a ledger."""
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
