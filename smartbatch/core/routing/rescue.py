"""Which batches of a running job are taken back now, so that all its requests are answered before its
deadline.

All open requests could be answered in real time, within a time that can be forecast. While more than that is
left, batches run on: they are cheaper. So do batches that are nearly certain to be in time. After that they
are taken back one by one, those with most open requests first, and each only when real time has capacity for
its requests: so real time is busy until the deadline, and a batch that still ends by itself saves its price.
Where real time would probably be late, and the batches less so, they run on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

from attrs import frozen

from smartbatch.core.forecast import Times
from smartbatch.core.routing.offers import Throughput, normal_quantile

MOST_RISK = 0.05
"""The largest risk taken to miss a deadline: the chance of a late batch times that of a late rescue."""
LATE_PENALTY = 0.5
"""What a missed deadline costs, as a share of the price of the whole list in real time."""
WAITED_SECONDS = 60.0
"""Seconds of waiting that a missed deadline costs as well, so that no deadline is missed to save a cent.
With both, about one in a hundred lists with all kinds of deadlines is late
(``docs/reference/routing.md``)."""
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98, 0.99)
"""Probabilities to be in time that are compared for a rescue."""
SURE = LEVELS[-1]
"""The highest of them; quantiles beyond it are seldom known."""
MARGIN = 0.005
"""Share of the time to a deadline, from the moment it was set, that is kept free for what no forecast
covers."""
_NORMAL = NormalDist()
MOMENT = 0.5
"""Seconds; a shorter wait is none, since in Unix time it could round to nothing."""
HARDLY = 0.8
"""Probability of real time to be in time below which the deadline counts as missed."""
HOPE = 0.01
"""By how much batches must be likelier in time than real time, to run on after that."""
SAVED = 0.5
"""What a batch saves of the price in real time, at all providers."""
LOOK = 0.05
"""Share of the time left after which such a decision is made again."""
LOOKS, HALVINGS = 40, 12
"""To find when a rescue begins: decisions that are followed at most, and how often the time before the one
found is halved."""


@frozen
class RescueStart:
    """A moment at which a rescue could begin. Times are seconds.

    Attributes:
        at: from now.
        sure: probability that the rescue is in time.
        needs: within which the rescue is done with that probability.
        risk: probability that the deadline is missed.
        worth: what batches save until then less what the risk costs, as a share of the price of the whole
            list in real time.
    """

    at: float
    sure: float
    needs: float
    risk: float
    worth: float


def late_penalty(price: float | None, time_value: float) -> float:
    """Return what a missed deadline costs, as a share of ``price``, the USD of the whole list in real time.

    ``time_value`` is what an hour of waiting is worth, USD.
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
    """Return when a rescue could begin, for each of :data:`LEVELS`. Times are seconds from now.

    Args:
        left: until the deadline.
        needs: the time within which a rescue is done, by the probability given.
        late: probability that the batch taken back last has not ended by itself, by the time.
        saved: what batches save until a rescue, as a share of the price of the whole list in real time; by
            the time and the probability.
        floor: before which a rescue cannot begin.
    """
    found = []
    for sure in LEVELS:
        kept = needs(sure)
        at = left - kept
        if at <= floor:
            break
        risk = (1 - sure) * late(at)
        found.append(RescueStart(at, sure, kept, risk, saved(at, sure) - late_penalty * risk))
    return found


def best_start(found: Sequence[RescueStart]) -> RescueStart | None:
    """Return the start that is worth most of those that keep to :data:`MOST_RISK`, of equals the surest."""
    safe = (start for start in found if start.risk <= MOST_RISK)
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
    """How fast requests can be taken out of batches and answered in real time: the throughput of real time
    now, how long a cancelled batch takes to end, and how long a batch takes.
    """

    throughput: Throughput
    cancelling: Times
    turnaround: Times


@frozen
class PendingShard:
    """A shard of a job that is not settled. Times are seconds.

    Attributes:
        left: requests not answered, as far as known.
        sent: whether the provider has it, so that taking it back needs a cancel.
        stuck: whether it cannot be taken back: its creation is uncertain, or it is being cancelled or read.
        size: requests it was made of.
        age, cancelled: since it was created, and since its cancel was requested.
        held_up: whether it cannot be sent at once, for example because a quota is full.
    """

    left: int
    sent: bool
    size: int
    age: float
    stuck: bool = False
    cancelled: float | None = None
    held_up: bool = False


@frozen
class Rescue:
    """What is done now. Times are seconds.

    Attributes:
        take_back: positions of the shards to take back.
        wait: until the next decision; infinity when nothing is left to take back.
        needs: within which real time answers all open requests.
        late: whether the deadline will probably be missed.
    """

    take_back: tuple[int, ...]
    wait: float
    needs: float
    late: bool


def rescue(
    left: float,
    margin: float,
    backlog: int,
    shards: Sequence[PendingShard],
    speed: Speed,
    late_penalty: float = LATE_PENALTY,
) -> Rescue:
    """Return which shards are to be taken back now.

    The cases, in order:

    1. No shard can be taken back: nothing to decide any more.
    2. No rescue at all is worth more than one now or later, and the batches are nearly certain to be in
       time: they run on, for a while.
    3. A later start is worth more than one now: wait for it.
    4. Real time would probably be late, and the batches are likelier in time: they run on, for a while.
    5. Take back as many shards as keep real time busy until further ones could be cancelled.

    Args:
        left: seconds until the deadline; below 0 when it has passed.
        margin: seconds to keep free.
        backlog: open requests of the job that are in no shard.
        late_penalty: what a missed deadline costs, see :func:`smartbatch.core.routing.risk.late_penalty`.
    """
    movable = [at for at, shard in enumerate(shards) if not shard.stuck]
    outlook = _Outlook(left - margin, backlog, shards, [shards[at] for at in movable], speed, late_penalty)
    needs = outlook.needs(HARDLY)
    late = left < needs
    if not movable:
        return Rescue((), math.inf, needs, late)
    later, (sure, worth) = outlook.later(), outlook.now()
    run_on = Rescue((), max(MOMENT, left * LOOK), needs, late)
    if outlook.never() > max(worth, -math.inf if later is None else later.worth):
        return run_on
    if later is not None and later.at > MOMENT and later.worth > worth:
        return Rescue((), later.at, later.needs, late)
    if late and outlook.hopeful(left):
        return run_on
    back = _back(movable, backlog, shards, speed, sure if later is None else later.sure, margin)
    wait = max(MOMENT, margin / 2) if len(back) < len(movable) else math.inf
    return Rescue(back, wait, needs, late)


def margin_of(deadline: float) -> float:
    """Return the seconds that a rescue keeps free, of a deadline that was set ``deadline`` seconds before."""
    return max(1.0, MARGIN * deadline)


def first_rescue(
    deadline: float, sizes: Sequence[int], speed: Speed, late_penalty: float = LATE_PENALTY
) -> float | None:
    """Return after how many seconds the first batch is taken back of a job that begins now, if none has
    ended by then and nothing else is learned: what :func:`rescue` will decide. ``None`` for never.

    Args:
        deadline: seconds until the deadline.
        sizes: requests of each batch.
    """
    margin = margin_of(deadline)

    def look(now: float) -> Rescue:
        shards = [PendingShard(size, sent=True, size=size, age=now) for size in sizes]
        return rescue(deadline - now, margin, 0, shards, speed, late_penalty)

    early = late = 0.0
    for _ in range(LOOKS):
        found = look(late)
        if found.take_back:
            break
        late += found.wait
        if late >= deadline:
            return None
    else:
        return None
    for _ in range(HALVINGS):  # a job also looks when it polls, and begins as soon as that is worth more
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
    """Return the shards that keep real time busy until further ones could be cancelled."""
    busy = backlog + sum(shard.left for shard in shards if shard.stuck)
    enough = speed.cancelling.quantile(sure, 1) + margin
    back: list[int] = []
    for at in sorted(movable, key=lambda at: (shards[at].sent, -shards[at].left)):
        if speed.throughput.finish(busy, 0.5) < enough:
            back.append(at)
            busy += shards[at].left
    return tuple(back)


class _Outlook:
    """The probabilities and times of a rescue that begins now or later, of which ``left`` seconds may be
    used.
    """

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
        # until the last is taken back
        self._before = speed.throughput.finish(self._all, 0.5) * (pieces - 1) / pieces

    def needs(self, sure: float) -> float:
        """Return the seconds within which all open requests are answered in real time, cancels included."""
        under_way = max((each.cancelled for each in self._sent if each.cancelled is not None), default=0.0)
        cancel = self._speed.cancelling.quantile(sure, 1) - under_way if self._sent else 0.0
        return self._speed.throughput.finish(self._all, sure) + max(0.0, cancel - self._working)

    def later(self) -> RescueStart | None:
        """Return the best moment for a rescue to begin."""
        found = rescue_starts(
            self._left,
            self.needs,
            lambda at: self._late(at + self._before),
            self._saved,
            late_penalty=self._late_penalty,
        )
        return best_start(found)

    def now(self) -> tuple[float, float]:
        """Return how sure a rescue that begins now is to be in time, within the levels, and its worth."""
        chance = self._chance()
        sure = max(LEVELS[0], min(SURE, chance))
        risk = (1 - chance) * self._late(self._before)
        return sure, self._saved(0.0, sure) - self._late_penalty * risk

    def never(self) -> float:
        """Return what it is worth to take nothing back; minus infinity where a batch may well be late."""
        now, then = self._late(0.0), self._late(self._left)
        if not self._running or then > MOST_RISK * now:
            return -math.inf
        return SAVED * (now - then) - self._late_penalty * then

    def hopeful(self, left: float) -> bool:
        """Whether batches that run on are likelier in time than real time."""
        now, then = self._late(0.0), self._late(left)
        return self._running and now > 0 and 1 - then / now > self._chance() + HOPE

    def _chance(self) -> float:
        return chance_within(self._left, self.needs(0.5), self.needs(0.95))

    def _late(self, seconds: float) -> float:
        """Return the probability, as of the batches' creation, that one has not ended in ``seconds`` from
        now.
        """
        return 1 - min(self._speed.turnaround.chance(age + seconds, size) for age, size in self._ages)

    def _saved(self, at: float, _: float) -> float:
        return SAVED * (self._late(0.0) - (self._late(at) + self._late(at + self._before)) / 2)
