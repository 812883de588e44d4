"""Batches that somebody cancels at the provider, in its console or by another program."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest

from tests.faults.world import HOUR, KEY, MINUTE, PROVIDERS, NewWorld, World, texts
from tests.levels import sampled

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=1))


def cancel_in_console(w: World, batch: str) -> None:
    paths = {
        "openai": f"/v1/batches/{batch}/cancel",
        "anthropic": f"/v1/messages/batches/{batch}/cancel",
        "gemini": f"/v1beta/batches/{batch}:cancel",
    }
    headers = {
        "openai": {"Authorization": f"Bearer {KEY}"},
        "anthropic": {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
        "gemini": {"x-goog-api-key": KEY},
    }
    request = urllib.request.Request(w.emu.url + paths[w.provider], b"", headers[w.provider], method="POST")
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200


@each_provider
@pytest.mark.parametrize("fallback", sampled(["batch", "individual"], first=1))
def test_c17_a_batch_cancelled_in_the_console_holds_its_job(fallback: Any, new_world: NewWorld) -> None:
    w = new_world(rare=240, batch_turnaround=HOUR, batch_cancel_seconds=90.0)
    prompts = texts(20)
    client = w.process(batch_timeout=20 * HOUR)
    job = client.submit_batch(prompts, batch_fallback=fallback)
    w.pass_time(30 * MINUTE)
    cancel_in_console(w, w.creates[0].id)
    w.pass_time(HOUR)
    status = job.status()
    assert status.state == "held"
    assert f"smartbatch jobs resume {job.id}" in str(status.note)
    assert 0 < status.completed < 20  # what was done by then is kept
    assert w.incidents(job) == {"batch_cancelled": 1}
    w.stop(client)
    again = w.process(batch_timeout=20 * HOUR)  # also after a restart nothing is sent by itself
    w.pass_time(5 * HOUR)
    assert len(w.creates) == 1
    assert not w.requests("ask")
    again.job(job.id).resume()
    resumed = again.job(job.id)
    assert [result.text for result in w.results(resumed)] == w.right(prompts)
    assert len(w.creates) == (2 if fallback == "batch" else 1)


@each_provider
def test_c17_a_deadline_does_not_override_a_cancel_in_the_console(new_world: NewWorld) -> None:
    w = new_world(rare=240, batch_turnaround=HOUR, batch_cancel_seconds=90.0)
    job = w.process().submit_batch(texts(20), deadline="6h")
    w.pass_time(30 * MINUTE)
    cancel_in_console(w, w.creates[0].id)
    w.pass_time(10 * HOUR)
    assert job.status().state == "held"
    assert not w.requests("ask")
