"""When what is in batches has to be taken back, so that all of it is answered before a deadline.

All that is not answered could be asked in real time, which takes a time that can be forecast. As long as
more than that is left, batches may go on: they are cheaper. When it is not, batches are taken back one by
one, those that have most left first, and no sooner than real time can use what they give back: it is kept
busy from that moment to the deadline, and a batch that still ends by itself is asked for less. Where real
time would hardly be in time any more, and the batches more likely so, they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from smartbatch.core.forecast import Forecaster
from smartbatch.core.pace import Pace, Times
from smartbatch.core.prior import Prior
from smartbatch.core.risk import MARGIN, latest, within

__all__ = ["MARGIN", "Held", "Rescue", "Speed", "assumed", "rescue"]

MOMENT = 0.5
"""Seconds that are no reason to wait: as Unix time, shorter ones could round to nothing."""
LOOK = 0.05
"""Share of what is left after which a batch is looked at again that goes on because it is the best hope."""


@frozen
class Speed:
    """How fast requests can be taken out of batches and answered in real time.

    Attributes:
        pace: of real time, now.
        cancelling: how long a cancelled batch takes to end.
        turnaround: how long a batch takes; ``None`` where that is not known.
    """

    pace: Pace
    cancelling: Times
    turnaround: Times | None = None


def assumed(*_: object) -> Speed:
    """Return what is assumed where nothing is known: four calls at a time, of which most take seconds."""
    pace = Pace(Forecaster(Prior.of(2.0, 10.0)).at(0.0), parallelism=4)
    return Speed(pace, Forecaster(Prior.of(150.0, 450.0)).at(0.0))


@frozen
class Held:
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
        back: positions of the shards to take back now.
        wait: seconds until it must be looked at again; infinity when there is nothing left to take back.
        needs: seconds that all that is left needs in real time.
        late: whether the deadline will be missed, as far as can be said.
    """

    back: tuple[int, ...]
    wait: float
    needs: float
    late: bool


def rescue(left: float, margin: float, backlog: int, shards: Sequence[Held], speed: Speed) -> Rescue:
    """Return which shards are to be taken back now.

    Args:
        left: seconds until the deadline; below 0 when it has passed.
        margin: seconds to keep free.
        backlog: requests of the job that are in no shard and not answered.
        shards: that are not settled.
        speed: of the way out.
    """
    pace = speed.pace
    all_left = backlog + sum(shard.left for shard in shards)
    sent = [shard for shard in shards if shard.sent]

    working = pace.finish(backlog, 0.5)

    def kept(sure: float) -> float:
        return pace.finish(all_left, sure) + max(0.0, _first_back(sent, speed, sure) - working)

    sure, needs, free = latest(left - margin, kept, lambda seconds: _late(sent, speed, seconds))
    movable = [at for at, shard in enumerate(shards) if not shard.stuck]
    late = left < needs
    if not movable:
        return Rescue((), float("inf"), needs, late)
    if free > MOMENT:
        return Rescue((), free, needs, late)
    if late and sent and _hopeful(sent, speed, left, kept):
        return Rescue((), max(MOMENT, left * LOOK), needs, late)
    busy = backlog + sum(shard.left for shard in shards if shard.stuck)
    enough = speed.cancelling.quantile(sure, 1) + margin
    back: list[int] = []
    for at in sorted(movable, key=lambda at: (shards[at].sent, -shards[at].left)):
        if pace.finish(busy, 0.5) >= enough:
            break
        back.append(at)
        busy += shards[at].left
    wait = max(MOMENT, margin / 2) if len(back) < len(movable) else float("inf")
    return Rescue(tuple(back), wait, needs, late)


def _first_back(sent: Sequence[Held], speed: Speed, sure: float) -> float:
    """Return the seconds until a batch that is or would be cancelled has ended; 0 where none has to be."""
    if not sent:
        return 0.0
    under_way = max((shard.cancelled for shard in sent if shard.cancelled is not None), default=0.0)
    return max(0.0, speed.cancelling.quantile(sure, 1) - under_way)


def _late(sent: Sequence[Held], speed: Speed, seconds: float) -> float:
    """Return how likely it was from the beginning that a batch will not have ended in so many seconds."""
    if speed.turnaround is None:
        return 1.0
    chances = (speed.turnaround.chance(shard.age + seconds, max(1, shard.size)) for shard in sent)
    return 1 - min(chances, default=0.0)


def _hopeful(sent: Sequence[Held], speed: Speed, left: float, kept: Callable[[float], float]) -> bool:
    """Return whether batches that go on are more likely in time than real time would be."""
    now, then = _late(sent, speed, 0.0), _late(sent, speed, left)
    return now > 0 and 1 - then / now > within(left, kept(0.5), kept(0.95))
