"""Lists that smartbatch itself sends by batch are answered although batches are missing, fail or are late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smartbatch.client import BatchingClient
from smartbatch.emulator.provider_api import ServerReply
from smartbatch.errors import AllRequestsFailed, ProviderError
from smartbatch.results import ResultList
from tests.faults.world import HOUR, MINUTE, PROVIDERS, World, texts, world
from tests.levels import sampled

each_provider = pytest.mark.parametrize("provider", sampled(PROVIDERS))
ABOUT_BATCHES = ("upload", "create", "list", "get", "file", "cancel")
PAGE = ServerReply(404, b"<html><title>404 Not Found</title></html>", content_type="text/html")


def chosen_by_us(client: BatchingClient, prompts: list[str]) -> ResultList:
    assert client.plan(prompts, prefer="cost").route.by_batch
    return client.generate(prompts, prefer="cost")


def refusing(w: World, reply: Callable[[], ServerReply]) -> None:
    w.service.meet = lambda seen: reply() if seen.what in ABOUT_BATCHES else None


@each_provider
@pytest.mark.parametrize("how", sampled(["404", "403", "410", "501", "page", "500"], first=5))
def test_c18_a_list_is_sent_in_real_time_without_a_batch_api(how, new_world):
    w = new_world()
    refusing(w, lambda: PAGE if how == "page" else w.refusal(int(how), "not available"))
    prompts = texts(12)
    began = w.clock.now()
    results = chosen_by_us(w.process(flex=False), prompts)
    assert [result.text for result in results] == w.right(prompts)
    assert w.clock.now() - began < HOUR
    assert not w.creates


@each_provider
def test_c18_a_rescued_list_reports_its_real_time_requests(new_world):
    w = new_world()
    refusing(w, lambda: w.refusal(404, "not available"))
    prompts = texts(12)
    client = w.process(flex=False)
    first = client.plan(prompts, prefer="cost").first
    results = chosen_by_us(client, prompts)
    assert results.rescue is not None
    left = 12 - first
    counts = f"{left} requests were planned as a batch, {left} of them were sent in real time"
    assert results.rescue.startswith(f"{counts}: the Batch API cannot be used (404): ")
    assert results.rescue in repr(results)
    assert f"Rescued: {counts}" in results.report().html
    [job] = client.jobs()
    reason = job.status().rescue
    assert reason is not None
    assert results.rescue.endswith(reason)
    assert reason in job.report().html
    assert f"requests of a batch were sent in real time instead: {reason}" in str(job.status())


@each_provider
def test_c18_a_forced_batch_obeys_batch_fallback(new_world):
    w = new_world()
    refusing(w, lambda: w.refusal(404, "not available"))
    client = w.process(flex=False)
    with pytest.raises(AllRequestsFailed, match="answered 404"):
        client.generate(texts(12), strategy="batch")
    assert not w.requests("ask")


@each_provider
def test_c16_a_list_with_a_slow_batch_continues_in_real_time(new_world):
    w = new_world(rare=240, batch_faults={"stuck": 1.0}, batch_cancel_seconds=60.0)
    prompts = texts(12)
    client = w.process(flex=False, batch_poll_interval=30 * MINUTE)
    planned = client.plan(prompts, prefer="cost").decision.chosen.p95
    began = w.clock.now()
    results = chosen_by_us(client, prompts)
    assert [result.text for result in results] == w.right(prompts)
    assert planned <= w.clock.now() - began < planned + HOUR
    assert str(results.rescue).endswith("of them were sent in real time: the batch takes too long")
    assert len(w.creates) == 1


@each_provider
def test_c18_batches_that_always_fail_are_replaced_by_real_time(provider, new_world):
    if provider == "anthropic":
        pytest.skip("its batches never fail as a whole")
    w = new_world(batch_faults={"fail_validation": 1.0})
    prompts = texts(12)
    results = chosen_by_us(w.process(flex=False), prompts)
    assert [r.text for r in results] == w.right(prompts)
    assert len(w.creates) == 2
    assert "of them were sent in real time: " in str(results.rescue)


@each_provider
@pytest.mark.parametrize("deadline", sampled([6 * HOUR, None], first=1))
def test_c16_a_batch_with_a_stuck_cancel_delays_nothing(deadline, new_world):
    w = new_world(may_pay_twice=True, rare=240, batch_faults={"stuck": 1.0}, batch_cancel_seconds=12 * HOUR)
    prompts = texts(12)
    client = w.process(flex=False, batch_timeout=HOUR, batch_poll_interval=10 * MINUTE)
    if deadline is None:
        job = client.submit_batch(prompts, batch_fallback="individual")
    else:
        job = client.submit_batch(prompts, deadline=deadline)
    began = w.clock.now()
    results = w.results(job)
    assert [result.text for result in results] == w.right(prompts)
    assert w.clock.now() - began <= (deadline or 1.6 * HOUR)
    assert len(w.requests("ask")) == 12
    assert w.incidents(job) == {"maybe_billed": 1}
    w.pass_time(16 * HOUR)
    assert w.incidents(job) == {"maybe_billed": 1, "double_submission": 1}
    [twice] = [incident for incident in job.incidents() if incident.kind == "double_submission"]
    assert twice.money is not None
    assert twice.money > 0
    assert job.status().wasted == pytest.approx(twice.money)
    assert [result.text for result in job.results()] == w.right(prompts)


@each_provider
@pytest.mark.parametrize("durable", [False, True], ids=["a list", "a job"])
def test_c25_a_list_that_keeps_going_sends_all_refused_rows(durable, new_world):
    w = new_world()
    w.service.meet = lambda seen: w.refusal(403, f"denied, call {len(w.requests('ask'))}")
    client = w.process(flex=False, parallelism=2)
    if durable:
        job = client.submit_batch(texts(30), prefer="cost", keep_going=True, batch_fallback="individual")
        results = w.results(job)
    else:
        with pytest.raises(AllRequestsFailed) as caught:
            client.generate(texts(30), prefer="cost", keep_going=True)
        results = caught.value.results
    assert len(w.requests("ask")) == 30
    assert len({result.error.message for result in results if result.error is not None}) == 30
    assert {result.attempts for result in results} == {1}


@each_provider
def test_c18_a_batch_that_refuses_all_requests_is_avoided(provider, tmp_path):
    with world(provider, tmp_path, batch_faults={"item_invalid": 1.0}) as w:
        prompts = texts(12)
        assert [r.text for r in chosen_by_us(w.process(flex=False), prompts)] == w.right(prompts)
        assert len(w.creates) == 1
        assert len(w.requests("ask")) == 12
        job = w.process().submit_batch(prompts)
        assert {type(result.error) for result in w.results(job)} == {ProviderError}
    one = {"batch_line_fault_for": lambda batch, position, _: "item_invalid" if position == 3 else None}
    (tmp_path / "single").mkdir()
    with world(provider, tmp_path / "single", **one) as w:
        results = chosen_by_us(w.process(flex=False), prompts)
        assert [position for position, result in enumerate(results) if not result.ok] == [3]
        assert not w.requests("ask")
