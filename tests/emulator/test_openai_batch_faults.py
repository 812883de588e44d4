"""OpenAI's batches when something goes wrong, over HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from levels import sampled
from openai_batch_world import CHAT, line, read, until, world
from raw_client import RawClient, request_bytes


def test_a_create_whose_answer_is_lost_can_be_found_by_its_metadata():
    with world(batch_faults={"lost_create": 1.0}) as (emu, customer):
        with pytest.raises(openai.APIConnectionError):
            customer.create(metadata={"sb": "nonce"})
        [batch] = customer.sdk.batches.list().data
        assert batch.metadata == {"sb": "nonce"}
        assert emu.ledger.batches[0].outcome == "lost"
        assert emu.ledger.summary()["by_fault"] == {"reset": 1}


def test_a_create_that_was_dropped_is_not_there():
    with world(batch_faults={"dropped_create": 1.0}) as (_, customer):
        with pytest.raises(openai.APIConnectionError):
            customer.create()
        assert customer.sdk.batches.list().data == []


def test_a_late_create_appears_in_the_list_by_itself():
    with world(batch_faults={"late_create": 1.0}, batch_late_seconds=0.2) as (emu, customer):
        with pytest.raises(openai.APIConnectionError):
            customer.create(metadata={"sb": "nonce"})
        [batch] = until(lambda: customer.sdk.batches.list().data, bool)
        assert batch.metadata == {"sb": "nonce"}
        assert emu.ledger.batches[0].created_at > emu.ledger.batches[0].at


@pytest.mark.full
def test_a_late_create_is_fenced_off_by_deleting_its_file():
    """The time of the landing is waited for in the ledger, so nothing can follow."""
    with world(batch_faults={"late_create": 1.0}, batch_late_seconds=2.0, seed=1) as (emu, customer):
        file = customer.upload([line(1)])
        with pytest.raises(openai.APIConnectionError):
            customer.sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        customer.sdk.files.delete(file.id)
        until(lambda: emu.ledger.batches[0].outcome, lambda outcome: outcome == "fenced")
        assert customer.sdk.batches.list().data == []
        assert emu.ledger.summary()["batches"]["lines_billed"] == 0


def test_a_lagging_batch_is_found_by_one_way_and_then_by_both():
    with world(batch_faults={"list_lag": 1.0}, batch_list_lag=0.2) as (_, customer):
        batch = customer.create()
        assert customer.sdk.batches.retrieve(batch.id).id == batch.id
        until(lambda: customer.sdk.batches.list().data, bool)
    with world(batch_faults={"get_lag": 1.0}, batch_get_lag=3600) as (_, customer):
        batch = customer.create()
        assert [each.id for each in customer.sdk.batches.list()] == [batch.id]
        with pytest.raises(openai.NotFoundError):
            customer.sdk.batches.retrieve(batch.id)


def test_results_that_cannot_be_fetched_yet_are_answered_503():
    with world(batch_faults={"results_unavailable": 1.0}, batch_results_outage=0.2) as (emu, customer):
        batch = customer.run()

        def fetch() -> dict[str, Any] | None:
            try:
                return customer.lines(batch.output_file_id)
            except openai.InternalServerError as error:
                assert error.status_code == 503
                return None

        assert len(until(fetch, lambda found: found is not None)) == 5
        assert emu.ledger.summary()["by_status"]["503"] >= 1


def test_results_are_gone_after_their_retention():
    with world(batch_retention=0) as (_, customer), pytest.raises(openai.NotFoundError):
        customer.sdk.files.content(customer.run().output_file_id)


def test_a_cut_download_looks_whole():
    """No length is announced, so only the missing lines show it; the next download has them all."""
    with world(batch_faults={"cut_download": 1.0}) as (_, customer):
        output = customer.run(20).output_file_id
        first = customer.sdk.files.with_raw_response.content(output)
        assert "content-length" not in first.headers
        cut, whole = first.content, customer.sdk.files.content(output).read()
        assert whole.startswith(cut)
        assert len(cut) < len(whole)
        assert len(read(whole)) == 20


def test_spoiled_lines_leave_the_others_whole():
    faults = {0: "missing_lines", 1: "doubled_lines", 2: "malformed_lines", 3: "foreign_lines"}
    with world(
        batch_faults={"shuffled": 1.0},
        batch_line_fault_for=lambda index, place, name: faults.get(place),
    ) as (emu, customer):
        data = customer.sdk.files.content(customer.run(10).output_file_id).read()
        found: list[str] = []
        broken = 0
        for row in data.split(b"\n")[:-1]:
            try:
                found.append(json.loads(row)["custom_id"])
            except ValueError:
                broken += 1
        assert broken == 1
        assert sorted(name for name in found if name.startswith("id-")) == [
            "id-1", "id-1", *(f"id-{number}" for number in range(3, 10)),
        ]  # fmt: skip
        assert len(found) == 10
        assert found != sorted(found)
        figures = emu.ledger.summary()["batches"]
        assert (figures["lines_billed"], figures["lines_delivered"], figures["lines_lost"]) == (10, 8, 2)


def test_an_unknown_status_reaches_the_client_unchanged():
    with world(batch_faults={"odd_status": 1.0}, batch_turnaround=3600) as (_, customer):
        assert customer.create().status == "rebalancing"


def test_compatible_servers_may_drop_what_a_batch_is_known_by(emu, customer):
    emu.configure(batch_echo_metadata=False, batch_echo_input_file=False)
    batch = customer.run(metadata={"sb": "nonce"})
    assert batch.metadata is None
    assert "input_file_id" not in batch.model_dump(exclude_unset=True)
    assert emu.ledger.batches[0].label == {"sb": "nonce"}


@pytest.mark.parametrize(
    ("fault", "error", "created"),
    sampled(
        [
            ("500", openai.InternalServerError, 1),
            ("503", openai.InternalServerError, 0),
            ("429", openai.RateLimitError, 0),
            ("reset", openai.APIConnectionError, 1),
            ("reset_before", openai.APIConnectionError, 0),
            ("hang", openai.APIConnectionError, 1),
            ("html", openai.InternalServerError, 1),
        ],
        keep=2,
    ),
)
def test_a_create_meets_the_faults_of_the_connection(fault, error, created):
    with world(fault_for=lambda index, fields: fault if fields["path"] == "/v1/batches" else None) as (
        emu,
        customer,
    ):
        with pytest.raises(error):
            customer.create()
        assert emu.ledger.summary()["batches"]["created"] == created


@pytest.mark.parametrize("fault", sampled(["truncated", "reset", "stall", "empty"], keep=1))
def test_a_download_that_broke_off_is_not_booked_as_delivered(fault):
    broken = [True]
    with world(
        fault_for=lambda index, fields: fault if fields["path"].endswith("content") and broken.pop() else None
    ) as (emu, customer):
        output = customer.run().output_file_id
        broken[:] = [False, True]
        try:
            assert customer.sdk.files.content(output).read() == b""
            assert fault == "empty"
        except (openai.APIConnectionError, httpx2.HTTPError):
            assert fault != "empty"
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 0
        assert len(customer.lines(output)) == 5
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 5


@pytest.mark.full
def test_lines_are_delivered_only_when_the_last_byte_has_left():
    """A client that leaves in the middle of a large download has none of them."""
    with world(answers={f"prompt {number}": "x" * 4_000_000 for number in range(8)}) as (emu, customer):
        output = customer.run(8).output_file_id
        with RawClient(emu.port) as leaving:
            leaving.send(request_bytes(method="GET", path=f"/v1/files/{output}/content"))
            assert leaving.socket.recv(10)
        assert customer.sdk.batches.list().data
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 0
        assert len(customer.lines(output)) == 8
        assert emu.ledger.summary()["batches"]["lines_delivered"] == 8


def test_an_outage_stops_files_and_batches_too():
    with world(outage=(0, 2)) as (_, customer):
        for call in (customer.sdk.batches.list, lambda: customer.upload([line(1)])):
            with pytest.raises(openai.InternalServerError):
                call()
        assert customer.sdk.batches.list().data == []


def test_limits_of_real_time_calls_do_not_count_for_batches():
    with world(rpm=1) as (_, customer):
        assert len(customer.lines(customer.run().output_file_id)) == 5
