"""A provider that fails some of its calls."""

from __future__ import annotations

import itertools
import random

import pytest
from scenes import PATIENCE, Scripted, failure, submit_all, unavailable

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import BreakerChanged, RetryScheduled
from tests.levels import sampled

ROWS, WIDE, LATENCY = 1_000, 64, 0.05
UNDISTURBED = ROWS / WIDE * LATENCY


def partly(share, error, seed=1):
    rng = random.Random(seed)
    return lambda prompt, _: error() if rng.random() < share else f"re: {prompt}"


def ask_all(client, clock, rows=ROWS):
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(rows)])
    assert [future.result(PATIENCE).text for future in futures] == [f"re: p{i}" for i in range(rows)]


@pytest.mark.full
@pytest.mark.parametrize(("share", "times"), sampled([(0.3, 3.5), (0.1, 2.0), (0.5, 8.0)], keep=1))
def test_a_share_of_503s_costs_what_it_costs(share, times, clock, client_of):
    events = []
    provider = Scripted(clock, partly(share, unavailable), latency=LATENCY)
    client = client_of(provider, parallelism=WIDE, queue_capacity=2_000, observers=[events.append])
    ask_all(client, clock)
    assert clock.now() <= times * UNDISTURBED + 1.0
    failed = len(provider.starts) - ROWS
    assert failed == pytest.approx(ROWS * share / (1 - share), rel=0.25), "one call more for each that failed"
    assert not [event for event in events if isinstance(event, BreakerChanged)]


def test_a_row_that_alone_keeps_failing_ends_after_its_tries(clock, client_of):
    provider = Scripted(
        clock, lambda prompt, _: unavailable() if prompt == "p7" else f"re: {prompt}", latency=LATENCY
    )
    client = client_of(provider, parallelism=4)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(80)])
    assert isinstance(futures[7].exception(PATIENCE), ProviderError)
    assert sum(future.exception(PATIENCE) is not None for future in futures) == 1
    assert provider.prompts.count("p7") == 4
    assert clock.now() <= 80 / 4 * LATENCY + 5.0


@pytest.mark.parametrize("status", [404, 403, 401, 402])
def test_a_refusal_that_every_row_would_meet_stops_the_lane(status, clock, client_of):
    kinds = {404: ErrorKind.CLIENT_ERROR, 402: ErrorKind.NO_MONEY}
    kind = kinds.get(status, ErrorKind.AUTH_ERROR)
    provider = Scripted(clock, lambda *_: failure(kind, status=status))
    client = client_of(provider, parallelism=8)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(200)])
    assert {getattr(future.exception(PATIENCE), "kind", None) for future in futures} == {kind}
    assert len(provider.starts) <= 8
    assert clock.now() <= 3


def test_a_refusal_of_one_row_among_answers_stops_nobody(clock, client_of):
    provider = Scripted(
        clock,
        lambda prompt, _: failure(ErrorKind.AUTH_ERROR, status=403) if prompt == "p50" else f"re: {prompt}",
    )
    client = client_of(provider, parallelism=4)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(100)])
    assert [i for i, future in enumerate(futures) if future.exception(PATIENCE) is not None] == [50]


def test_in_a_stopped_lane_only_the_refusal_of_all_is_free_of_charge(clock, client_of):
    retries = []
    errors = {
        "unknown": failure(ErrorKind.CLIENT_ERROR, status=404),
        "billed": failure(ErrorKind.INVALID_RESPONSE, status=200, maybe_billed=True),
        "slow": failure(ErrorKind.TIMEOUT, maybe_billed=True),
    }
    provider = Scripted(
        clock, lambda prompt, _: errors[prompt], latency=lambda prompt: 1.0 if prompt == "unknown" else 2.0
    )
    client = client_of(
        provider,
        parallelism=3,
        on_breaker_open="fallback",
        fallback_model="sim:spare",
        observers=[lambda event: retries.append(event) if isinstance(event, RetryScheduled) else None],
    )
    with clock.held():
        unknown, billed, slow = submit_all(client, errors)
    assert unknown.result(PATIENCE).model == "sim:spare"
    assert getattr(billed.exception(PATIENCE), "kind", None) is ErrorKind.INVALID_RESPONSE
    assert slow.result(PATIENCE).model == "sim:spare"
    assert {(retry.kind, retry.counted) for retry in retries} == {("client_error", False), ("timeout", True)}


def page():
    return failure(ErrorKind.INVALID_RESPONSE, status=200, code="html")


def test_a_stray_web_page_between_answers_is_asked_again(clock, client_of):
    calls = itertools.count()
    provider = Scripted(
        clock, lambda prompt, _: page() if next(calls) % 50 == 0 else f"re: {prompt}", latency=LATENCY
    )
    ask_all(client_of(provider, parallelism=8), clock, rows=100)
    assert clock.now() <= 10


def test_an_endpoint_that_only_sends_web_pages_is_a_wrong_address(clock, client_of):
    provider = Scripted(clock, lambda *_: page(), latency=LATENCY)
    client = client_of(provider, parallelism=8)
    with clock.held():
        futures = submit_all(client, [f"p{i}" for i in range(200)])
    assert all(isinstance(future.exception(PATIENCE), ProviderError) for future in futures)
    assert len(provider.starts) <= 9
    assert clock.now() <= 5
