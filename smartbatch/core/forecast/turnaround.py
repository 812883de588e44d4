"""How long a running job will still take: from batches that ended, those that run, and what providers
document.

The time left of a batch that has run for an hour follows from how long those took that were not done after an
hour. Each observed batch stands for times around its own; recent ones of about the same size count most. A
batch that was given up would have taken longer: its weight goes to those that did. Where few were observed,
what providers document of all batches counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

__all__ = ["LATEST", "PROMISE", "ObservedBatch", "RunningBatch", "remaining"]

LATEST = 86_400.0
"""Seconds after which batches of OpenAI and Anthropic expire; those of Gemini should end by then, and
expire after twice as long."""

_DAY = 86_400.0
_FADE = 1.0
"""Days after which an observation counts half: load at providers changes from day to day."""
_SIGMA = 0.35
"""Standard deviation of the log times that one batch stands for: a third more or less."""
PROMISE = (
    (300.0, 0.1),
    (900.0, 0.125),
    (1800.0, 0.125),
    (7200.0, 0.075),
    (21_600.0, 0.05),
    (64_800.0, 0.025),
)
"""Seconds and weights that stand for what is documented: most of Anthropic's batches end within an hour,
those of OpenAI and Gemini often far before their 24. Together they weigh as much as half an observation."""
_SHORTEST = 1.0
"""The least seconds returned while anything is left, such as collecting the results."""


@frozen
class ObservedBatch:
    """A batch of ``size`` requests that took ``seconds`` from its creation, and ended ``age`` seconds ago.
    ``ended`` is False where it was given up, so that it would have taken longer.
    """

    size: int
    seconds: float
    age: float = 0.0
    ended: bool = True


@frozen
class RunningBatch:
    """A batch of ``size`` requests, created ``elapsed`` seconds ago; ``done`` where the provider says how
    many are.
    """

    size: int
    elapsed: float
    done: int | None = None


def remaining(
    running: Sequence[RunningBatch], observed: Sequence[ObservedBatch] = (), *, unsent: Sequence[int] = ()
) -> float | None:
    """Return the seconds until the last batch has ended, as likely too long as too short.

    Args:
        running: the job's batches that have not ended; they run in parallel.
        observed: batches of the same model that ended or were given up.
        unsent: sizes of batches still to be sent; as many at a time as run now, else all at once.

    Returns:
        0.0 only when nothing is left; ``None`` when a batch has run for :data:`LATEST`.
    """
    if not running and not unsent:
        return 0.0
    times = {size: _Times(observed, size) for size in {*(batch.size for batch in running), *unsent}}
    longest = 0.0
    for batch in running:
        left = _left(batch, times[batch.size])
        if left is None:
            return None
        longest = max(longest, left)
    if unsent:
        rounds = math.ceil(len(unsent) / len(running)) if running else 1
        longest += rounds * max(times[size].left(0.0) for size in {*unsent})
    return max(_SHORTEST, longest)


def _left(batch: RunningBatch, times: _Times) -> float | None:
    """Return the seconds left of one batch: by its age, or by its own progress where that is faster.

    Slow progress is no evidence: batches wait in a queue first, and then run fast.
    """
    if batch.elapsed >= LATEST:
        return None
    left = times.left(max(0.0, batch.elapsed))
    if batch.done is not None and batch.done > 0:
        left = min(left, max(0.0, batch.elapsed) * max(0, batch.size - batch.done) / batch.done)
    return left


class _Times:
    """How long batches of ``size`` requests take."""

    def __init__(self, observed: Sequence[ObservedBatch], size: int) -> None:
        known = [
            (math.log(one.seconds), _weight(one, size), one.ended) for one in observed if one.seconds > 0
        ]
        self._ended = [(math.log(seconds), weight) for seconds, weight in PROMISE]
        self._ended += [(log, weight) for log, weight, ended in known if ended]
        self._given_up = [
            (log, 2 * weight, share)
            for log, weight, ended in known
            if not ended and (share := self._surviving_ended(log)) > 0
        ]
        self._first = min(log for log, *_ in (*self._ended, *self._given_up))

    def left(self, elapsed: float) -> float:
        """Return the median of the time left, of batches that are not done after ``elapsed`` seconds."""
        low = math.log(elapsed) if elapsed > 0 else self._first - 10 * _SIGMA
        high = max(low, math.log(2 * LATEST)) + 10 * _SIGMA
        half = self._surviving(low) / 2
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._surviving(middle) > half else (low, middle)
        return math.exp(high) - elapsed

    def _surviving(self, log: float) -> float:
        """Return the weight of batches that take longer; those given up continue as others do from there."""
        ended = self._surviving_ended(log)
        return ended + sum(
            weight if log <= at else weight * ended / share for at, weight, share in self._given_up
        )

    def _surviving_ended(self, log: float) -> float:
        return sum(
            weight * math.erfc((log - center) / (_SIGMA * math.sqrt(2))) for center, weight in self._ended
        )


def _weight(one: ObservedBatch, size: int) -> float:
    """Return the weight of an observation for a batch of ``size``: half if a day old or twice the size."""
    apart = abs(math.log2(max(1, one.size) / max(1, size)))
    return float(0.5 ** (max(0.0, one.age) / (_FADE * _DAY))) / (1 + apart)
