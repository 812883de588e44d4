"""What explicit caches cost over minutes and hours is in the totals of a client, in virtual time."""

from __future__ import annotations

import pytest
from inside import inside

from smartbatch.errors import AllRequestsFailed
from smartbatch.events import CallFinished, ExplicitCacheEnded
from tests.faults.world import KEY, MINUTE, world

SYSTEM = "One of our many rules, which are long. " * 410
CACHE_TOKENS = 3997
INPUT_USD = 0.75e-6
QUESTIONS = [f"Question {n}?" for n in range(20)]


@pytest.fixture
def gemini(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with world("gemini", tmp_path, prompt_caching=True) as made:
        yield made


def client_of(gemini, **settings):
    settings = {"max_tokens": 20, "prefer": "cost", "parallelism": 4, **settings}
    return gemini.process(model="gemini-3.8-flash", **settings)


def ask(client, questions=QUESTIONS):
    return client.generate(questions, system=SYSTEM, strategy="individual")


def refuse_questions(gemini, *refused):
    """Answer 400 to requests that contain one of these texts."""

    def meet(seen):
        is_refused = "enerateContent" in seen.head.path and any(text in seen.body for text in refused)
        return gemini.refusal(400) if is_refused else None

    gemini.service.meet = meet


def live_caches(gemini):
    return gemini.service.backend.caches.explicit(("gemini", KEY), gemini.clock.now())


def creations(gemini):
    calls = gemini.emu.ledger.calls
    return sum(call.endpoint.startswith("POST") and "cachedContents" in call.endpoint for call in calls)


def paid_tokens(client):
    """Return the total cost of a client's input, as a number of uncached input tokens."""
    usage = client.metrics.snapshot().usage
    return usage.input_tokens - 0.9 * usage.cached_tokens + usage.explicit_cache_tokens


def billed_tokens(gemini):
    calls = [call for call in gemini.emu.ledger.calls if call.billed and call.prompt is not None]
    outputs = 4 * len(calls)
    return sum(call.billed for call in calls) - outputs - gemini.emu.ledger.prompt_cache()["saved"]


def stored_usd(client):
    engine = inside(client).jobs.engine
    engine.summaries.save(engine.store)
    return sum(each.usd for each in engine.store.summaries.spending(0.0))


def test_a_cache_with_uses_left_is_deleted_after_ten_minutes_and_its_storage_is_paid_for(gemini):
    refuse_questions(gemini, b"Question 7?")
    client = client_of(gemini)
    results = ask(client)
    assert results.failed == 1
    gemini.pass_time(10 * MINUTE - 1)
    assert len(live_caches(gemini)) == 1
    gemini.pass_time(2)
    assert live_caches(gemini) == []
    assert paid_tokens(client) == pytest.approx(billed_tokens(gemini), abs=1)
    [ended] = [event for event in gemini.events if isinstance(event, ExplicitCacheEnded)]
    storage = CACHE_TOKENS * (0.5 / 0.75) / 6  # ten minutes
    assert ended.usage.explicit_cache_tokens == pytest.approx(storage, abs=1)
    assert ended.cost == pytest.approx(ended.usage.explicit_cache_tokens * INPUT_USD)
    total = pytest.approx(results.cost + ended.cost)
    assert (client.spent, client.metrics.snapshot().cost, stored_usd(client)) == (total, total, total)


def test_a_cache_is_paid_for_if_no_request_that_reads_it_is_answered(gemini):
    refuse_questions(gemini, b"Question")
    client = client_of(gemini)
    with pytest.raises(AllRequestsFailed) as failed:
        ask(client)
    results = failed.value.results
    assert results.cost == pytest.approx(CACHE_TOKENS * INPUT_USD)
    assert client.spent == pytest.approx(results.cost)


def test_failed_requests_with_a_cache_count_against_the_limit_of_tokens(gemini):
    refuse_questions(gemini, b"Question")
    with pytest.raises(AllRequestsFailed):
        ask(client_of(gemini, max_tpm=20_000, parallelism=1))
    minutes = len(QUESTIONS) * CACHE_TOKENS / 20_000
    assert gemini.clock.now() >= (minutes - 1) * MINUTE  # the first minute's tokens are free at once


def test_hours_of_storage_are_paid_for(gemini):
    def pause(event):
        if isinstance(event, CallFinished):
            gemini.pass_time(9.7 * MINUTE)

    client = client_of(gemini, parallelism=1)
    client.observe(pause)
    results = ask(client)
    client.stop()
    # three caches, each for 58 minutes; the last two questions do not pay for another one
    assert [result.usage.cached_share > 0.9 for result in results] == [True] * 18 + [False] * 2
    assert creations(gemini) == 3
    assert paid_tokens(client) == pytest.approx(billed_tokens(gemini), abs=3)


@pytest.mark.parametrize(("budget", "caches"), [(0.012, 1), (0.009, 0)])
def test_no_cache_is_created_that_would_exceed_the_budget(gemini, budget, caches):
    client = client_of(gemini, budget=budget, parallelism=1)
    results = ask(client)
    assert results.succeeded > 1
    assert creations(gemini) == caches
    assert client.spent <= budget


def test_two_lists_share_a_cache_which_is_deleted_after_the_last_use_of_both(gemini):
    refused = [b"first Question 7?", b"second Question 7?"]

    def refuse_once(seen):
        found = [text for text in refused if text in seen.body]
        return gemini.refusal(503) if found and refused.remove(found[0]) is None else None

    gemini.service.meet = refuse_once
    client = client_of(gemini)
    lists = [
        client.map([f"{name} {question}" for question in QUESTIONS], system=SYSTEM, strategy="individual")
        for name in ("first", "second")
    ]
    for first, second in zip(*lists, strict=True):
        assert first.usage.cached_share > 0.9 < second.usage.cached_share
    gemini.pass_time(1)
    assert (creations(gemini), live_caches(gemini)) == (1, [])
    assert paid_tokens(client) == pytest.approx(billed_tokens(gemini), abs=1)


@pytest.mark.full
def test_a_budget_that_processes_share_pays_for_storage_after_the_last_request(gemini, tmp_path):
    refuse_questions(gemini, b"Question 7?")
    shared = {"shared": f"sqlite:///{tmp_path / 'limits.db'}", "budget_scope": "shared:team", "budget": 1.0}
    first = client_of(gemini, **shared)
    results = ask(first)
    gemini.pass_time(11 * MINUTE)
    gemini.stop(first)
    second = client_of(gemini, **shared)
    second.submit("How much is left?", max_tokens=1).result()
    rest = first.spent - results.cost
    assert rest == pytest.approx(CACHE_TOKENS * (0.5 / 0.75) / 6 * INPUT_USD, rel=0.01)
    budget = inside(second).realtime.budget
    assert budget.room + first.spent + second.spent == pytest.approx(1.0)
