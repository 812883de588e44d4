"""Progress of a list, reported to its caller and displayed while results are read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from attrs import frozen

from smartbatch.events import Event
from smartbatch.observe import logs
from smartbatch.observe.progress import Progress
from smartbatch.types import Result


@frozen
class ListProgress:
    """Progress of a list.

    Attributes:
        total: expected number of results; ``None`` if the number of prompts is not known.
        finished: results so far, including failed ones.
        failed: failed results.
        cost: USD of the results whose cost is known.
        unpriced: results whose cost is unknown.
        elapsed: seconds since the list began.
    """

    total: int | None
    finished: int = 0
    failed: int = 0
    cost: float = 0.0
    unpriced: int = 0
    elapsed: float = 0.0

    @property
    def succeeded(self) -> int:
        """Results with an answer."""
        return self.finished - self.failed

    @property
    def remaining(self) -> float | None:
        """Seconds until the last result, at the mean rate so far; ``None`` if unknown."""
        if self.total is None or not self.finished:
            return None
        return self.elapsed / self.finished * (self.total - self.finished)


OnProgress = Callable[[ListProgress], object]


class ProgressCounter:
    """Counts the results of one list and calls ``on_progress`` for each, on the thread that reads the list.

    An exception raised by ``on_progress`` is logged and does not stop the list. ``now`` returns monotonic
    seconds.
    """

    def __init__(self, on_progress: OnProgress, total: int | None, now: Callable[[], float]) -> None:
        self._on_progress = on_progress
        self._now = now
        self._began = now()
        self._progress = ListProgress(total)

    def __call__(self, result: Result) -> None:
        before = self._progress
        self._progress = ListProgress(
            before.total,
            before.finished + 1,
            before.failed + (not result.ok),
            before.cost + (result.cost or 0.0),
            before.unpriced + (result.cost is None),
            self._now() - self._began,
        )
        try:
            self._on_progress(self._progress)
        except Exception as error:
            logs.user_error("an on_progress callback", error)


class ListDisplays:
    """The progress displays of the lists that are being read; each shows its client's limits and outages."""

    def __init__(self) -> None:
        self._shown: list[Progress] = []

    def __call__(self, event: Event) -> None:
        for shown in tuple(self._shown):
            shown(event)

    def join(self, shown: Progress) -> None:
        self._shown.append(shown)

    def remove(self, shown: Progress) -> None:
        with suppress(ValueError):  # already removed
            self._shown.remove(shown)


class ListDisplay:
    """Displays and counts the results of one list; used only by the thread that reads it.

    Args:
        make: creates the display; returns ``None`` if nothing is to be shown.
        displays: the displays of the client's lists.
        count: called with each result.
    """

    def __init__(
        self,
        make: Callable[[], Progress | None],
        displays: ListDisplays,
        count: ProgressCounter | None = None,
    ) -> None:
        self._make: Callable[[], Progress | None] | None = make
        self._displays = displays
        self._count = count
        self._shown: Progress | None = None

    @property
    def is_open(self) -> bool:
        return self._shown is not None

    def begin(self) -> Progress | None:
        """Show the display, unless it is already shown, and return it."""
        make, self._make = self._make, None
        if make is not None and (shown := make()) is not None:
            self._shown = shown
            self._displays.join(shown)
        return self._shown

    def is_watched(self) -> bool:
        """Show the display; return whether results are displayed or counted."""
        return self.begin() is not None or self._count is not None

    def advance(self, result: Result) -> None:
        if self._shown is not None:
            self._shown.advance(result)
        if self._count is not None:
            self._count(result)

    def close(self) -> None:
        shown, self._shown = self._shown, None
        if shown is not None:
            self._displays.remove(shown)
            shown.close()
