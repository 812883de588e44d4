"""How long a running job will still take, from how long batches take.

The time left of a batch that has run for an hour follows from how long those take that are not done after an
hour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen

from smartbatch.core.forecast.forecaster import Times

LATEST = 86_400.0
"""Seconds after which batches of OpenAI and Anthropic expire; those of Gemini should end by then, and
expire after twice as long."""
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
_HIGHEST = 1 - 1e-9


@frozen
class RunningBatch:
    """A batch of ``size`` requests, created ``elapsed`` seconds ago; ``done`` where the provider says how
    many are.
    """

    size: int
    elapsed: float
    done: int | None = None


def remaining(running: Sequence[RunningBatch], times: Times, *, unsent: Sequence[int] = ()) -> float | None:
    """Return the seconds until the last batch has ended, as likely too long as too short.

    Args:
        running: the job's batches that have not ended; they run in parallel.
        times: how long batches of the same model take.
        unsent: sizes of batches still to be sent; as many at a time as run now, else all at once.

    Returns:
        0.0 only when nothing is left; ``None`` when a batch has run for :data:`LATEST`.
    """
    if not running and not unsent:
        return 0.0
    if any(batch.elapsed >= LATEST for batch in running):
        return None
    longest = max((_left(batch, times) for batch in running), default=0.0)
    if unsent:
        rounds = math.ceil(len(unsent) / len(running)) if running else 1
        longest += rounds * max(_median_left(0.0, size, times) for size in {*unsent})
    return max(_SHORTEST, longest)


def _left(batch: RunningBatch, times: Times) -> float:
    """Return the seconds left of one batch: by its age, or by its own progress where that is faster.

    Slow progress is no evidence: batches wait in a queue first, and then run fast.
    """
    elapsed = max(0.0, batch.elapsed)
    left = _median_left(elapsed, batch.size, times)
    if batch.done is not None and batch.done > 0:
        left = min(left, elapsed * max(0, batch.size - batch.done) / batch.done)
    return left


def _median_left(elapsed: float, size: int, times: Times) -> float:
    """Return the median of the time left, of batches that are not done after ``elapsed`` seconds."""
    half = (1 + times.chance(elapsed, size)) / 2
    return min(times.quantile(min(_HIGHEST, half), size), 2 * LATEST) - elapsed
