"""Simulated services for ``benchmarks.mixtures``, with their limits, failures and latencies.

The seed of a mixture determines limits of requests, tokens and parallel calls, a failure rate that changes
over time, outages, and latencies that grow with the load. A service's replies depend only on the mixture,
the row, the number of the attempt and the time, so all clients get the same conditions.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from random import Random
from typing import Final

from attrs import define, field, frozen

from smartbatch.emulator.limits import TokenBucket

__all__ = ["Fixed", "Limit", "Mixture", "Service", "Verdict", "best_fixed", "draw", "tokens_of"]

ROWS: Final = 300
_DRAWS = 8191
_STRIDE = 131


@frozen
class Limit:
    """An enforced limit: a bucket that starts full, holds at most ``burst``, and refills at ``rate`` per
    second.
    """

    rate: float
    burst: float


@frozen(kw_only=True)
class Mixture:
    """The properties of a simulated service.

    Attributes:
        parallelism: parallel calls of the client.
        latency: median seconds of a call; ``sigma`` is the spread of its lognormal distribution.
        knee: parallel calls above which latency grows proportionally; infinity if it never does.
        slow: share of answers that take ten times as long.
        requests, tokens: rate limits.
        most_at_once: maximum calls in flight; further calls are refused.
        names_wait: whether refusals have a ``Retry-After``.
        names_limits: whether answers report the limits.
        configured: whether the client knows the limit of requests.
        counts_refused: whether refused calls count toward the limit of requests.
        shares: start times, with the share of calls that fail from then on and the kind of failure. A 429 is
            rare and does not come from a limit.
        outage: start and end of the time in which all calls fail.
        outage_kind: how they fail.
    """

    seed: int
    rows: int
    parallelism: int
    latency: float
    sigma: float
    knee: float = math.inf
    slow: float = 0.0
    requests: Limit | None = None
    tokens: Limit | None = None
    most_at_once: int | None = None
    names_wait: bool = True
    names_limits: bool = False
    configured: bool = False
    counts_refused: bool = False
    shares: tuple[tuple[float, float, str], ...] = ()
    outage: tuple[float, float] | None = None
    outage_kind: str = "503"

    @property
    def has_limit(self) -> bool:
        return self.requests is not None or self.tokens is not None or self.most_at_once is not None

    @property
    def parts(self) -> tuple[str, ...]:
        found = {
            "requests a minute": self.requests is not None,
            "tokens a minute": self.tokens is not None,
            "calls at once": self.most_at_once is not None,
            "partial failures": any(share for _, share, _ in self.shares),
            "outage": self.outage is not None,
            "latency by load": self.knee < math.inf,
        }
        return tuple(name for name, there in found.items() if there) or ("nothing",)

    def __str__(self) -> str:
        told = [f"{self.parallelism} wide, {self.latency:.2f} s"]
        if self.knee < math.inf:
            told.append(f"slower above {self.knee:.0f} at once")
        if self.slow:
            told.append(f"{self.slow:.0%} slow")
        if self.requests is not None:
            told.append(f"{self.requests.rate:.2f} requests/s, burst {self.requests.burst:.0f}")
        if self.tokens is not None:
            told.append(f"{self.tokens.rate:.0f} tokens/s, burst {self.tokens.burst:.0f}")
        if self.most_at_once is not None:
            told.append(f"at most {self.most_at_once} at once")
        if self.has_limit:
            flags = ("names_wait", "names_limits", "configured", "counts_refused")
            told.append("/".join(name for name in flags if getattr(self, name)) or "no word of it")
        told += [f"{share:.0%} {kind} from {at:.1f} s" for at, share, kind in self.shares if share]
        if self.outage is not None:
            told.append(f"{self.outage_kind} from {self.outage[0]:.1f} to {self.outage[1]:.1f} s")
        return ", ".join(told)


def draw(seed: int, rows: int = ROWS) -> Mixture:
    rng = Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    parallelism = rng.choice((16, 32, 64))
    latency = between(0.1, 4.0)
    knee = float(rng.randint(4, 48)) if rng.random() < 0.35 else math.inf
    fastest = min(parallelism, knee) / latency
    at_once = rng.randint(3, parallelism - 1) if rng.random() < 0.2 else None
    if at_once is not None:
        fastest = min(fastest, at_once / latency)
    requests = tokens = None
    if rng.random() < 0.35:
        rate = max(0.5, fastest * between(0.15, 1.2))
        requests = Limit(rate, max(1.0, rate * rng.choice((1, 5, 15))))
        fastest = min(fastest, rate)
    if rng.random() < 0.2:
        rate = max(0.5, fastest * between(0.2, 1.2)) * MEAN_TOKENS
        tokens = Limit(rate, max(2.0 * MOST_TOKENS, rate * rng.choice((1, 5, 15))))
        fastest = min(fastest, rate / MEAN_TOKENS)
    whole = rows / fastest
    shares: list[tuple[float, float, str]] = []
    if rng.random() < 0.6:
        kind, at = rng.choice(("503", "503", "529", "500", "429", "reset")), 0.0
        some = (0.0, 0.01, 0.02, 0.05) if kind == "429" else (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
        while at < 3 * whole:
            shares.append((at, rng.choice(some), kind))
            at += whole * rng.uniform(0.1, 0.7)
        shares.append((at, 0.0, kind))
    outage = None
    if rng.random() < 0.25:
        start = rng.uniform(0.1, 0.8) * whole
        outage = start, start + between(2.0, 30.0)
    return Mixture(
        seed=seed,
        rows=rows,
        parallelism=parallelism,
        latency=latency,
        sigma=rng.choice((0.1, 0.3, 0.5)),
        knee=knee,
        slow=0.02 if rng.random() < 0.15 else 0.0,
        requests=requests,
        tokens=tokens,
        most_at_once=at_once,
        names_wait=rng.random() < 0.6,
        names_limits=rng.random() < 0.5,
        configured=rng.random() < 0.25,
        counts_refused=rng.random() < 0.25,
        shares=tuple(shares),
        outage=outage,
        outage_kind=rng.choice(("503", "503", "refused")),
    )


MOST_TOKENS = 120
MEAN_TOKENS = 70


def tokens_of(row: int) -> int:
    return 20 + row * 37 % 101


@frozen
class Verdict:
    """The outcome of a call.

    Attributes:
        kind: ``good``, ``limit``, ``outage``, or the failure of :attr:`Mixture.shares`.
        seconds: until the client receives it.
        status: HTTP status; 0 without a response.
        retry_after: seconds named by a refusal.
    """

    kind: str
    seconds: float
    status: int
    retry_after: float | None = None


@define
class Service:
    """A running mixture. Time is an argument that never decreases; every arrival is followed by one
    :meth:`leave`.

    Attributes:
        met: outcomes of calls by name.
        log: arrival times and outcomes of calls, if recorded.
    """

    mixture: Mixture
    met: dict[str, int] = field(factory=dict)
    log: list[tuple[float, str]] | None = None
    in_flight: int = 0
    _tries: list[int] = field(init=False)
    _uniform: list[float] = field(init=False)
    _normal: list[float] = field(init=False)
    _requests: TokenBucket | None = field(init=False)
    _tokens: TokenBucket | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        mixture = self.mixture
        self._tries = [0] * mixture.rows
        self._uniform, self._normal = _drawn(mixture.seed)
        self._requests, self._tokens = _bucket(mixture.requests), _bucket(mixture.tokens)

    def arrive(self, now: float, row: int) -> Verdict:
        self.in_flight += 1
        number = self._tries[row]
        self._tries[row] += 1
        verdict = self._verdict(now, row, (row * _STRIDE + number * 1009) % _DRAWS)
        self.met[verdict.kind] = self.met.get(verdict.kind, 0) + 1
        if self.log is not None:
            self.log.append((now, verdict.kind))
        return verdict

    def leave(self) -> None:
        self.in_flight -= 1

    def left(self, now: float) -> tuple[float | None, float | None]:
        """Return the remaining requests and tokens of the limits."""
        requests, tokens = self._requests, self._tokens
        return None if requests is None else requests.left(now), None if tokens is None else tokens.left(now)

    def _verdict(self, now: float, row: int, draw: int) -> Verdict:
        mixture = self.mixture
        soon = 0.05 * mixture.latency
        if mixture.outage is not None and mixture.outage[0] <= now < mixture.outage[1]:
            return Verdict("outage", soon, 0 if mixture.outage_kind == "refused" else 503)
        if mixture.most_at_once is not None and self.in_flight > mixture.most_at_once:
            return Verdict("limit", soon, 429, 1.0 if mixture.names_wait else None)
        refused = self._limited(now, row)
        if refused is not None:
            return Verdict("limit", soon, 429, refused if mixture.names_wait else None)
        seconds = self._latency(draw)
        share, kind = _share_at(mixture, now)
        if self._uniform[draw] < share:
            if kind == "reset":
                return Verdict(kind, seconds, 0)
            asked = 1.0 if kind == "429" and mixture.names_wait else None
            return Verdict(kind, seconds if kind == "500" else soon, int(kind), asked)
        return Verdict("good", seconds, 200)

    def _limited(self, now: float, row: int) -> float | None:
        """Charge a call to the limits. If they refuse it, return the seconds until it would be admitted."""
        cost = float(tokens_of(row))
        waits = [0.0]
        if self._requests is not None:
            waits.append(self._requests.wait(now, 1.0))
        if self._tokens is not None:
            waits.append(self._tokens.wait(now, cost))
        wait = max(waits)
        if wait > 1e-9:
            if self.mixture.counts_refused and self._requests is not None:
                self._requests.take(now, 1.0)
            return wait
        if self._requests is not None:
            self._requests.take(now, 1.0)
        if self._tokens is not None:
            self._tokens.take(now, cost)
        return None

    def _latency(self, draw: int) -> float:
        mixture = self.mixture
        seconds = mixture.latency * math.exp(mixture.sigma * self._normal[draw])
        if self._uniform[(draw + 17) % _DRAWS] < mixture.slow:
            seconds *= 10.0
        return seconds * max(1.0, self.in_flight / mixture.knee)


def _bucket(limit: Limit | None) -> TokenBucket | None:
    return None if limit is None else TokenBucket(60.0 * limit.rate, limit.burst)


def _share_at(mixture: Mixture, now: float) -> tuple[float, str]:
    found = (0.0, "503")
    for at, share, kind in mixture.shares:
        if at > now:
            break
        found = (share, kind)
    return found


_CACHED: dict[int, tuple[list[float], list[float]]] = {}


def _drawn(seed: int) -> tuple[list[float], list[float]]:
    """Return the uniform and normal random numbers of a seed, shared by all runs of a mixture."""
    if seed not in _CACHED:
        _CACHED.clear()
        rng = Random(f"draws of {seed}")
        uniform = [rng.random() for _ in range(_DRAWS)]
        _CACHED[seed] = uniform, [rng.gauss(0.0, 1.0) for _ in range(_DRAWS)]
    return _CACHED[seed]


# -- the best fixed width and rate ---------------------------------------------------------------------------

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
GIVEN_UP = 40
"""Failed calls per row, on average, after which a fixed run is given up."""
REFUSED = 0.05
"""Maximum share of refused calls for a fixed rate to be considered."""


@frozen
class Fixed:
    """The outcome of a fixed number of concurrent calls and a fixed rate.

    Attributes:
        seconds: until every row was answered.
        refused: share of calls refused by a limit.
    """

    width: int
    rate: float
    seconds: float
    refused: float


def run_fixed(mixture: Mixture, width: int, rate: float) -> Fixed:
    """Send all rows at a fixed width and rate; a failed row is retried after a pause that doubles each time.

    A run that is hardly ever admitted is given up; its time is infinite.
    """
    service, rng = Service(mixture), Random(mixture.seed)
    fresh, later = deque(range(mixture.rows)), list[tuple[float, int]]()
    ends: list[tuple[float, int, bool]] = []
    failures = [0] * mixture.rows
    now = opens = last = 0.0
    left, free = mixture.rows, width
    while left:
        if sum(failures) > GIVEN_UP * mixture.rows:
            last = math.inf
            break
        while later and later[0][0] <= now:
            fresh.append(heapq.heappop(later)[1])
        while free and fresh and opens <= now:
            row = fresh.popleft()
            verdict = service.arrive(now, row)
            heapq.heappush(ends, (now + verdict.seconds, row, verdict.kind == "good"))
            free -= 1
            opens = max(opens, now) + 1.0 / rate
        moments = [ends[0][0]] if ends else []
        if later:
            moments.append(later[0][0])
        if free and fresh:
            moments.append(opens)
        now = max(now, min(moments))
        while ends and ends[0][0] <= now:
            _, row, good = heapq.heappop(ends)
            service.leave()
            free += 1
            if good:
                left, last = left - 1, now
            else:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(8, failures[row]))
                failures[row] += 1
                heapq.heappush(later, (now + pause * rng.uniform(0.5, 1.0), row))
    calls = sum(service.met.values())
    return Fixed(width, rate, last, service.met.get("limit", 0) / calls)


def best_fixed(mixture: Mixture) -> Fixed:
    """Return the fastest fixed width and rate among those that are rarely refused.

    Tries widths without a rate first, then rates around the limits with the best widths.
    """
    most = mixture.parallelism
    widths = {width for width in (2, 4, 8, 16, 32, 64) if width < most} | {most}
    if mixture.most_at_once is not None:
        widths |= {mixture.most_at_once, max(1, mixture.most_at_once - 1)}
    if mixture.knee < math.inf:
        widths.add(min(most, int(mixture.knee)))
    runs = [run_fixed(mixture, width, math.inf) for width in sorted(widths)]
    named = [mixture.requests.rate] if mixture.requests is not None else []
    if mixture.tokens is not None:
        named.append(mixture.tokens.rate / MEAN_TOKENS)
    if named:
        wide = {most} if mixture.most_at_once is None else {mixture.most_at_once}
        wide |= {min(runs, key=_order).width}
        for share in (0.9, 0.95, 0.98, 1.0, 1.05, 1.2):
            runs += [run_fixed(mixture, width, share * min(named)) for width in sorted(wide)]
    return min(runs, key=_order)


def _order(run: Fixed) -> tuple[float, float]:
    """Rarely refused runs by time, followed by the others by refusals."""
    return (0.0, run.seconds) if run.refused <= REFUSED else (run.refused, run.seconds)
