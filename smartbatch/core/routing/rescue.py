"""Decides which batches of a running job to withdraw, so that every request is answered before the deadline.

Batches keep running while there is more time left than real time needs for all open requests, and while they
are nearly certain to be on time. After that, they are withdrawn one by one, those with the most open requests
first. Each is withdrawn only when real time has capacity for its requests, so that a batch that finishes
earlier still saves money. If real time would probably be late and the batches are more likely to be on time,
they keep running.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from attrs import frozen

from smartbatch.core.forecast import Times
from smartbatch.core.routing.offers import Throughput, normal_quantile

MAX_RISK = 0.05  # largest accepted risk of missing a deadline: P(batch late) * P(rescue late)
LATE_PENALTY = 0.5  # cost of a missed deadline, as a share of the price of the whole list in real time
WAITED_SECONDS = 60.0
"""Additional cost of a missed deadline in seconds of waiting, so that no deadline is missed to save a cent.
With both costs, about one list in a hundred is late, over all kinds of deadlines
(``docs/reference/routing.md``).
"""
# probabilities of being on time that are compared for a rescue
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)
HIGHEST_LEVEL = LEVELS[-1]  # quantiles beyond it are seldom known
MARGIN_SHARE = 0.005  # share of the deadline kept free for delays that no forecast covers
_NORMAL = NormalDist()
MIN_WAIT_SECONDS = 0.5  # a shorter wait could round to 0 in Unix time
MIN_RESCUE_ODDS = 0.8  # if real time is less likely to be on time, the deadline is considered missed
MIN_ODDS_GAIN = 0.01  # then, batches keep running if they are this much more likely to be on time
BATCH_SAVING_SHARE = 0.5  # share of the real-time price that a batch saves, at all providers
RECHECK_SHARE = 0.05  # share of the remaining time after which that decision is repeated
MAX_LOOKS = 40  # simulated decisions in the search for the start of a rescue
BISECTION_STEPS = 12  # after the first simulated decision to withdraw a batch


@frozen
class RescueStart:
    at: float  # seconds from now
    sure: float  # probability that the rescue is on time
    needs: float  # seconds within which the rescue finishes with that probability
    risk: float  # probability that the deadline is missed
    # savings of batches until then minus the cost of the risk, as a share of the real-time list price
    worth: float


def late_penalty(price: float | None, time_value: float) -> float:
    """Return the cost of a missed deadline, as a share of ``price``.

    Args:
        price: USD of the whole list in real time.
        time_value: USD per hour of waiting.
    """
    return LATE_PENALTY if not price else LATE_PENALTY + time_value * WAITED_SECONDS / 3600 / price


def rescue_starts(
    left: float,
    needs: Callable[[float], float],
    late: Callable[[float], float],
    saved: Callable[[float, float], float],
    floor: float = 0.0,
    late_penalty: float = LATE_PENALTY,
) -> list[RescueStart]:
    """Return possible starts of a rescue, one for each of :data:`LEVELS`. Times are seconds from now.

    Args:
        left: until the deadline.
        needs: maps a probability to the duration within which a rescue finishes with that probability.
        late: maps a time to the probability that the batch withdrawn last has not finished by then.
        saved: maps a time and a probability to the savings of batches until a rescue, as a share of the price
            of the whole list in real time.
        floor: earliest start of a rescue.
    """
    found = []
    for sure in LEVELS:
        duration = needs(sure)
        at = left - duration
        if at <= floor:
            break
        risk = (1 - sure) * late(at)
        found.append(RescueStart(at, sure, duration, risk, saved(at, sure) - late_penalty * risk))
    return found


def best_start(found: Sequence[RescueStart]) -> RescueStart | None:
    """Return the start with the highest worth within :data:`MAX_RISK`; among equals, the safest."""
    safe = (start for start in found if start.risk <= MAX_RISK)
    return max(safe, key=lambda start: (round(start.worth, ndigits=6), start.sure), default=None)


def chance_within(seconds: float, p50: float, p95: float) -> float:
    """Return the probability of at most ``seconds`` under a lognormal distribution given by two quantiles."""
    if seconds <= 0:
        return 0.0
    if p95 <= p50 or p50 <= 0:
        return 1.0 if seconds >= p50 else 0.0
    return _NORMAL.cdf(normal_quantile(0.95) * math.log(seconds / p50) / math.log(p95 / p50))


@frozen
class Speed:
    throughput: Throughput  # of real time, now
    cancelling: Times  # seconds until a cancelled batch finishes
    turnaround: Times  # seconds until a batch finishes


@frozen
class PendingShard:
    """An unfinished shard of a job. Times are seconds."""

    left: int  # requests without an answer, as far as known
    sent: bool  # the provider has it, so withdrawing it requires a cancel
    size: int  # requests when it was created
    age: float  # since it was created
    stuck: bool = False  # cannot be withdrawn: its creation is uncertain, or it is being cancelled or read
    cancelled: float | None = None  # since its cancel was requested
    held_up: bool = False  # cannot be sent immediately, for example because a quota is full


@frozen
class Rescue:
    take_back: tuple[int, ...]  # positions of the shards to withdraw
    wait: float  # seconds until the next decision; infinity if nothing is left to withdraw
    needs: float  # seconds within which real time answers all open requests
    late: bool  # the deadline will probably be missed


def rescue(
    left: float,
    margin: float,
    backlog: int,
    shards: Sequence[PendingShard],
    speed: Speed,
    late_penalty: float = LATE_PENALTY,
) -> Rescue:
    """Choose the shards to withdraw now.

    Args:
        left: seconds until the deadline, negative once it has passed.
        margin: seconds to keep free.
        backlog: open requests of the job that are in no shard.
        late_penalty: see :func:`late_penalty`.
    """
    movable = [at for at, shard in enumerate(shards) if not shard.stuck]
    outlook = _Prospect(left - margin, backlog, shards, [shards[at] for at in movable], speed, late_penalty)
    needs = outlook.needs(MIN_RESCUE_ODDS)
    late = left < needs
    # 1. No shard can be withdrawn.
    if not movable:
        return Rescue((), math.inf, needs, late)
    later, (sure, worth) = outlook.later(), outlook.now()
    run_on = Rescue((), max(MIN_WAIT_SECONDS, left * RECHECK_SHARE), needs, late)
    # 2. The batches are nearly certain to be on time, and letting them run is worth more than a rescue now or
    # later: they keep running for a while.
    if outlook.never() > max(worth, -math.inf if later is None else later.worth):
        return run_on
    # 3. A later start is worth more: wait for it.
    if later is not None and later.at > MIN_WAIT_SECONDS and later.worth > worth:
        return Rescue((), later.at, later.needs, late)
    # 4. Real time would probably be late, and the batches are more likely to be on time: they keep running
    # for a while.
    if late and outlook.hopeful(left):
        return run_on
    # 5. Withdraw just enough shards to keep real time busy until more can be cancelled.
    back = _back(movable, backlog, shards, speed, sure if later is None else later.sure, margin)
    wait = max(MIN_WAIT_SECONDS, margin / 2) if len(back) < len(movable) else math.inf
    return Rescue(back, wait, needs, late)


def margin_of(deadline: float) -> float:
    """Return the seconds that a rescue keeps free. ``deadline`` is the time in seconds until the deadline
    when it was set.
    """
    return max(1.0, MARGIN_SHARE * deadline)


def first_rescue(
    deadline: float, sizes: Sequence[int], speed: Speed, late_penalty: float = LATE_PENALTY
) -> float | None:
    """Return the seconds after which the first batch of a job that starts now is withdrawn; ``None`` for
    never.

    This predicts the decision of :func:`rescue` if no batch has finished by then and the forecasts stay the
    same.

    Args:
        deadline: seconds until the deadline.
        sizes: requests of each batch.
    """
    margin = margin_of(deadline)

    def look(now: float) -> Rescue:
        shards = [PendingShard(size, sent=True, size=size, age=now) for size in sizes]
        return rescue(deadline - now, margin, 0, shards, speed, late_penalty)

    early = late = 0.0
    for _ in range(MAX_LOOKS):
        found = look(late)
        if found.take_back:
            break
        late += found.wait
        if late >= deadline:
            return None
    else:
        return None
    for _ in range(BISECTION_STEPS):
        # a job also decides whenever it polls, and begins the rescue as soon as that is worth more
        middle = (early + late) / 2
        early, late = (early, middle) if look(middle).take_back else (middle, late)
    return late


def _back(
    movable: Sequence[int],
    backlog: int,
    shards: Sequence[PendingShard],
    speed: Speed,
    sure: float,
    margin: float,
) -> tuple[int, ...]:
    """Return just enough shards to keep real time busy until more can be cancelled."""
    busy = backlog + sum(shard.left for shard in shards if shard.stuck)
    enough = speed.cancelling.quantile(sure, 1) + margin
    back: list[int] = []
    for at in sorted(movable, key=lambda at: (shards[at].sent, -shards[at].left)):
        if speed.throughput.finish(busy, 0.5) < enough:
            back.append(at)
            busy += shards[at].left
    return tuple(back)


class _Prospect:
    """Probabilities and times of a rescue within ``left`` seconds."""

    def __init__(
        self,
        left: float,
        backlog: int,
        shards: Sequence[PendingShard],
        movable: Sequence[PendingShard],
        speed: Speed,
        late_penalty: float,
    ) -> None:
        self._left, self._late_penalty, self._speed = left, late_penalty, speed
        self._all = backlog + sum(shard.left for shard in shards)
        self._sent = [shard for shard in shards if shard.sent]
        self._running = any(shard.sent or not shard.held_up for shard in shards)  # or about to run
        self._working = self._speed.throughput.finish(backlog, 0.5)
        self._ages = {(shard.age, shard.size) for shard in movable}
        pieces = max(1, len(movable))
        # seconds until the last shard is withdrawn
        self._before = speed.throughput.finish(self._all, 0.5) * (pieces - 1) / pieces

    def needs(self, sure: float) -> float:
        """Return the seconds within which real time answers all open requests, including cancels."""
        under_way = max((each.cancelled for each in self._sent if each.cancelled is not None), default=0.0)
        cancel = self._speed.cancelling.quantile(sure, 1) - under_way if self._sent else 0.0
        return self._speed.throughput.finish(self._all, sure) + max(0.0, cancel - self._working)

    def later(self) -> RescueStart | None:
        """Return the best later start of a rescue."""
        found = rescue_starts(
            self._left,
            self.needs,
            lambda at: self._late(at + self._before),
            self._saved,
            late_penalty=self._late_penalty,
        )
        return best_start(found)

    def now(self) -> tuple[float, float]:
        """Return the probability that a rescue is on time if it starts now, and its worth."""
        chance = self._chance()
        sure = max(LEVELS[0], min(HIGHEST_LEVEL, chance))
        risk = (1 - chance) * self._late(self._before)
        return sure, self._saved(0.0, sure) - self._late_penalty * risk

    def never(self) -> float:
        """Return the worth of withdrawing nothing; minus infinity if a batch may well be late."""
        now, then = self._late(0.0), self._late(self._left)
        if not self._running or then > MAX_RISK * now:
            return -math.inf
        return BATCH_SAVING_SHARE * (now - then) - self._late_penalty * then

    def hopeful(self, left: float) -> bool:
        """Whether running batches are more likely to be on time than real time."""
        now, then = self._late(0.0), self._late(left)
        return self._running and now > 0 and 1 - then / now > self._chance() + MIN_ODDS_GAIN

    def _chance(self) -> float:
        return chance_within(self._left, self.needs(0.5), self.needs(0.95))

    def _late(self, seconds: float) -> float:
        """Return the probability, as of creation, that some batch is unfinished ``seconds`` from now."""
        return 1 - min(self._speed.turnaround.chance(age + seconds, size) for age, size in self._ages)

    def _saved(self, at: float, _: float) -> float:
        return BATCH_SAVING_SHARE * (self._late(0.0) - (self._late(at) + self._late(at + self._before)) / 2)
