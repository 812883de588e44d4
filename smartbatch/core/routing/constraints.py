"""What a caller asks of a list or a job: deadline, budget, preference, and what waiting is worth."""

from __future__ import annotations

import math
from datetime import datetime

from attrs import frozen

from smartbatch._settings import EXAMPLES, seconds_in
from smartbatch.errors import ConfigError
from smartbatch.types import Deadline, Prefer, Strategy


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
        keep_going: all requests are sent, whatever the first ones come to.
    """

    strategy: Strategy = Strategy.AUTO
    prefer: Prefer = "balanced"
    deadline: float | None = None
    budget: float | None = None
    time_value: float = 5.0
    threshold: int = 10
    at_once: int = 3
    keep_going: bool = False


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
    found = seconds_in(deadline)
    if found is None or not 0 < found < math.inf:
        raise ConfigError(
            f"deadline = {deadline!r:.60} is no time from now: write {EXAMPLES}, or a datetime with its time "
            "zone"
        )
    return found
