"""When what is in batches has to be taken back, so that all of it is answered before a deadline.

All that is not answered could be asked in real time, which takes a time that can be forecast. As long as
more than that is left, batches may go on: they are cheaper. When it is not, batches are taken back one by
one, those that have most left first, and no sooner than real time can use what they give back: it is kept
busy from that moment to the deadline, and a batch that still ends by itself is asked for less. Where real
time would hardly be in time any more, and the batches more likely so, they go on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import field, frozen

from smartbatch.core.forecast.forecaster import Forecaster
from smartbatch.core.forecast.priors import Prior
from smartbatch.core.forecast.turnaround import PROMISE
from smartbatch.core.routing.risk import LATE_PENALTY, LEVELS, MARGIN, SURE, Start, best, starts, within
from smartbatch.core.routing.throughput import Throughput, Times

__all__ = ["MARGIN", "PendingShard", "Rescue", "Speed", "assumed_speed", "rescue"]

MOMENT = 0.5
"""Seconds that are no reason to wait: as Unix time, shorter ones could round to nothing."""
HARDLY = 0.8
"""How surely real time is in time for a deadline to count as one that will be met."""
HOPE = 0.01
"""How much likelier batches must be in time than real time, for them to be left alone."""
SAVED = 0.5
"""What a batch saves of the price in real time, at all providers."""
LOOK = 0.05
"""Share of what is left after which a batch is looked at again that goes on because it is the best hope."""


@frozen
class Speed:
    """How fast requests can be taken out of batches and answered in real time.

    Attributes:
        pace: of real time, now.
        cancelling: how long a cancelled batch takes to end.
        turnaround: how long a batch takes.
    """

    throughput: Throughput
    cancelling: Times
    turnaround: Times = field(factory=lambda: Forecaster(Prior(PROMISE)).at(0.0))


def assumed_speed(*_: object) -> Speed:
    """Return what is assumed where nothing is known: four calls at a time, of which most take seconds."""
    throughput = Throughput(Forecaster(Prior.of(2.0, 10.0)).at(0.0), parallelism=4)
    return Speed(throughput, Forecaster(Prior.of(150.0, 450.0)).at(0.0))


@frozen
class PendingShard:
    """What a shard holds.

    Attributes:
        left: requests that are not answered, as far as is known.
        sent: whether the provider has it, so that taking it back takes a cancel.
        stuck: whether nothing can be taken back: its create is unknown, or it is being cancelled or read.
        size: requests it was made of; 0 where that is not known.
        age: seconds since it was created.
        cancelled: seconds since its cancel was asked for; ``None`` where it was not.
    """

    left: int
    sent: bool
    stuck: bool = False
    size: int = 0
    age: float = 0.0
    cancelled: float | None = None


@frozen
class Rescue:
    """What to do.

    Attributes:
        take_back: positions of the shards to take back now.
        wait: seconds until it must be looked at again; infinity when there is nothing left to take back.
        needs: seconds that all that is left needs in real time.
        late: whether the deadline will be missed, as far as can be said.
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

    Args:
        left: seconds until the deadline; below 0 when it has passed.
        margin: seconds to keep free.
        backlog: requests of the job that are in no shard and not answered.
        shards: that are not settled.
        speed: of the way out.
        late_penalty: what a missed deadline counts as, see :func:`smartbatch.core.routing.risk.late_penalty`.
    """
    movable = [at for at, shard in enumerate(shards) if not shard.stuck]
    outlook = _Outlook(left - margin, backlog, shards, [shards[at] for at in movable], speed, late_penalty)
    needs = outlook.needs(HARDLY)
    late = left < needs
    if not movable:
        return Rescue((), math.inf, needs, late)
    later, now = outlook.later(), outlook.now()
    if later is not None and later.at > MOMENT and later.worth > now.worth:
        return Rescue((), later.at, later.needs, late)
    if late and outlook.hopeful(left):
        return Rescue((), max(MOMENT, left * LOOK), needs, late)
    back = _back(movable, backlog, shards, speed, (later or now).sure, margin)
    wait = max(MOMENT, margin / 2) if len(back) < len(movable) else math.inf
    return Rescue(back, wait, needs, late)


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
        if speed.throughput.finish(busy, 0.5) >= enough:
            break
        back.append(at)
        busy += shards[at].left
    return tuple(back)


class _Outlook:
    """What may become of a job.

    Args:
        left: seconds that may be used.
        backlog: requests in no shard.
        shards: all of them.
        movable: those that could be taken back.
        speed: of the way out.
        late_penalty: what a missed deadline counts as.
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
        self._left, self._late_penalty = left, late_penalty
        self._throughput, self._cancelling, self._turnaround = (
            speed.throughput,
            speed.cancelling,
            speed.turnaround,
        )
        self._all = backlog + sum(shard.left for shard in shards)
        self._sent = [shard for shard in shards if shard.sent]
        self._working = self._throughput.finish(backlog, 0.5)
        self._ages = {(shard.age, max(1, shard.size)) for shard in movable}
        pieces = max(1, len(movable))
        self._before = (
            self._throughput.finish(self._all, 0.5) * (pieces - 1) / pieces
        )  # the last is taken back

    def needs(self, sure: float) -> float:
        """Return the seconds within which all that is left is answered in real time."""
        under_way = max((each.cancelled for each in self._sent if each.cancelled is not None), default=0.0)
        cancel = self._cancelling.quantile(sure, 1) - under_way if self._sent else 0.0
        return self._throughput.finish(self._all, sure) + max(0.0, cancel - self._working)

    def later(self) -> Start | None:
        """Return the best moment for a rescue to begin."""
        found = starts(
            self._left,
            self.needs,
            lambda at: self._late(at + self._before),
            self._saved,
            late_penalty=self._late_penalty,
        )
        return best(found)

    def now(self) -> Start:
        """Return what comes of a rescue that begins at once."""
        chance = self._chance()
        sure = max(LEVELS[0], min(SURE, chance))
        risk = (1 - chance) * self._late(self._before)
        return Start(0.0, sure, self.needs(sure), risk, self._saved(0.0, sure), self._late_penalty)

    def hopeful(self, left: float) -> bool:
        """Whether batches that go on are more likely in time than real time would be."""
        now, then = self._late(0.0), self._late(left)
        return bool(self._sent) and now > 0 and 1 - then / now > self._chance() + HOPE

    def _chance(self) -> float:
        return within(self._left, self.needs(0.5), self.needs(0.95))

    def _late(self, seconds: float) -> float:
        """Return how likely it was from the beginning that a batch will not have ended in so many seconds."""
        return 1 - min(self._turnaround.chance(age + seconds, size) for age, size in self._ages)

    def _saved(self, at: float, _: float) -> float:
        return SAVED * (self._late(0.0) - (self._late(at) + self._late(at + self._before)) / 2)
