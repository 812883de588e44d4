"""Lines that go wrong, and results as they are fetched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from batch_backend_world import ME, World, by_position, entry

from smartbatch.emulator import EmulatorSettings
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import BatchBackendError, Entry, OutputLine, parse_entry
from smartbatch.emulator.openai.model_calls import parse_embeddings
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import ModelCall, ModelOutput


def world_of_lines(
    fault: str, *, positions: tuple[int, ...] = (3,), **options: Any
) -> tuple[World, list[OutputLine]]:
    world = World(
        batch_line_fault_for=lambda index, position, custom_id: fault if position in positions else None,
        **options,
    )
    return world, world.lines(world.ended().id)


def test_a_missing_line_is_billed_and_in_no_result():
    world, lines = world_of_lines("missing_lines")
    assert 3 not in by_position(lines)
    assert len(lines) == 9
    [lost] = [line for line in world.ledger.batches[0].lines.values() if line.lost]
    assert (lost.custom_id, lost.billed) == ("id-3", 7)


def test_a_doubled_line_has_two_answers_and_is_billed_once():
    world, lines = world_of_lines("doubled_lines")
    first, second = by_position(lines)[3]
    assert first.custom_id == second.custom_id == "id-3"
    assert first.body != second.body
    assert (first.correct, second.correct) == (True, False)
    assert world.figures()["lines_billed"] == 10


def test_a_swapped_answer_is_that_of_another_line():
    world, lines = world_of_lines("swapped_answers")
    [line] = by_position(lines)[3]
    assert json.loads(line.body)["answer"] == 4
    assert not line.correct
    assert world.figures()["lines_lost"] == 1


def test_a_single_line_has_nobody_to_swap_with():
    world = World(batch_faults={"swapped_answers": 1.0})
    [line] = world.lines(world.ended(count=1).id)
    assert json.loads(line.body)["answer"] == 0
    assert line.correct
    assert world.figures()["lines_lost"] == 0


def test_a_foreign_line_has_an_id_of_no_request():
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
    assert world.backend.batches(*ME, 1e3)[0].counts.errored == 1


def test_an_answer_without_usage_is_billed_all_the_same():
    world, lines = world_of_lines("no_usage")
    assert json.loads(by_position(lines)[3][0].body) == {"answer": 3}
    assert "usage" in json.loads(by_position(lines)[4][0].body)
    assert world.figures()["lines_billed"] == 10


def test_malformed_lines_are_cut_or_garbage_and_leave_the_others_whole():
    world, _ = world_of_lines("malformed_lines", positions=tuple(range(0, 10, 2)), batch_turnaround=1)
    name = world.ledger.batches[0].id
    data = world.backend.fetch(*ME, name, 10.0, write=lambda line: line.body).body
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


def test_an_invalid_request_fails_when_it_runs():
    world = World()

    error = api_error(400, "no messages", code="c")

    def fail() -> ModelCall:
        raise error

    batch = world.backend.create(*ME, [parse_entry("a", fail, EmulatorSettings()), entry(1)], now=0.0)
    wrong, right = world.lines(batch.id)
    assert (wrong.outcome, wrong.status, wrong.error, wrong.body) == ("errored", 400, "refused", error.body)
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


def test_an_unknown_status_is_reported_for_half_of_the_run():
    world = World(batch_turnaround=100, batch_faults={"odd_status": 1.0})
    name = world.create().id
    statuses = [world.batch(name, now).unknown_status for now in (0, 44, 46, 100)]
    assert [bool(status) for status in statuses] == [True, True, False, False]


# results


def test_results_are_there_from_the_end_until_their_retention():
    world = World(batch_turnaround=10, batch_retention=100)
    name = world.create().id
    for now, reason in ((9.9, "not_ended"), (110.0, "gone")):
        with pytest.raises(BatchBackendError) as caught:
            world.lines(name, now)
        assert caught.value.reason == reason
    batch = world.batch(world.create(now=200.0).id, 210.0)
    assert world.backend.file(*ME, batch.output_id, 211.0).batch == batch.id
    assert world.backend.file(*ME, batch.output_id, 310.0) is None
    with pytest.raises(BatchBackendError) as caught:
        world.lines("batch_unknown")
    assert caught.value.reason == "not_found"


def test_results_may_be_unavailable_for_a_while():
    world = World(batch_turnaround=10, batch_results_outage=20, batch_faults={"results_unavailable": 1.0})
    name = world.create().id
    with pytest.raises(BatchBackendError) as caught:
        world.lines(name, 29.9)
    assert caught.value.reason == "unavailable"
    assert len(world.lines(name, 30.0)) == 10


def test_only_the_first_download_of_a_file_is_cut():
    """Each part has its own first download; there is no content length; lines cut off are not delivered."""
    world = World(batch_faults={"cut_download": 1.0})
    name = world.ended().id

    def fetch() -> Any:
        return world.backend.fetch(*ME, name, 1000.0, write=lambda line: line.body, part="succeeded")

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
        fetched = world.backend.fetch(*ME, world.create().id, 0.0, write=lambda line: line.body)
        cuts.append(b"".join(fetched.body)[-1:] in (b"", b"\n"))
    assert 3 < sum(cuts) < 17


def test_each_part_has_its_own_lines():
    world, lines = world_of_lines("item_error")
    name = world.ledger.batches[0].id
    sizes = {
        part: world.backend.fetch(
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
    world.backend.delivered(name, world.lines(name))
    delivered = [line.position for line in world.ledger.batches[0].lines.values() if line.delivered]
    assert delivered == [0, 4, 5, 6, 7, 8, 9]


def test_results_files_can_be_deleted_and_say_what_they_hold():
    world = World()
    batch = world.ended()
    [file] = world.backend.files(*ME, 1000.0)
    assert (file.id, file.batch, file.part, file.purpose) == (
        batch.output_id,
        batch.id,
        "succeeded",
        "batch_output",
    )
    written = world.backend.size(*ME, batch.id, 1000.0, write=lambda line: line.body, part="succeeded")
    assert written == sum(len(line.body) + 1 for line in world.lines(batch.id))
    assert world.backend.delete_file(*ME, file.id, 1000.0)
    assert world.backend.file(*ME, file.id, 1000.0) is None
    assert not world.backend.delete_file(*ME, file.id, 1000.0)


def test_geminis_results_are_in_one_file():
    world = World("gemini", batch_faults={"item_error": 1.0})
    file = world.backend.put_file("gemini", "k", "in", b"", 0.0)
    batch = world.ended(file_id=file.id)
    assert world.backend.file("gemini", "k", world.ended().output_id, 1000.0) is None
    assert (batch.output_id[:6], batch.error_id) == ("batch-", None)
    assert world.backend.file("gemini", "k", batch.output_id, 1000.0).part == "all"


def test_a_download_is_the_same_every_time():
    world = World()
    call = parse_embeddings(None, {"model": "m", "input": ["some text"] * 3})  # type: ignore[arg-type]
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
