"""Retries: which failed calls are repeated, how often and when (A14, A15, E2, E4, E6)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scenes import PATIENCE, InTime, Scripted, broken, failure, limited, submit_all

from smartbatch.errors import ErrorKind, ProviderError, SmartbatchError
from smartbatch.events import CooldownStarted, RetryScheduled
from smartbatch.types import Answer, Usage

CALLS = {
    ErrorKind.TIMEOUT: 2,
    ErrorKind.UNKNOWN: 2,
    ErrorKind.NETWORK_ERROR: 4,
    ErrorKind.SERVER_ERROR: 4,
    ErrorKind.AUTH_ERROR: 1,
    ErrorKind.INVALID_RESPONSE: 1,
    ErrorKind.CLIENT_ERROR: 1,
    ErrorKind.NO_MONEY: 1,
    ErrorKind.CONTEXT_TOO_LONG: 1,
    ErrorKind.RATE_LIMIT: 31,
}
"""Calls of a request that always fails in the same way, with three retries."""


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_each_kind_of_failure_has_its_number_of_tries(kind, clock, client_of):
    provider = Scripted(clock, lambda *_: failure(kind), latency=0.01)
    client = client_of(provider, retries=3)
    future = client.submit("x", id="mine")
    error = future.exception(PATIENCE)
    assert isinstance(error, ProviderError)
    assert (error.kind, error.request_id) == (kind, "mine")
    assert len(provider.starts) == CALLS[kind]
    assert future.outcome is not None
    assert future.outcome.attempts == CALLS[kind]
    assert [start.attempt for start in provider.starts] == list(range(CALLS[kind]))


def test_retries_wait_longer_each_time(clock, client_of):
    provider = Scripted(clock, lambda *_: broken(), latency=0.0)
    client = client_of(provider, retries=6, retry_max_delay=10.0, breaker_threshold=1000)
    assert client.submit("x").exception(PATIENCE) is not None
    delays = [after.at - before.at for before, after in pairwise(provider.starts)]
    for delay, formula in zip(delays[:3], [1, 2, 4], strict=True):
        assert formula / 2 <= delay <= formula
    assert len(delays) == 6


def test_requests_that_failed_together_do_not_return_together(clock, client_of):
    provider = Scripted(clock, lambda _, attempt: broken() if attempt == 0 else "fine", latency=0.0)
    client = client_of(provider, parallelism=3, breaker_threshold=1000)
    with clock.held():
        futures = submit_all(client, "abc")
    for future in futures:
        assert future.result(PATIENCE).attempts == 2
    assert len({start.at for start in provider.starts if start.attempt}) == 3


def test_the_servers_retry_after_wins(clock, client_of):
    provider = Scripted(
        clock,
        lambda _, n: failure(ErrorKind.SERVER_ERROR, status=503, retry_after=7.0) if n == 0 else "fine",
        latency=0.0,
    )
    client = client_of(provider)
    assert client.submit("x").result(PATIENCE).ok
    assert 7.0 <= provider.starts[1].at <= 7.7


def test_tries_are_not_used_up_by_a_server_that_asks_for_no_wait(clock, client_of):
    provider = Scripted(
        clock, lambda *_: limited(0.0) if clock.now() - begun < 300.0 else "fine", latency=0.01
    )
    begun = clock.now()
    results = client_of(provider, parallelism=16).generate(map(str, range(16)))
    assert results.failed == 0
    assert len(provider.starts) < 16 * 12


def test_a_lone_refusal_holds_only_the_request_it_met(clock, client_of):
    provider = Scripted(clock, lambda prompt, n: limited(20.0) if (prompt, n) == ("a", 0) else "fine")
    events = []
    client = client_of(provider, parallelism=1, observers=[events.append])
    with clock.held():
        futures = submit_all(client, "abcd")
    assert all(future.result(PATIENCE).ok for future in futures)
    assert [start.prompt for start in provider.starts] == ["a", "b", "c", "d", "a"]
    assert [start.at for start in provider.starts[:4]] == [0.0, 1.0, 2.0, 3.0]
    assert 21.0 <= provider.starts[4].at <= 22.0
    assert not [event for event in events if isinstance(event, CooldownStarted)]


def test_refusals_that_repeat_pause_everybody(clock, client_of):
    provider = Scripted(clock, lambda prompt, n: limited(20.0) if prompt in "abcd" and n == 0 else "fine")
    events = []
    client = client_of(provider, parallelism=1, observers=[events.append])
    with clock.held():
        futures = submit_all(client, "abcde")
    assert all(future.result(PATIENCE).ok for future in futures)
    assert all(start.at >= 24.0 for start in provider.starts[4:])
    (cooldown,) = [event for event in events if isinstance(event, CooldownStarted)]
    assert 20.0 <= cooldown.seconds <= 21.0


def test_a_refusal_costs_no_try(clock, client_of):
    def script(_, attempt):
        return limited(0.5) if attempt < 10 else broken() if attempt == 10 else "fine"

    events = []
    client = client_of(Scripted(clock, script), retries=1, observers=[events.append])
    assert client.submit("x").result(PATIENCE).attempts == 12
    counted = [event.counted for event in events if isinstance(event, RetryScheduled)]
    assert counted == [False] * 10 + [True]


def test_two_clients_of_one_account_pause_together(clock, client_of):
    one = Scripted(clock, lambda _, n: limited(30.0) if n == 0 else "fine", scope="account")
    other = Scripted(clock, scope="account")
    other_account = Scripted(clock, scope="another account")
    first, second, third = client_of(one), client_of(other), client_of(other_account)
    with clock.held():
        refused = submit_all(first, "wxyz")

        def later():
            clock.sleep(5.0)
            futures.extend([second.submit("y"), third.submit("z")])

        futures = list(refused)
        traffic = InTime(clock, later)
    traffic.result()
    assert all(future.result(PATIENCE).ok for future in futures)
    assert other.starts[0].at >= 31.0
    assert other_account.starts[0].at == 5.0


@pytest.mark.parametrize(
    ("gap", "earliest", "latest"), [(5.0, 31.0, 32.5), (20.0, 31.0, 32.5), (40.0, 43.0, 43.0)]
)
def test_a_new_client_waits_for_the_rest_of_a_pause(clock, client_of, gap, earliest, latest):
    one = Scripted(clock, lambda *_: limited(30.0), scope="account")
    first = client_of(one, shared="off")
    with clock.held():
        submit_all(first, "wxyz")

        def later():
            clock.sleep(3.0)
            first.stop(0.0)

        stopping = InTime(clock, later)
    stopping.result()
    assert len(one.starts) == 4
    clock.sleep(gap)
    new = Scripted(clock, scope="account")
    assert client_of(new, shared="off").submit("y").result(PATIENCE).ok
    assert earliest <= new.starts[0].at <= latest


def test_tokens_of_failed_attempts_are_counted(clock, client_of):
    def script(_, attempt):
        if attempt < 2:
            return failure(ErrorKind.SERVER_ERROR, status=500, usage=Usage(10, 5))
        return Answer("fine", usage=Usage(20, 7))

    provider = Scripted(clock, script, priced=True)
    client = client_of(provider, prices={"scripted:default": {"input": 1_000_000, "output": 2_000_000}})
    result = client.submit("x").result(PATIENCE)
    assert result.usage == Usage(40, 17)
    assert result.cost == pytest.approx(40 * 1 + 17 * 2)
    assert client.spent == pytest.approx(40 * 1 + 17 * 2)


def test_a_users_classifier_decides_on_retries(clock, client_of):
    provider = Scripted(clock, lambda *_: broken())
    client = client_of(provider, classifiers=[lambda error, verdict: ErrorKind.CLIENT_ERROR])
    assert client.submit("x").exception(PATIENCE)
    assert len(provider.starts) == 1


def test_a_request_that_always_fails_delays_no_other(clock, client_of):
    provider = Scripted(clock, lambda prompt, _: broken() if prompt == "failing" else "fine")
    client = client_of(provider, parallelism=4)
    with clock.held():
        failing = client.submit("failing")
        others = submit_all(client, [f"p{i}" for i in range(200)])
    assert all(future.result(PATIENCE).ok for future in others)
    assert isinstance(failing.exception(PATIENCE), ProviderError)
    assert clock.now() <= 51 + 10  # 204 calls by four workers, and the last backoff of the failing request


def test_retries_go_on_while_the_client_stops(clock, client_of):
    provider = Scripted(clock, lambda _, attempt: broken() if attempt < 2 else "fine")
    with client_of(provider) as client, clock.held():
        future = client.submit("x")
    assert future.result(PATIENCE).attempts == 3


def test_no_retry_follows_a_cancelled_stop(clock, client_of):
    provider = Scripted(clock, lambda *_: broken())
    client = client_of(provider, parallelism=1)
    with clock.held():
        first, second = submit_all(client, "ab")
        provider.wait_for(1)
        stopper = InTime(clock, lambda: client.stop(cancel_waiting=True))
    stopper.result()
    assert isinstance(first.exception(PATIENCE), SmartbatchError)
    assert second.cancelled()
    assert len(provider.starts) == 1


def test_what_is_asked_again_after_all_was_cancelled_has_its_tries(clock, client_of):
    provider = Scripted(clock, lambda prompt, attempt: broken() if attempt == 0 else "fine")
    client = client_of(provider)
    with clock.held():
        first = client.submit("x")
        provider.wait_for(1)
        client.cancel_pending()
        second = client.submit("x")
    assert isinstance(first.exception(PATIENCE), SmartbatchError)
    assert second.result(PATIENCE).attempts == 2


def test_halves_of_a_failed_call_are_not_sent_after_a_cancelled_stop(clock, client_of):
    class Spoilt(Scripted):
        def generate_many(self, requests, **details):
            super().generate_many(requests, **details)
            client.cancel_pending()
            raise failure(ErrorKind.CLIENT_ERROR)

    provider = Spoilt(clock, max_shared=10)
    client = client_of(provider, parallelism=1)
    with clock.held():
        first = client.submit("first")
        provider.wait_for(1)
        futures = submit_all(client, "ab")
    assert first.result(PATIENCE).ok
    assert all(isinstance(future.exception(PATIENCE), SmartbatchError) for future in futures)
    client.stop()
    assert provider.sizes == [1, 2]
