"""A simulated provider with a rate limit, and workers that ask a quota before each call, in virtual time."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
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


class Top:
    """A random source that always returns the maximum, so that pauses are whole."""

    def random(self) -> float:
        return 1.0


@define
class Run:
    """The outcome of a run: when calls were sent, answered and refused."""

    sent: list[float] = field(factory=list)
    ends: list[float] = field(factory=list)
    refusals: list[float] = field(factory=list)
    seconds: float = 0.0
    early: int = 0  # calls made before a Retry-After they could have known had ended

    @property
    def answered(self) -> int:
        return len(self.ends)

    @property
    def refused(self) -> int:
        return len(self.refusals)

    def late_share(self, since: float) -> float:
        """The share of calls refused after ``since``."""
        return sum(at > since for at in self.refusals) / max(1, sum(at > since for at in self.sent))

    def rate(self, begin: float, end: float) -> float:
        return sum(begin < at <= end for at in self.ends) / (end - begin)


def run(
    quota: Quota,
    admit: Admit,
    requests: int,
    *,
    latency: Latency,
    workers: int = 64,
    cap: Callable[[float], float] = lambda at: math.inf,
    retry_after: Callable[[float], float] | None = None,
    quick_refusals: bool = False,
    until: float = math.inf,
    seed: int = 0,
) -> Run:
    """Send ``requests`` until all are answered, or until a moment. No request is given up.

    Args:
        cap: by the time, maximum calls that the server processes.
    """
    rng, outcome, order = random.Random(seed), Run(), count()
    events: list[tuple[float, int, Reservation, bool, float | None]] = []
    waiting, processed, now, forbidden = requests, 0, 0.0, -math.inf
    while outcome.answered < requests and now < until:
        while waiting and len(events) < workers and quota.look(now, 0.0) <= now:
            outcome.early += now < forbidden
            outcome.sent.append(now)
            permit, waiting = quota.take(now, 0.0), waiting - 1
            accepted = processed < cap(now) and admit(now + UPLINK)
            processed += accepted
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
        while events and events[0][0] <= now:
            _, _, permit, accepted, asked = heapq.heappop(events)
            if accepted:
                processed -= 1
                outcome.ends.append(now)
                quota.succeeded(permit, now, 0.0)
                continue
            outcome.refusals.append(now)
            waiting += 1
            quota.refused(permit, now, asked, rng)
            if asked is not None:
                forbidden = max(forbidden, now + asked)
        assert quota.in_flight == len(events)
    outcome.seconds = now
    return outcome
