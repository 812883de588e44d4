"""How far a list is, as its caller is told with each result."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from smartbatch.observe import logs
from smartbatch.types import Result


@frozen
class ListProgress:
    """How far a list is.

    Attributes:
        total: results there will be; ``None`` where the prompts were given without a length.
        finished: results there are, failed ones included.
        failed: those of them that failed.
        cost: USD of the results whose cost is known.
        unpriced: results whose cost is unknown.
        elapsed: seconds since the list was begun.
    """

    total: int | None
    finished: int = 0
    failed: int = 0
    cost: float = 0.0
    unpriced: int = 0
    elapsed: float = 0.0

    @property
    def succeeded(self) -> int:
        """Results that are answers."""
        return self.finished - self.failed

    @property
    def remaining(self) -> float | None:
        """Seconds until the last result, at the mean rate so far; ``None`` where that is unknown."""
        if self.total is None or not self.finished:
            return None
        return self.elapsed / self.finished * (self.total - self.finished)


OnProgress = Callable[[ListProgress], object]


class ProgressCounter:
    """Counts the results of one list and tells of each; used by the thread that reads the list.

    Args:
        tell: the caller's; what it raises is logged, and does not end the list.
        total: results there will be, where that is known.
        now: monotonic seconds.
    """

    def __init__(self, tell: OnProgress, total: int | None, now: Callable[[], float]) -> None:
        self._tell = tell
        self._now = now
        self._began = now()
        self._told = ListProgress(total)

    def __call__(self, result: Result) -> None:
        before = self._told
        self._told = ListProgress(
            before.total,
            before.finished + 1,
            before.failed + (not result.ok),
            before.cost + (result.cost or 0.0),
            before.unpriced + (result.cost is None),
            self._now() - self._began,
        )
        try:
            self._tell(self._told)
        except Exception as error:
            logs.user_error("an on_progress callback", error)
