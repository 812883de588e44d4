"""How long to leave something alone that failed: growing pauses with jitter, up to a longest one."""

from __future__ import annotations

from smartbatch.core.limits.random_source import RandomSource, spread

__all__ = ["pause"]


def pause(
    tries: int, rng: RandomSource, *, first: float, longest: float, asked: float | None = None
) -> float:
    """Return the seconds to wait after ``tries`` failures in a row.

    Args:
        tries: 1 after the first failure.
        rng: dice; half of the pause is jitter, so that many processes do not come back together.
        first: seconds after the first failure; doubled with every further one.
        longest: seconds never exceeded, whatever was asked for.
        asked: seconds the provider asked to wait, never undercut but by ``longest``.
    """
    grown = min(longest, first * 2.0 ** min(tries - 1, 30))
    return min(longest, max(spread(grown, rng), asked or 0.0))
