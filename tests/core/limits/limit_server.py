"""A simulated provider with a rate limit, and workers that ask a quota before each call, in virtual time."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from itertools import count

from attrs import define, field

from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.reported_limits import Reservation

Latency = Callable[[random.Random], float]
Admit = Callable[[float], bool]
UPLINK = 0.0005  # seconds from leaving the client to being counted by the server


def constant(seconds: float) -> Latency:
    return lambda rng: seconds


def lognormal(median: float, sigma: float = 0.5) -> Latency:
    return lambda rng: median * math.exp(rng.gauss(0.0, sigma))


def bucket(capacity: float, rate: float) -> Admit:
    """A token bucket, full at the first arrival."""
    state = [capacity, 0.0]

    def admit(at: float) -> bool:
        state[0] = min(capacity, state[0] + (at - state[1]) * rate)
        state[1] = at
        if state[0] < 1.0:
            return False
        state[0] -= 1.0
        return True

    return admit


def fixed_windows(limit: int, seconds: float, offset: float = 0.0) -> Admit:
    """At most ``limit`` in each window of the server's own clock."""
    used: dict[int, int] = {}

    def admit(at: float) -> bool:
        window = int((at + offset) // seconds)
        if used.get(window, 0) >= limit:
            return False
        used[window] = used.get(window, 0) + 1
        return True

    return admit


def spaced(seconds: float) -> Admit:
    """One call per ``seconds``, without bursts."""
    state = [-math.inf]

    def admit(at: float) -> bool:
        if at - state[0] < seconds - 1e-9:
            return False
        state[0] = at
        return True

    return admit


def noisy(share: float, rng: random.Random) -> Admit:
    """No limit, but some calls are refused at random."""
    return lambda at: rng.random() >= share


@define
class Run:
    """The outcome of a run."""

    answered: int = 0
    refused: int = 0
    seconds: float = 0.0
    ends: list[float] = field(factory=list)
    refusals: list[float] = field(factory=list)
    early: int = 0  # calls made before a Retry-After they could have known had ended


def run(
    quota: Quota,
    admit: Admit,
    requests: int,
    *,
    latency: Latency,
    workers: int = 64,
    retry_after: Callable[[float], float] | None = None,
    quick_refusals: bool = False,
    seed: int = 0,
) -> Run:
    """Send ``requests`` until all are answered; return the outcome. No request is given up."""
    rng = random.Random(seed)
    outcome = Run()
    events: list[tuple[float, int, Reservation, bool, float | None]] = []
    order = count()
    waiting, now, forbidden = requests, 0.0, -math.inf
    while outcome.answered < requests:
        while waiting and len(events) < workers:
            at = quota.look(now, 0.0)
            if at > now:
                break
            outcome.early += now < forbidden
            permit, waiting = quota.take(now, 0.0), waiting - 1
            accepted = admit(now + UPLINK)
            took = latency(rng)
            if not accepted and quick_refusals:
                took = min(took, 0.002)
            asked = None if accepted or retry_after is None else retry_after(now)
            heapq.heappush(events, (now + took, next(order), permit, accepted, asked))
        due = events[0][0] if events else math.inf
        look = quota.look(now, 0.0) if waiting and len(events) < workers else math.inf
        assert look > now
        assert min(due, look) < math.inf, "nothing in flight and nothing to wait for"
        now = min(due, look)
        for permit, accepted, asked in _due(events, now):
            if accepted:
                outcome.answered += 1
                outcome.ends.append(now)
                quota.succeeded(permit, now, 0.0)
                continue
            outcome.refused += 1
            outcome.refusals.append(now)
            waiting += 1
            quota.refused(permit, now, asked, rng)
            if asked is not None:
                forbidden = max(forbidden, now + asked)
        assert quota.in_flight == len(events)
    outcome.seconds = now
    return outcome


def _due(
    events: list[tuple[float, int, Reservation, bool, float | None]], now: float
) -> Iterator[tuple[Reservation, bool, float | None]]:
    while events and events[0][0] <= now:
        _, _, permit, accepted, asked = heapq.heappop(events)
        yield permit, accepted, asked
