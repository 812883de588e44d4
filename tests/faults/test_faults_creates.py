"""Batches that are not listed, late, malformed or of another account: rows C19, C22, C23 and C25."""

from __future__ import annotations

from typing import Any

import pytest

from smartbatch.emulator.provider_api import ServerReply
from tests.faults.world import DAY, HOUR, MINUTE, PROVIDERS, World, holders, texts
from tests.levels import sampled

pytestmark = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=2))


def test_c22_a_late_batch_that_never_ends_is_reported_and_left(provider, new_world):
    if provider != "anthropic":
        pytest.skip("a deleted file keeps it out, or its label proves it and it is cancelled")
    late = {"batch_late_seconds": 20 * MINUTE, "batch_turnaround": HOUR}
    named = {"batch_fault_for": lambda index, label: () if index else ("late_create", "stuck")}
    w = new_world(may_pay_twice=True, rare=240, **late, **named)
    prompts = texts(3)
    job = w.process(batch_settle=MINUTE, batch_poll_interval=10 * MINUTE).submit_batch(prompts)
    assert [result.text for result in w.results(job)] == w.right(prompts)
    w.pass_time(24 * HOUR)
    assert not w.incidents(job)
    w.pass_time(4 * HOUR)
    [incident] = job.incidents()
    assert incident.kind == "maybe_billed"
    assert "still running 26 h after its 3 requests were sent again" in incident.detail
    seen = len(w.service.seen)
    w.pass_time(24 * HOUR)
    assert len(w.service.seen) == seen


def test_c23_new_fields_everywhere_are_passed_over(new_world):
    def grow(found: Any) -> None:
        for holder in list(holders(found)):
            if "@type" not in holder and holder.keys() != {"sb", "sbn"}:
                holder["novelty"] = {"since": 2027, "list": [None, True, "x"]}

    w = new_world(batch_turnaround=5 * MINUTE)
    w.edit_json({"upload", "create", "get", "list", "file"}, grow)
    job = w.answered_job(texts(5))
    assert len(w.creates) == 1
    assert not w.incidents(job)


@pytest.mark.parametrize(
    "name", ["request_counts|batchStats|created_at|createTime", "metadata|label|errors|output"]
)
def test_c23_a_field_that_has_another_name_today_stops_nothing(provider, name, new_world):
    renamed = set(name.split("|"))

    def rename(found: Any) -> None:
        for each in found.get("data", found.get("operations", [found])):
            for holder in (each, each.get("metadata") if provider == "gemini" else None):
                for old in renamed & set(holder or ()):
                    if not (provider == "gemini" and old == "metadata"):
                        holder[f"{old}_v2"] = holder.pop(old)

    w = new_world(batch_turnaround=5 * MINUTE)
    w.edit_json({"create", "get", "list"}, rename)
    w.answered_job(texts(5))
    assert len(w.creates) == 1


@pytest.mark.full
def test_c23_a_renamed_state_is_no_end_and_no_crash(provider, new_world):
    names = {"openai": "status", "anthropic": "processing_status", "gemini": "state"}

    def rename(found: Any) -> None:
        if w.clock.now() >= HOUR:
            return
        holder = found["metadata"] if provider == "gemini" else found
        holder["condition"] = holder.pop(names[provider])
        found.pop("done", None)

    w = new_world(batch_turnaround=5 * MINUTE)
    w.edit_json({"get"}, rename)
    prompts = texts(5)
    job = w.process().submit_batch(prompts)
    w.pass_time(50 * MINUTE)
    assert not job.status().done
    assert not w.requests("download")
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert len(w.creates) == 1


def test_c25_with_another_key_nothing_is_concluded_from_an_empty_list(new_world):
    """The process crashes before the response to its create; the next one uses a key of another project."""
    w = new_world(rare=600, batch_turnaround=HOUR)
    first = w.process(api_key="key-of-project-one-1234567890")
    prompts = texts(5)
    job = first.submit_batch(prompts)
    _die_at_the_create(w)
    w.stop(first)
    assert len(w.creates) == 1
    w.service.meet = lambda seen: None
    seen_before = len(w.service.seen)
    other = w.process(api_key="key-of-project-two-0987654321")
    w.pass_time(2 * DAY)
    assert len(w.service.seen) == seen_before  # it asks nothing, so it can conclude nothing
    found = other.job(job.id)
    note = found.status().note
    assert note is not None
    assert "needs the" in note
    assert "project-one" not in note
    assert not found.status().done
    w.stop(other)
    again = w.process(api_key="key-of-project-one-1234567890")
    assert [result.text for result in w.results(again.job(job.id))] == w.right(prompts)
    assert len(w.creates) == 1


def _die_at_the_create(w: World) -> None:
    """Run until the create has arrived, then lose its response and all later ones."""
    cut = ServerReply(0, b"", damage="reset_before")
    w.service.alter = lambda seen, reply: cut if seen.what == "create" else reply
    w.service.meet = lambda seen: cut if w.creates else None
    w.pass_time(5.0)
    w.service.alter = lambda seen, reply: reply


@pytest.mark.full
def test_c25_a_key_that_is_refused_stops_the_job_and_fails_nothing(new_world):
    w = new_world(rare=600, batch_turnaround=HOUR)
    prompts = texts(5)
    job = w.process().submit_batch(prompts)
    w.pass_time(10 * MINUTE)
    w.service.meet = lambda seen: w.refusal(401, "invalid x-api-key")
    w.pass_time(6 * HOUR)
    status_ = job.status()
    assert (status_.failed, status_.cancelled, status_.done) == (0, 0, False)
    assert status_.note is not None
    asked = [seen for seen in w.service.seen if seen.at > 20 * MINUTE]
    assert len(asked) <= 6 * HOUR / (5 * MINUTE)
    w.service.meet = lambda seen: None
    if status_.state == "held":
        job.resume()
    assert [result.text for result in w.results(job)] == w.right(prompts)
    assert len(w.creates) == 1


@pytest.mark.parametrize("what", ["upload", "list", "create"])
def test_c25_a_key_that_is_refused_before_the_create_holds_the_job(provider, what, new_world):
    w = new_world(rare=600)
    stage = "create" if what == "upload" and provider == "anthropic" else what
    w.service.meet = lambda seen: w.refusal(401, "invalid x-api-key") if seen.what == stage else None
    prompts = texts(5)
    job = w.process().submit_batch(prompts)
    w.pass_time(HOUR)
    status = job.status()
    assert status.state == "held"
    assert "the API key was rejected" in str(status.note)
    refused = len(w.requests(stage))
    w.pass_time(DAY)
    assert len(w.requests(stage)) == refused  # it waits for a person
    w.service.meet = lambda seen: None
    job.resume()
    assert [result.text for result in w.results(job)] == w.right(prompts)
