"""The compared policies: the library's decision code, an oracle, and three rules that never learn."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Generator, Sequence

from attrs import define, field, frozen

from benchmarks.routing_world import HALF, INPUT, LARGEST, OUTPUT, Fate, Job, Workers
from smartbatch.core.forecast import Forecaster, Observation
from smartbatch.core.preparation.calibration import OUTPUT_TOKENS, Calibration
from smartbatch.core.routing.choice import Infeasible, choose
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.rescue import MARGIN_SHARE, PendingShard, Speed, late_penalty, rescue
from smartbatch.core.routing.workload import Cost, Load
from smartbatch.routing.history import BATCH_PRIOR, CALL_PRIOR, CANCEL_PRIOR
from smartbatch.types import Route, Usage

PARALLELISM = 4
"""Default of a client."""
THRESHOLD, AT_ONCE = 10, 3
TIME_VALUE = 5.0
"""Default of a client, USD per hour."""
LEARNED = 200
"""Calls of a job used for forecasts, evenly spread; a client would use all."""
LOOKS = 0.05
"""A job is checked each time this share of the time to its deadline has passed, or every 10 s."""


@frozen
class Outcome:
    """The outcome of a job.

    Attributes:
        seconds: until its last answer; infinite if it was rejected.
        cost: USD.
        route: the chosen route; ``None`` if it was rejected.
        rescued: whether requests were withdrawn from a batch.
    """

    seconds: float
    cost: float
    route: Route | None
    rescued: bool = False

    def met(self, job: Job) -> bool:
        return self.seconds <= job.deadline


def shards(count: int, pieces: int = 1) -> list[int]:
    """Return the sizes of the batches for a number of requests."""
    batches = max(pieces, math.ceil(count / LARGEST))
    return [count // batches + (place < count % batches) for place in range(batches)]


# -- fixed rules and the oracle ------------------------------------------------------------------------------


def alone(fate: Fate) -> Outcome:
    """Send every job in real time."""
    end = Workers(PARALLELISM, fate.regime.rpm).take(fate.calls, 0.0)
    return Outcome(end, fate.job.cost(), Route.INDIVIDUAL)


def by_batch(fate: Fate) -> Outcome:
    """Send every job by batch, however long it takes."""
    job = fate.job
    ends = [fate.batch(place, job.at) for place in range(len(shards(len(job.rows))))]
    return Outcome(max(ends), HALF * job.cost(), Route.BATCH)


def threshold(fate: Fate) -> Outcome:
    """Decide by the number of requests alone."""
    return by_batch(fate) if len(fate.job.rows) >= THRESHOLD else alone(fate)


def oracle(fate: Fate) -> Outcome:
    """Choose the best route in hindsight: batches that will finish in time, and real time for the rest.

    The oracle knows the time of each batch and call, so it cancels none. It also sends up to three requests
    in real time, and the first three of up to nine.
    """
    job = fate.job
    n = len(job.rows)
    plain = alone(fate)
    if n <= AT_ONCE:
        return plain
    workers = Workers(PARALLELISM, fate.regime.rpm)
    first = AT_ONCE if n < THRESHOLD else 0
    cost, seconds = job.cost(0, first), workers.take(fate.calls[:first], 0.0)
    for place, size in enumerate(shards(n - first)):
        price, took = job.cost(first, first + size), fate.batch(place, job.at)
        if took <= job.deadline:
            cost, seconds = cost + HALF * price, max(seconds, took)
        else:
            cost += price
            seconds = max(seconds, workers.take(fate.calls[first : first + size], 0.0))
        first += size
    met = [each for each in (Outcome(seconds, cost, Route.BATCH), plain) if each.met(job)]
    return min(met or [plain], key=lambda each: each.cost)


# -- the library ---------------------------------------------------------------------------------------------


class Knowledge:
    """The observations of a client, in the library's forecasts."""

    def __init__(self) -> None:
        self.calls = Forecaster(CALL_PRIOR)
        self.batches = Forecaster(BATCH_PRIOR)
        self.cancels = Forecaster(CANCEL_PRIOR)
        self.tokens = Calibration()

    def throughput(self, now: float, tokens: float, rpm: float) -> Throughput:
        return Throughput(self.calls.at(now), PARALLELISM, tokens=tokens, rpm=rpm)

    def decide(self, fate: Fate, constraints: Constraints) -> Option:
        """Return the route chosen by the library.

        Raises:
            Infeasible: no route meets the constraints.
        """
        job, now = fate.job, fate.job.at
        n, given = len(job.rows), float(sum(row.given for row in job.rows))
        made = n * (self.tokens.answers("")[1] or OUTPUT_TOKENS)
        price = given * INPUT + made * OUTPUT
        cost = Cost(price, price, price)
        throughput = self.throughput(now, (given + made) / n, fate.regime.rpm)
        batch = BatchOffer(
            self.batches.at(now),
            cost.of(HALF),
            self.cancels.at(now),
            LARGEST,
            seen=self.batches.observations > 0,
        )
        load = Load(n, given, made)
        return choose(load, [Offer(Route.INDIVIDUAL, throughput, cost)], batch, constraints).chosen


@define
class _Shard:
    place: int
    first: int
    size: int
    created: float
    ends: float
    cancelled: float | None = None


def _held(shard: _Shard, now: float) -> PendingShard:
    cancelled = None if shard.cancelled is None else now - shard.cancelled
    return PendingShard(
        shard.size,
        sent=True,
        size=shard.size,
        age=now - shard.created,
        stuck=cancelled is not None,
        cancelled=cancelled,
    )


Steps = Generator[float, None, Outcome]


@define
class Library:
    """The library on a virtual clock, running all jobs of a trace, which learn from each other.

    Observations are kept from run to run.
    """

    know: Knowledge = field(factory=Knowledge)
    outcomes: dict[int, Outcome] = field(factory=dict)
    _events: list[tuple[float, int, Callable[[float], None]]] = field(factory=list)
    _numbers: itertools.count[int] = field(factory=itertools.count)
    now: float = 0.0

    def run(self, fates: Sequence[Fate]) -> list[Outcome]:
        """Return the outcome of each job."""
        for place, fate in enumerate(fates):
            self._at(fate.job.at, self._starter(place, fate))
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act(self.now)
        return [self.outcomes[place] for place in range(len(fates))]

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._numbers), act))

    def _starter(self, place: int, fate: Fate) -> Callable[[float], None]:
        def begin(_: float) -> None:
            self._resume(place, self._steps(fate))

        return begin

    def _resume(self, place: int, steps: Steps) -> None:
        try:
            when = next(steps)
        except StopIteration as stop:
            self.outcomes[place] = stop.value
        else:
            self._at(when, lambda _: self._resume(place, steps))

    def _steps(self, fate: Fate) -> Steps:
        """Run one job from its decision to its end; yield the time of its next event."""
        job = fate.job
        constraints = Constraints(deadline=job.deadline, time_value=TIME_VALUE)
        try:
            option = self.know.decide(fate, constraints)
        except Infeasible:
            return Outcome(math.inf, 0.0, None)
        workers = Workers(PARALLELISM, fate.regime.rpm)
        first = option.first if option.batches else len(job.rows)
        self._call(fate, workers, 0, first)
        cost = job.cost(0, first)
        open_ = self._create(fate, first, option.pieces) if option.batches else []
        late = False
        while open_:
            now = self.now
            for shard in [each for each in open_ if each.ends <= now]:
                open_.remove(shard)
                cost += self._ended(fate, workers, shard)
            wait = self._rescued(fate, workers, open_)
            late = late or any(shard.cancelled is not None for shard in open_)
            if open_:
                yield max(now, min(now + wait, min(shard.ends for shard in open_)))
        if workers.left(self.now):
            yield workers.ends[-1]
        return Outcome(self.now - job.at, cost, option.route, late)

    def _create(self, fate: Fate, first: int, pieces: int) -> list[_Shard]:
        found, now = [], self.now
        for place, size in enumerate(shards(len(fate.job.rows) - first, pieces)):
            found.append(_Shard(place, first, size, now, now + fate.batch(place, now)))
            first += size
        return found

    def _ended(self, fate: Fate, workers: Workers, shard: _Shard) -> float:
        """Record a finished or canceled batch; return the cost of its requests."""
        know, now = self.know, self.now
        price = fate.job.cost(shard.first, shard.first + shard.size)
        if shard.cancelled is None:
            know.batches.observe(Observation(shard.size, now - shard.created, now))
            return HALF * price
        know.cancels.observe(Observation(shard.size, now - shard.cancelled, now))
        know.batches.observe(
            Observation(shard.size, shard.cancelled - shard.created, shard.cancelled, ended=False)
        )
        self._call(fate, workers, shard.first, shard.first + shard.size)
        return price

    def _rescued(self, fate: Fate, workers: Workers, open_: Sequence[_Shard]) -> float:
        """Withdraw batches if necessary; return the seconds until the next check."""
        job, now = fate.job, self.now
        left = job.at + job.deadline - now
        tokens = 1.0
        know = self.know
        speed = Speed(
            know.throughput(now, tokens, fate.regime.rpm), know.cancels.at(now), know.batches.at(now)
        )
        held = [_held(shard, now) for shard in open_]
        at_stake = late_penalty(job.cost(), TIME_VALUE)
        found = rescue(left, max(1.0, MARGIN_SHARE * job.deadline), workers.left(now), held, speed, at_stake)
        for at in found.take_back:
            shard = open_[at]
            shard.cancelled, shard.ends = now, now + fate.cancel(shard.place)
        return min(found.wait, max(10.0, LOOKS * left))

    def _call(self, fate: Fate, workers: Workers, first: int, end: int) -> None:
        """Send requests in real time, and record their answers."""
        before = len(workers.ends)
        calls = fate.calls[first:end]
        workers.take(calls, self.now)
        ends = workers.ends[before:]
        step = max(1, len(calls) // LEARNED)
        for end_at, seconds, row in list(zip(ends, calls, fate.job.rows[first:end], strict=True))[::step]:
            self._at(end_at, self._learner(seconds, Usage(row.given, row.made)))

    def _learner(self, seconds: float, usage: Usage) -> Callable[[float], None]:
        def learn(now: float) -> None:
            self.know.calls.observe(Observation(1, seconds, now))
            self.know.tokens.observe(usage.input_tokens, usage)

        return learn
