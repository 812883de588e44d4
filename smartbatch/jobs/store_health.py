"""Whether results can be stored at the moment, and what is lost where they never can."""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import asdict, define, field, frozen

from smartbatch._clock import Clock
from smartbatch.errors import StoreError
from smartbatch.events import AnswersLost, Event
from smartbatch.observe import logs

SLOW = 3.0
"""Seconds after which a write that has not ended counts as one that fails: what comes meanwhile is paid."""


@frozen
class UnstoredAnswers:
    """Answers that came, or will come, and are nowhere but in memory.

    Attributes:
        answers: those that came.
        cost: USD of these, as far as prices are known.
        awaited: requests under way whose answers are still to come.
        reason: why they are not stored.
    """

    answers: int
    cost: float
    awaited: int
    reason: str

    def __bool__(self) -> bool:
        return bool(self.answers or self.awaited)

    def report(self, tell: Callable[[Event], object], now: float) -> None:
        """Tell that they are lost, and log it also where logging is off: they are paid for."""
        tell(AnswersLost(at=now, **asdict(self)))
        logs.alarm(
            f"the client ended while answers could not be stored: {self.answers:,} that came "
            f"({self.cost:.6f} USD) are lost, and {self.awaited:,} were still to come. Whoever takes "
            f"their jobs up asks these requests again, with an incident that says so. {self.reason}",
            lost=True,
        )


@define(eq=False, repr=False)
class StoreHealth:
    """What the writes of results say of the store. Not thread-safe: a lock of its user's guards it.

    Attributes:
        problem: why results were not stored when that was tried last, for users; ``None`` where they were.
        failing_since: when that began, monotonic seconds.
    """

    _clock: Clock
    problem: str | None = None
    failing_since: float = field(default=math.inf, init=False)
    _writing_since: float = field(default=math.inf, init=False)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing more is to be asked: the last write failed, or the one under way takes too long."""
        return self.problem is not None or self._clock.now() - self._writing_since > SLOW

    def begins(self) -> None:
        """A write begins."""
        self._writing_since = self._clock.now()

    def ends(self, error: BaseException | None) -> None:
        """The write has ended, with ``error`` or without one. Only errors of the store itself count: others
        say nothing of the results of other jobs."""
        self._writing_since = math.inf
        if isinstance(error, StoreError):
            self.failing_since = min(self.failing_since, self._clock.now())
            self.problem = error.message

    def recovers(self) -> float | None:
        """Everything is stored; return for how many seconds that failed, ``None`` where it did not."""
        if self.problem is None:
            return None
        seconds = self._clock.now() - self.failing_since
        self.problem, self.failing_since = None, math.inf
        return seconds
