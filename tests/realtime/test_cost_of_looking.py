"""A newcomer that cannot go yet costs no more for all those who wait before it (A6, A12)."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest
from inside import inside
from scenes import Embedder, InTime, limited

from smartbatch import Price
from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.core.limits.budget import Budget
from smartbatch.providers.mock import MockProvider
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.lane_queue import LaneQueue
from smartbatch.realtime.ticket import CallOptions, Ticket
from smartbatch.types import Generation, Request

ClientOf = Callable[..., BatchingClient]


def test_a_pause_of_the_quota_is_seen_before_requests_are_gathered(
    clock: VirtualClock, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all lanes pause, each of 300 new requests wakes the collector, and none takes out the others."""
    client = client_of(Embedder(clock, lambda *_: limited(500.0)))
    taken = [0]
    pop = LaneQueue.pop

    def counted(lane_queue: LaneQueue) -> Ticket | None:
        taken[0] += 1
        return pop(lane_queue)

    def come() -> int:
        for number in range(4):
            client.submit_embedding(f"refused {number}")
            clock.sleep(5.0)
        monkeypatch.setattr(LaneQueue, "pop", counted)
        for number in range(300):
            client.submit_embedding(f"t{number}")
            clock.sleep(0.2)  # the window is over, and the collector looks
        return taken[0]

    with clock.held():
        coming = InTime(clock, come)
    assert coming.result() == 0
    client.stop(timeout=0)


def looked_at_lists(clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, *, requests: int) -> int:
    """Return how many budgets are asked, and entries of heaps moved, by 40 looks while 20 lists wait for
    money, each with a call in flight and some ``requests``."""
    price = Price(input=0.0, output=1_000_000.0)  # a USD for each token
    provider = MockProvider(lambda _: "ok", latency=10_000.0, sleep=clock.sleep)
    provider.capabilities = type(provider.capabilities)(priced=True)
    settings: dict[str, Any] = {"parallelism": 64, "queue_capacity": 10_000, "prices": {"m": price}}
    client = BatchingClient("m", provider=provider, clock=clock, max_tokens=1, **settings)
    realtime, model = inside(client).realtime, OpenedModel(provider, "m")
    asked = [0]

    def counted(counting: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            asked[0] += 1
            return counting(*given)

        return call

    for number in range(20):
        options = CallOptions(model, own_budget=Budget(1.5))
        for row in range(1 + requests):
            realtime.ask(Request(f"{number} {row}", Generation(max_tokens=1)), options)
    clock.sleep(1.0)
    assert realtime.engine is not None
    [lane_queue] = realtime.engine.queue.lanes.values()
    assert lane_queue.waiting_for_money == 20 * requests
    with monkeypatch.context() as counting:
        counting.setattr(Budget, "must_wait", counted(Budget.must_wait))
        counting.setattr(heapq, "heappop", counted(heapq.heappop))
        counting.setattr(heapq, "heappush", counted(heapq.heappush))
        for number in range(40):
            client.submit(f"other {number}").cancel()
            clock.sleep(0.1)
    client.stop(timeout=0)
    return asked[0]


def test_lists_that_wait_for_money_cost_a_look_no_more_for_all_their_requests(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (looked_at_lists(clock, monkeypatch, requests=requests) for requests in (2, 60))
    assert many <= 1.1 * few
