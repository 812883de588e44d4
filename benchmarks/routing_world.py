"""Jobs from real and synthetic traffic, and a provider on a virtual clock, for comparing routes.

The model of the provider:

- A call takes 0.4 s plus 1/80 s per output token, times a lognormal factor (0.3). At most ``parallelism``
  calls of a job run in parallel, and a limit, if any, bounds the calls that start per minute.
- The regime determines the duration of a batch, which is similar for all batches created at the same time.
  A batch runs all its requests at the very end, so a cancelled batch yields no results and costs nothing.
  This is the hardest case for a rescue.
- A cancellation takes a lognormal time around 30 s; 95 % take at most 150 s.

Jobs do not affect each other. All random values belong to the job, so they are the same for each policy.
"""

from __future__ import annotations

import csv
import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random

from attrs import define, evolve, field, frozen

DAY = 86_400.0
TRACES = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
INPUT, OUTPUT = 0.25e-6, 2.0e-6
"""USD per token of a small model."""
HALF = 0.5
"""Price of a batch relative to real time, as documented by OpenAI, Anthropic and Gemini."""
USERS = {"conv": 8, "code": 16}
"""Users of each trace, who divide it into different jobs."""
LARGEST = 5000
"""Maximum requests per batch, the default of ``batch_max_requests``."""

JUDGED = "judged"
"""The random numbers used for the published figures; constants were chosen with others, such as ``tuning``.
"""

Maker = Callable[[Random], Iterable["Job"]]
"""Creates the jobs of a day."""
Turnaround = Callable[[Random, float], float]
"""Draws the seconds of a batch created at a given time."""


@frozen
class Regime:
    """The behavior of the provider.

    Attributes:
        name: for the tables.
        turnaround: of batches.
        rpm: calls that may start per minute.
        usual: median of the turnaround, for the tables.
    """

    name: str
    turnaround: Turnaround
    rpm: float = math.inf


def lognormal(median: float, sigma: float) -> Turnaround:
    """Seconds around a median."""
    return lambda rng, _: median * math.exp(rng.gauss(0.0, sigma))


def pareto(shortest: float, alpha: float) -> Turnaround:
    """Seconds with a heavy tail."""
    return lambda rng, _: shortest * rng.paretovariate(alpha)


def slows_down(before: Turnaround, after: Turnaround, at: float) -> Turnaround:
    """One regime until a certain time of day, then another."""
    return lambda rng, now: before(rng, now) if now % DAY < at else after(rng, now)


FAST, SLOW = lognormal(600.0, 0.6), lognormal(3 * 3600.0, 0.8)
REGIMES = (
    Regime("fast batch", FAST),
    Regime("slow batch", SLOW),
    Regime("batch that slows down", slows_down(FAST, SLOW, DAY / 2)),
    Regime("limits that bind", lognormal(2700.0, 0.8), rpm=60.0),
)


@frozen
class Row:
    """One request: input and output tokens."""

    given: int
    made: int


@frozen
class Job:
    """A list of requests that arrives at a certain time.

    Attributes:
        at: seconds.
        rows: its requests.
        deadline: seconds after arrival.
        seed: of everything that happens to it.
    """

    at: float
    rows: tuple[Row, ...] = field(repr=False)
    deadline: float
    seed: int

    def cost(self, first: int = 0, end: int | None = None) -> float:
        return sum(row.given * INPUT + row.made * OUTPUT for row in self.rows[first:end])


@define
class Fate:
    """Everything that will happen to a job, whatever its route.

    Attributes:
        calls: seconds of each request's call.
        batches: factor on the turnaround of each of its batches.
    """

    job: Job
    regime: Regime
    calls: list[float]
    _rng: Random

    @classmethod
    def of(cls, job: Job, regime: Regime) -> Fate:
        rng = Random(job.seed)
        calls = [(0.4 + row.made / 80) * math.exp(rng.gauss(0.0, 0.3)) for row in job.rows]
        return cls(job, regime, calls, rng)

    def batch(self, place: int, at: float) -> float:
        """Return the seconds of a batch of the job, if it is created at a given time."""
        common = self.regime.turnaround(Random(f"batch {self.job.seed}"), at)
        return common * math.exp(Random(f"batch {self.job.seed} {place}").gauss(0.0, 0.1))

    def cancel(self, place: int) -> float:
        return 30.0 * math.exp(Random(f"cancel {self.job.seed} {place}").gauss(0.0, 0.98))


class Workers:
    """The real-time calls of a job."""

    def __init__(self, parallelism: int, rpm: float) -> None:
        self._free = [-math.inf] * parallelism
        self._gap = 60.0 / rpm
        self._next = -math.inf
        self.ends: list[float] = []

    def take(self, seconds: Sequence[float], now: float) -> float:
        """Add calls, and return when the last one ends."""
        for each in seconds:
            begin = max(now, self._free[0], self._next)
            self._next = begin + self._gap
            heapq.heapreplace(self._free, begin + each)
            self.ends.append(begin + each)
        self.ends.sort()
        return self.ends[-1] if self.ends else now

    def left(self, now: float) -> int:
        """Return the number of unfinished calls."""
        return len(self.ends) - bisect_right(self.ends, now)


# -- jobs ----------------------------------------------------------------------------------------------------


def traffic() -> dict[str, Maker]:
    """Return the maker of a day's jobs for each trace, including real traces if available."""
    found: dict[str, Maker] = {}
    for name in ("conv", "code"):
        path = TRACES / f"azure_llm_2023_{name}.csv"
        if path.exists():
            found[f"Azure 2023 {name}"] = partial(_grouped, _read(path), USERS[name])
    return found | {"overnight bulk": _bulk, "interactive bursts": _bursts, "mixed": _mixed}


def days(trace: str, make: Maker, draw: str, count: int = 6) -> Iterator[list[Job]]:
    """Return the jobs of a trace day by day, different each day."""
    for day in range(count):
        jobs = make(Random(f"{trace}, {draw}, day {day}"))
        yield [evolve(job, at=job.at + day * DAY) for job in jobs]


def log_uniform(rng: Random, low: float, high: float) -> float:
    """Draw a number evenly on a logarithmic scale."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _deadline(rng: Random) -> float:
    return log_uniform(rng, 60.0, DAY)


def _read(path: Path) -> list[tuple[float, Row]]:
    """Return the requests of a trace, with its hour stretched to a day."""
    found = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            at = datetime.fromisoformat(line["TIMESTAMP"][:26]).timestamp()
            found.append((at, Row(int(line["ContextTokens"]), int(line["GeneratedTokens"]))))
    first, last = found[0][0], found[-1][0]
    return [((at - first) / (last - first) * DAY, row) for at, row in found]


def _grouped(rows: Sequence[tuple[float, Row]], users: int, rng: Random) -> Iterator[Job]:
    """Divide a trace into jobs of all requests within 1 s to 5 min, log-uniformly distributed."""
    jobs = []
    for _ in range(users):
        group: list[Row] = []
        until = 0.0
        for at, row in rows:
            if at > until and group:
                jobs.append(_job(at, group, rng))
                group = []
            if not group:
                until = at + 24 * log_uniform(rng, 1.0, 300.0)
            group.append(row)
    yield from sorted(jobs, key=lambda job: job.at)


def _job(at: float, rows: Sequence[Row], rng: Random, deadline: float | None = None) -> Job:
    return Job(at, tuple(rows), _deadline(rng) if deadline is None else deadline, rng.getrandbits(48))


def rows(rng: Random, count: int) -> list[Row]:
    """Create requests with the token counts of conversations."""
    return [
        Row(round(1000 * math.exp(rng.gauss(0, 0.6))), min(1000, round(130 * math.exp(rng.gauss(0, 0.8)))))
        for _ in range(count)
    ]


def _bulk(rng: Random, count: int = 100) -> Iterator[Job]:
    """Lists of 500 to 10,000 requests due in the morning, 4 to 14 hours later."""
    for at in sorted(rng.uniform(0, DAY) for _ in range(count)):
        made = rows(rng, round(log_uniform(rng, 500, 10_000)))
        yield _job(at, made, rng, rng.uniform(4 * 3600, 14 * 3600))


def _bursts(rng: Random, count: int = 500) -> Iterator[Job]:
    """Lists of 1 to 40 requests that a user waits for, due within half a minute to an hour."""
    for at in sorted(rng.uniform(0, DAY) for _ in range(count)):
        made = rows(rng, round(log_uniform(rng, 1, 40)))
        yield _job(at, made, rng, log_uniform(rng, 30.0, 3600.0))


def _mixed(rng: Random, count: int = 400) -> Iterator[Job]:
    """Lists of 1 to 3,000 requests with any deadline."""
    for at in sorted(rng.uniform(0, DAY) for _ in range(count)):
        yield _job(at, rows(rng, round(log_uniform(rng, 1, 3000))), rng)


def heavy(turnaround: str, draw: str, count: int = 1000) -> list[Job]:
    """Return jobs of 1 to 2,000 requests with deadlines of 1 minute to 24 hours, over ten days."""
    rng = Random(f"{turnaround}, {draw}")
    moments = sorted(rng.uniform(0, 10 * DAY) for _ in range(count))
    return [_job(at, rows(rng, round(log_uniform(rng, 1, 2000))), rng) for at in moments]
