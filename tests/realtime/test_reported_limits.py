"""Limits reported in answers and refusals reach the quota."""

from __future__ import annotations

import logging
import math

import pytest
from attrs import evolve
from scenes import Scripted

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import CooldownStarted, LongWait
from smartbatch.realtime.shared_quota import shared_quota
from smartbatch.types import Answer, LimitReport
from tests.levels import sampled

REPORT = LimitReport(requests_limit=600, requests_remaining=500)


def failure(kind):
    return ProviderError("no", kind=kind, status=400, limits=REPORT)


@pytest.mark.parametrize(
    "said",
    [Answer("yes", limits=REPORT), failure(ErrorKind.CLIENT_ERROR), failure(ErrorKind.RATE_LIMIT)],
    ids=["success", "failure", "refusal"],
)
def test_every_ending_brings_its_report(clock, client_of, said):
    provider = Scripted(clock, lambda prompt, attempt: said if attempt == 0 else "yes")
    client_of(provider).submit("one").exception(30.0)
    assert shared_quota(provider.scope, "default").quota.reported_limits == {"requests": 600}


def test_calls_refused_together_are_one_pause(clock, client_of):
    seen = []
    refusal = ProviderError("slow down", kind=ErrorKind.RATE_LIMIT, status=429, retry_after=2.0)
    provider = Scripted(clock, lambda prompt, attempt: refusal if attempt == 0 else "yes")
    results = client_of(provider, parallelism=16, observers=[seen.append]).generate(map(str, range(16)))
    assert results.failed == 0
    assert len([event for event in seen if isinstance(event, CooldownStarted)]) == 1


PLENTY = LimitReport(
    requests_limit=10_000, requests_remaining=9_900, tokens_limit=10**7, tokens_remaining=9 * 10**6
)


@pytest.mark.parametrize(
    "left", [{"requests_remaining": 0}, {"tokens_remaining": 0}], ids=["requests", "tokens"]
)
def test_a_report_that_little_is_left_is_learned_from_at_once(left, clock, client_of):
    little = evolve(PLENTY, requests_reset=30.0, tokens_reset=30.0, **left)
    said = {"1": PLENTY, "2": little, "3": little}
    provider = Scripted(clock, lambda prompt, _: Answer("yes", limits=said[prompt]), latency=0.001)
    client = client_of(provider, parallelism=1)
    assert all(client.submit(prompt).result(60.0).ok for prompt in "12")
    before = clock.now()
    assert before < 0.02
    assert client.submit("3").result(60.0).ok
    assert clock.now() > before + 0.0015


HOUR = 3600.0


@pytest.mark.parametrize(
    ("reset", "longest"),
    sampled(
        [(1.8e9, HOUR), (1e400, HOUR), (math.nan, 61.0), (HOUR, HOUR), (20 * HOUR, 20 * HOUR / 0.995)], keep=2
    ),
)
def test_no_reset_holds_a_call_for_longer_than_an_hour_or_a_quota_of_a_day(reset, longest, clock, client_of):
    used_up = LimitReport(requests_limit=1, requests_remaining=0, requests_reset=reset)
    provider = Scripted(clock, lambda *_: Answer("yes", limits=used_up), latency=0.0)
    client = client_of(provider, parallelism=1)
    begun = clock.now()
    assert client.submit("one").result(30.0).ok
    assert client.submit("two").result(30.0).ok
    assert clock.now() - begun <= longest + 1.0


@pytest.mark.parametrize("limit", sampled([10**300, 10**400]), ids=["of floats", "of whole numbers"])
def test_a_limit_beyond_reason_fails_no_call(limit, clock, client_of):
    odd = LimitReport(requests_limit=limit, requests_remaining=0, requests_reset=1.0)
    provider = Scripted(clock, lambda *_: Answer("yes", limits=odd), latency=0.1)
    assert client_of(provider, parallelism=4).generate(map(str, range(40))).failed == 0
    assert len(provider.starts) == 40


def test_a_wait_of_more_than_a_minute_is_told(clock, client_of, caplog):
    seen = []
    used_up = LimitReport(requests_limit=2, requests_remaining=0, requests_reset=2 * HOUR)
    provider = Scripted(clock, lambda *_: Answer("yes", limits=used_up), latency=0.0)
    with caplog.at_level(logging.WARNING, "smartbatch"):
        results = client_of(provider, parallelism=1, observers=[seen.append]).generate(["one", "two"])
    assert results.failed == 0
    [told] = [event for event in seen if isinstance(event, LongWait)]
    assert told.seconds == pytest.approx(HOUR, rel=0.02)
    assert [record.getMessage() for record in caplog.records] == [
        "scripted:default: nothing is sent for 60 min, as the provider requested"
    ]


def test_a_long_wait_of_one_request_is_told(clock, client_of, caplog):
    refusal = ProviderError("slow down", kind=ErrorKind.RATE_LIMIT, status=429, retry_after=300.0)
    provider = Scripted(clock, lambda prompt, n: refusal if (prompt, n) == ("0", 0) else "yes")
    with caplog.at_level(logging.WARNING, "smartbatch"):
        results = client_of(provider, parallelism=4).generate(map(str, range(4)))
    assert results.failed == 0
    [record] = caplog.records
    assert "a request that failed is not sent again for 5 min" in record.getMessage()
