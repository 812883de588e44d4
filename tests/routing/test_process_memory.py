"""What one call has seen helps the next one of the process, without a store."""

from __future__ import annotations

from collections.abc import Callable

from realtime.scenes import Scripted

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.types import Answer, Usage

ClientOf = Callable[..., BatchingClient]


def test_a_second_client_expects_the_lengths_and_times_of_the_first(
    clock: VirtualClock, client_of: ClientOf
) -> None:
    def answer(*_: object) -> Answer:
        return Answer("fine", usage=Usage(20, 7))

    first = client_of(Scripted(clock, answer, latency=0.25))
    before = first.plan([f"question {n}" for n in range(40)])
    assert before.answers is not None
    assert before.answers.seen == 0
    first.generate([f"question {n}" for n in range(40)])
    first.stop()
    plan = client_of(Scripted(clock, answer, latency=0.25)).plan([f"question {n}" for n in range(40)])
    assert plan.answers is not None
    assert (plan.answers.seen, plan.answers.tokens) == (40, 7)
    assert plan.p95 < before.p95 / 2
