"""A simulated provider that limits requests and tokens and reports its limits, and workers that never stop.

In virtual time. The three styles charge and report as the three APIs do: OpenAI charges the larger of output
cap and prompt at admission; Anthropic charges input at admission and output when it is generated, and rounds
to thousands; Gemini charges input and names only the limit, and only in refusals.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from itertools import count

from attrs import define, field, frozen
from core.limits.limit_server import UPLINK, Latency

from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.reported_limits import Reservation
from smartbatch.types import LimitReport


@frozen
class Work:
    """One call: what it needs, what the client expects, and what an OpenAI server charges at once."""

    input: int
    output: int
    expected_input: float
    expected_output: float
    cap: int


def steady(rng: random.Random) -> Work:
    """About 200 tokens in and 60 out; 95 % of outputs stay below the expected 150, which is the cap."""
    given = rng.randint(100, 300)
    return Work(
        given, min(150, int(60 * math.exp(rng.gauss(0, 0.5)))), given * rng.uniform(0.9, 1.1), 150, 150
    )


def capped_high(rng: random.Random) -> Work:
    """The same calls, but the cap charged by the server is 1,000."""
    work = steady(rng)
    return Work(work.input, work.output, work.expected_input, work.expected_output, 1000)


def capped_low(rng: random.Random) -> Work:
    """Long answers without a cap: the server charges only the prompt."""
    work = steady(rng)
    return Work(work.input, 4 * work.output, work.expected_input, 600, 1)


@define
class Meter:
    """A token bucket, full at the start."""

    limit: float
    size: float = 0.0
    level: float = 0.0
    at: float = 0.0
    spent: list[tuple[float, float]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.size = self.size or self.limit
        self.level = self.size

    def left(self, now: float) -> float:
        if now > self.at:
            self.level = min(self.size, self.level + (now - self.at) * self.limit / 60)
            self.at = now
        return self.level

    def take(self, now: float, cost: float) -> None:
        self.left(now)
        self.level -= cost
        self.spent.append((now, cost))

    def wait(self, now: float, cost: float) -> float:
        return max(0.0, cost - self.left(now)) / (self.limit / 60)

    def reset(self, now: float) -> float:
        return (self.size - self.left(now)) / (self.limit / 60)

    def used(self, begin: float, end: float) -> float:
        """The used share of the refill between two moments."""
        return sum(cost for at, cost in self.spent if begin < at <= end) / (self.limit / 60 * (end - begin))


@define
class SecondMeter(Meter):
    """Fixed windows of a second by the server's clock, each with a sixtieth of the limit."""

    window: int = -1

    def left(self, now: float) -> float:
        if math.floor(now) != self.window:
            self.window, self.level = math.floor(now), self.limit / 60
        return self.level

    def wait(self, now: float, cost: float) -> float:
        return 0.0 if self.left(now) >= cost else self.window + 1 - now

    def reset(self, now: float) -> float:
        return self.window + 1 - now if self.left(now) < self.limit / 60 else 0.0


class Server:
    """Enforces limits.

    Args:
        style: ``openai``, ``anthropic`` or ``gemini``.
        limits: per minute, by name: requests, tokens, input, output.
        hints: whether refusals say when to retry.
        resets: whether reports say when a limit is full.
        sizes: capacities that differ from a minute's worth.
        late: whether reports are read when the answer is sent, not when the call is admitted.
    """

    def __init__(
        self,
        style: str,
        limits: dict[str, float],
        *,
        hints: bool = True,
        resets: bool = True,
        late: bool = False,
        sizes: dict[str, float] | None = None,
    ) -> None:
        self.style, self.hints, self.resets, self.late = style, hints, resets, late
        self.meters = {name: Meter(limit, (sizes or {}).get(name, 0.0)) for name, limit in limits.items()}

    def charge(self, name: str, work: Work) -> float:
        if name == "requests":
            return 1
        if name == "tokens":
            return max(work.input, work.cap)
        return work.input if name == "input" else 0

    def admit(self, now: float, work: Work) -> float | None:
        """Admit the call, or return the seconds to wait."""
        wait = 0.0
        for name, meter in self.meters.items():
            need = self.charge(name, work) or 1
            if meter.left(now) + 1e-9 < need:
                wait = max(wait, meter.wait(now, need))
        if wait > 0.0:
            return wait
        for name, meter in self.meters.items():
            meter.take(now, self.charge(name, work))
        return None

    def finish(self, now: float, work: Work) -> None:
        if "output" in self.meters:
            self.meters["output"].take(now, work.output)

    def report(self, now: float, *, refused: str | None) -> LimitReport | None:
        if self.style == "gemini":
            if refused is None:
                return None
            return LimitReport(**{f"{refused}_limit": int(self.meters[refused].limit)})
        said: dict[str, float] = {}
        for name, meter in self.meters.items():
            left = max(0.0, meter.left(now))
            exact = self.style == "openai" or name == "requests"
            said[f"{name}_limit"] = int(meter.limit)
            said[f"{name}_remaining"] = math.floor(left + 1e-9) if exact else 1000 * round(left / 1000)
            if self.resets:
                said[f"{name}_reset"] = meter.reset(now)
        if self.resets and self.style == "anthropic":  # moments, in whole seconds
            said |= {key: math.ceil(now + left) - now for key, left in said.items() if key.endswith("_reset")}
            said["resets_rounded_to"] = 1.0
        return LimitReport(**said)  # type: ignore[arg-type]

    def tightest(self, now: float, work: Work) -> str:
        return max(self.meters, key=lambda name: self.meters[name].wait(now, self.charge(name, work) or 1))


@define
class CallCounts:
    """The outcome of a run."""

    calls: int = 0
    refused: int = 0
    answered: int = 0
    refusals: list[float] = field(factory=list)

    @property
    def share(self) -> float:
        return self.refused / self.calls


@define
class Client:
    """Workers that share one quota."""

    quota: Quota
    latency: Latency
    work: Callable[[random.Random], Work] = steady
    workers: int = 64
    begin: float = 0.0
    end: float = math.inf
    flying: int = 0
    again: list[Work] = field(factory=list)
    head: Work | None = None
    counts: CallCounts = field(factory=CallCounts)

    def next(self, rng: random.Random) -> Work:
        if self.head is None:
            self.head = self.again.pop() if self.again else self.work(rng)
        return self.head


@frozen(order=True)
class _Return:
    at: float
    order: int
    client: Client = field(order=False)
    permit: Reservation = field(order=False)
    work: Work = field(order=False)
    wait: float | None = field(order=False)
    report: LimitReport | None = field(order=False)


def fill(
    server: Server,
    *clients: Client,
    seconds: float,
    seed: int = 0,
    jitter: float = 0.0,
    change: tuple[float, dict[str, float]] | None = None,
    exchanges: Callable[[float], float] = lambda now: math.inf,
) -> None:
    """Let the clients send as much as their quotas allow for ``seconds``.

    Args:
        jitter: maximum seconds by which calls overtake each other in transit.
        change: when the limits of the server change, and to what.
        exchanges: makes the exchanges that are due, and returns when to be called again.
    """
    rng, order, now = random.Random(seed), count(), 0.0
    returns: list[_Return] = []
    while now < seconds:
        if change is not None and now >= change[0]:
            for name, limit in change[1].items():
                meter = server.meters[name]
                meter.left(now)
                meter.level *= limit / meter.limit
                meter.limit = meter.size = limit
            change = None
        due = seconds
        for client in clients:
            due = min(due, _send(server, client, now, rng, order, returns, jitter))
        if returns:
            due = min(due, returns[0].at)
        due = min(due, exchanges(now))
        assert due > now
        now = due
        while returns and returns[0].at <= now:
            _land(server, heapq.heappop(returns), now, rng)
    assert all(client.quota.in_flight == client.flying for client in clients)


def _send(
    server: Server,
    client: Client,
    now: float,
    rng: random.Random,
    order: count[int],
    returns: list[_Return],
    jitter: float,
) -> float:
    """Send what may be sent now; return when to ask again."""
    if not client.begin <= now < client.end:
        return client.begin if now < client.begin else math.inf
    while client.flying < client.workers:
        work = client.next(rng)
        expected = work.expected_input + work.expected_output
        at = client.quota.look(now, expected, work.expected_output)
        if at > now:
            return at
        permit = client.quota.take(now, expected, work.expected_output)
        client.head, client.flying = None, client.flying + 1
        arrives = now + UPLINK + jitter * rng.random()
        client.counts.calls += 1
        refused = server.tightest(arrives, work)
        wait = server.admit(arrives, work)
        took = UPLINK + jitter + (client.latency(rng) if wait is None else 0.002)
        report = server.report(arrives, refused=None if wait is None else refused)
        heapq.heappush(returns, _Return(now + took, next(order), client, permit, work, wait, report))
    return math.inf


def _land(server: Server, back: _Return, now: float, rng: random.Random) -> None:
    client, quota = back.client, back.client.quota
    client.flying -= 1
    if back.wait is not None:
        client.counts.refused += 1
        client.counts.refusals.append(now)
        client.again.append(back.work)
        quota.refused(back.permit, now, back.wait if server.hints else None, rng, back.report)
        return
    client.counts.answered += 1
    server.finish(now, back.work)
    quota.succeeded(back.permit, now, back.work.input + back.work.output, back.work.output)
    report = server.report(now, refused=None) if server.late else back.report
    if report is not None:
        quota.learn(report, back.permit, now)
