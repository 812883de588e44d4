"""What a caller asks of a list or a job: deadline, budget, preference, and what waiting is worth."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from attrs import frozen

from smartbatch.errors import ConfigError
from smartbatch.types import Strategy

__all__ = ["Constraints", "Deadline", "Prefer", "seconds_until"]

Deadline: TypeAlias = "str | float | timedelta | datetime"
"""A text such as ``"2h"`` or ``"1h 30min"``, seconds, a span, or a moment with its time zone."""

Prefer: TypeAlias = Literal["balanced", "speed", "cost"]

_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)


@frozen(kw_only=True)
class Constraints:
    """What a decision has to meet.

    Attributes:
        strategy: forces a route, or leaves the choice.
        prefer: ``balanced`` weighs money against time, ``speed`` takes the soonest, ``cost`` the cheapest.
        deadline: seconds from now; ``None`` for none.
        budget: USD; ``None`` for none.
        time_value: USD an hour of waiting is worth: weighed against the cost where there is no deadline, and
            part of what a missed deadline costs.
        threshold: fewest requests that may go as a batch alone.
        at_once: a list of at most so many requests always goes in real time.
    """

    strategy: Strategy = Strategy.AUTO
    prefer: Prefer = "balanced"
    deadline: float | None = None
    budget: float | None = None
    time_value: float = 5.0
    threshold: int = 10
    at_once: int = 3


def seconds_until(deadline: Deadline | None, wall: float) -> float | None:
    """Return the seconds from ``wall`` (Unix seconds, now) to ``deadline``; ``None`` when there is none.

    Raises:
        ConfigError: for a value that is no time, and for a moment that has passed or lacks its time zone.
    """
    if deadline is None:
        return None
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise ConfigError(
                f"deadline = {deadline.isoformat()} has no time zone, so it could mean several moments; add "
                "one, such as .astimezone()"
            )
        seconds = deadline.timestamp() - wall
        if seconds <= 0:
            raise ConfigError(f"deadline = {deadline.isoformat()} has passed")
        return seconds
    found = _span(deadline)
    if found is None or not 0 < found < math.inf:
        raise ConfigError(
            f"deadline = {deadline!r:.60} is no time from now: write '90s', '30min', '2h', '1d', seconds, a "
            "timedelta, or a datetime with its time zone"
        )
    return found


def _span(deadline: str | float | timedelta) -> float | None:
    if isinstance(deadline, timedelta):
        return deadline.total_seconds()
    if isinstance(deadline, bool) or not isinstance(deadline, str | int | float):
        return None
    if not isinstance(deadline, str):
        return float(deadline)
    total, at = 0.0, 0
    text = deadline.strip()
    while at < len(text):
        part = _PART.match(text, at)
        unit = None if part is None else _UNITS.get(part.group(2).lower() or "s")
        if part is None or unit is None or (not part.group(2) and part.span() != (0, len(text))):
            return None
        total += float(part.group(1)) * unit
        at = part.end()
    return total if text else None
