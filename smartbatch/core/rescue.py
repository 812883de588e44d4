"""When what is in batches has to be taken back, so that all of it is answered before a deadline.

All that is not answered could be asked in real time, which takes a time that can be forecast. As long as
more than that is left, batches may go on: they are cheaper. When it is not, batches are taken back one by
one, those that have most left first, and no sooner than real time can use what they give back: it is kept
busy from that moment to the deadline, and a batch that still ends by itself is asked for less.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from smartbatch.core.forecast import Forecaster
from smartbatch.core.pace import Pace
from smartbatch.core.prior import Prior

__all__ = ["MARGIN", "SURE", "Held", "Rescue", "Speed", "assumed", "rescue"]

SURE = 0.99
"""How sure it must be that real time does the rest: what is lost by taking back too early is money, by taking
back too late the deadline."""
MARGIN = 0.02
"""Share of a deadline, counted from the moment it was set, that is kept free for what no forecast knows."""

MOMENT = 0.5
"""Seconds that are no reason to wait: as Unix time, shorter ones could round to nothing."""


@frozen
class Speed:
    """How fast requests can be taken out of batches and answered in real time.

    Attributes:
        pace: of real time, now.
        cancelling: seconds within which a cancelled batch has ended, as sure as the rescue must be.
    """

    pace: Pace
    cancelling: float


def assumed(*_: object) -> Speed:
    """Return what is assumed where nothing is known: four calls at a time, of which most take seconds."""
    return Speed(Pace(Forecaster(Prior.of(2.0, 10.0)).at(0.0), parallelism=4), 600.0)


@frozen
class Held:
    """What a shard holds.

    Attributes:
        left: requests that are not answered, as far as is known.
        sent: whether the provider has it, so that taking it back takes a cancel.
        stuck: whether nothing can be taken back: its create is unknown, or it is being cancelled or read.
    """

    left: int
    sent: bool
    stuck: bool = False


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
    cancelling = speed.cancelling if any(shard.sent for shard in shards) else 0.0
    needs = cancelling + pace.finish(all_left, SURE)
    free = left - needs - margin
    movable = [at for at, shard in enumerate(shards) if not shard.stuck]
    late = left < needs
    if not movable:
        return Rescue((), float("inf"), needs, late)
    if free > MOMENT:
        return Rescue((), free, needs, late)
    busy = backlog + sum(shard.left for shard in shards if shard.stuck)
    enough = speed.cancelling + margin
    back: list[int] = []
    for at in sorted(movable, key=lambda at: (shards[at].sent, -shards[at].left)):
        if back and not late and pace.finish(busy, 0.5) >= enough:
            break
        back.append(at)
        busy += shards[at].left
    wait = max(MOMENT, margin / 2) if len(back) < len(movable) else float("inf")
    return Rescue(tuple(back), wait, needs, late)
