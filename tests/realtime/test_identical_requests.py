"""Identical requests in flight share one call, and each has its own result (A17)."""

from __future__ import annotations

import pytest
from scenes import PATIENCE, InTime, Scripted, failure, submit_all

from smartbatch.errors import ErrorKind, RequestTimeout
from smartbatch.events import RequestFinished
from smartbatch.types import Answer, Route, Usage

PRICES = {"scripted:default": {"input": 1_000_000, "output": 1_000_000}}


def bill(result):
    return result.text, result.usage, result.cost, result.deduplicated


def test_a_thousand_identical_requests_make_one_call(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("same", usage=Usage(3, 4)), priced=True)
    client = client_of(provider, prices=PRICES)
    with clock.held():
        futures = [client.submit("x", context=i) for i in range(1_000)]
    results = [future.result(PATIENCE) for future in futures]
    assert len(provider.starts) == 1
    assert [result.context for result in results] == list(range(1_000))
    assert len({result.request_id for result in results}) == 1_000
    assert bill(results[0]) == ("same", Usage(3, 4), 7.0, False)
    assert {bill(result) for result in results[1:]} == {("same", Usage(), 0.0, True)}
    assert client.spent == 7.0


@pytest.mark.parametrize(
    "difference",
    [
        {"temperature": 0.5},
        {"system": "Be brief."},
        {"max_tokens": 5},
        {"isolation_key": "other"},
        {"deduplicate": False},
        {"extra": {"user": "somebody else"}},
    ],
)
def test_requests_that_differ_make_their_own_calls(difference, clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider)
    with clock.held():
        futures = [client.submit("x"), client.submit("x", **difference)]
    for future in futures:
        assert not future.result(PATIENCE).deduplicated
    assert len(provider.starts) == 2


def test_a_client_may_share_nothing(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, deduplicate=False)
    with clock.held():
        futures = submit_all(client, ["x"] * 5)
    assert all(future.result(PATIENCE).ok for future in futures)
    assert len(provider.starts) == 5


def test_an_answered_request_is_asked_again(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider)
    for _ in range(2):
        assert not client.submit("x").result(PATIENCE).deduplicated
    assert len(provider.starts) == 2


def test_when_the_leader_is_cancelled_the_follower_carries_on(clock, client_of):
    events = []
    provider = Scripted(clock, lambda prompt, _: Answer(f"re: {prompt}", usage=Usage(3, 4)), priced=True)
    client = client_of(provider, parallelism=1, prices=PRICES, observers=[events.append])
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        leader, follower, third = (client.submit("x", context=i) for i in range(3))
        assert leader.cancel()
    result = follower.result(PATIENCE)
    assert (result.context, result.cost, result.usage) == (1, 7.0, Usage(3, 4))
    assert third.result(PATIENCE).cost == 0.0
    client.stop()
    assert provider.prompts == ["first", "x"]
    told = [event for event in events if isinstance(event, RequestFinished)]
    assert sum(event.cost or 0.0 for event in told) == client.spent == 14.0
    assert [event.cancelled for event in told].count(True) == 1


def test_a_more_urgent_duplicate_pulls_the_request_forward(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, parallelism=1)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        submit_all(client, [f"n{i}" for i in range(10)])
        client.submit("same", priority="deferrable")
        client.submit("same", priority="urgent")
    client.stop()
    assert provider.prompts[:2] == ["first", "same"]
    assert provider.prompts.count("same") == 1


def test_a_more_urgent_duplicate_pulls_a_paused_retry_forward(clock, client_of):
    provider = Scripted(
        clock,
        lambda prompt, n: (
            failure(ErrorKind.SERVER_ERROR, status=500) if (prompt, n) == ("same", 0) else "fine"
        ),
    )
    client = client_of(provider, parallelism=1)
    with clock.held():
        client.submit("same", priority="deferrable")
        provider.wait_for(1)
        submit_all(client, [f"n{i}" for i in range(20)])

        def later():
            clock.sleep(1.4)
            return client.submit_urgent("same")

        urgent = InTime(clock, later)
    assert urgent.result().result(PATIENCE).ok
    client.stop()
    assert provider.prompts.index("same", 1) <= 3


def test_an_asker_whose_time_ends_leaves_the_others_their_answer(clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("late", usage=Usage(3, 4)), latency=10.0, priced=True)
    client = client_of(provider, prices=PRICES)
    with clock.held():
        futures = [
            client.submit("x", id=f"id-{i}", context=i, timeout=t) for i, t in enumerate((2.0, None, None))
        ]
    with pytest.raises(RequestTimeout) as caught:
        futures[0].result(PATIENCE)
    assert caught.value.request_id == "id-0"
    second, third = (future.result(PATIENCE) for future in futures[1:])
    assert (second.request_id, second.context, second.text) == ("id-1", 1, "late")
    assert (third.request_id, third.context) == ("id-2", 2)
    costs = [future.outcome.cost for future in futures if future.outcome is not None]
    assert sum(cost or 0.0 for cost in costs) == 7.0
    assert client.counts.balanced()


def test_an_asker_who_gave_up_does_not_pay_for_the_others(clock, client_of):
    def script(prompt, attempt):
        if attempt == 0:
            return failure(ErrorKind.SERVER_ERROR, status=500, usage=Usage(5, 0))
        return Answer("fine", usage=Usage(2, 0))

    client = client_of(Scripted(clock, script, priced=True), prices=PRICES, retry_initial=10.0)
    with clock.held():
        leader, follower = client.submit("x", timeout=3.0), client.submit("x")
    assert isinstance(leader.exception(PATIENCE), RequestTimeout)
    assert follower.result(PATIENCE).cost == 7.0
    assert leader.outcome is not None
    assert leader.outcome.cost == 0.0
    assert client.spent == 7.0


def test_failed_attempts_are_billed_to_one_asker(clock, client_of):
    provider = Scripted(
        clock, lambda *_: failure(ErrorKind.CLIENT_ERROR, status=400, usage=Usage(5, 0)), priced=True
    )
    client = client_of(provider, parallelism=1, prices=PRICES)
    with clock.held():
        client.submit("first")
        provider.wait_for(1)
        leader, *followers = submit_all(client, ["x"] * 3)
        leader.cancel()
    for future in followers:
        assert future.exception(PATIENCE)
    assert [future.outcome.cost for future in followers if future.outcome] == [5.0, 0.0]
    assert client.spent == 10.0


def test_joining_a_call_under_way_cannot_be_cancelled(clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider)
    with clock.held():
        client.submit("x")
        provider.wait_for(1)
        follower = client.submit("x")
        assert not follower.cancel()
        assert follower.running()
    assert follower.result(PATIENCE).deduplicated


def test_a_request_without_a_window_ends_that_of_an_identical_one(clock, client_of):
    provider = Scripted(clock, max_shared=10)
    client = client_of(
        provider, batch_window=5.0, min_batch_size=5, max_wait=10, prefer_individual_for=["chat"]
    )
    with clock.held():
        first, other, chat = (
            client.submit(prompt, purpose=purpose)
            for prompt, purpose in (("same", "bulk"), ("other", "bulk"), ("same", "chat"))
        )
    assert chat.result(PATIENCE).deduplicated
    assert {one.result(PATIENCE).route for one in (first, chat)} == {Route.INDIVIDUAL}
    assert other.result(PATIENCE).ok
    assert (0.0, ("same",)) in [(start.at, start.prompts) for start in provider.starts]
