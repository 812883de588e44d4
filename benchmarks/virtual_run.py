"""One list of the real client in virtual time, from the first row to the last answer."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from random import Random
from typing import Any

from attrs import frozen

from benchmarks.serial_clock import SerialClock
from smartbatch import BatchingClient
from smartbatch.errors import ProviderError
from smartbatch.providers.base import Provider

__all__ = ["VirtualRun", "send"]


@frozen
class VirtualRun:
    """What came of a list.

    Attributes:
        seconds: virtual, until the last row was over, or until the run was given up.
        answered: rows with their answer.
        maybe_billed: rows that were given up after a failure that may have been billed.
        over: False when it was given up.
    """

    seconds: float
    answered: int
    maybe_billed: int
    over: bool


def send(
    provider: Provider,
    clock: SerialClock,
    prompts: Sequence[str],
    *,
    seed: int,
    patience: float,
    **settings: Any,
) -> VirtualRun:
    """Send ``prompts`` and wait for all of them, ``patience`` virtual seconds at most."""
    clock.spawned()
    clock.began()
    client = BatchingClient(
        "simulated",
        provider=provider,
        queue_capacity=max(1000, len(prompts)),
        clock=clock,
        rng=Random(seed),
        **settings,
    )
    done = clock.monitor()
    ended: list[float] = []
    answered = maybe_billed = 0

    def note(future: Future[Any]) -> None:
        nonlocal answered, maybe_billed
        with done:
            error = None if future.cancelled() else future.exception()
            answered += not future.cancelled() and error is None
            maybe_billed += isinstance(error, ProviderError) and error.maybe_billed
            ended.append(clock.now())
            if len(ended) == len(prompts):
                done.notify()

    for prompt in prompts:
        client.submit(prompt).add_done_callback(note)
    with done:
        over = bool(done.wait_for(lambda: len(ended) == len(prompts), patience))
        found = VirtualRun(max(ended) if over else clock.now(), answered, maybe_billed, over)
    clock.ended()
    client.stop(timeout=0, cancel_waiting=True)
    return found
