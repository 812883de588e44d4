"""How far a list is, as its caller is told with each result and shown while it reads."""

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


class ListDisplays:
    """The displays of the lists that are read now; each hears of its client's limits and outages."""

    def __init__(self) -> None:
        self._shown: list[Progress] = []

    def __call__(self, event: Event) -> None:
        """Tell all of them an event; called by any thread."""
        for shown in tuple(self._shown):
            shown(event)

    def add(self, shown: Progress) -> None:
        """Tell a display the events from now on."""
        self._shown.append(shown)

    def remove(self, shown: Progress) -> None:
        """Tell a display no more; nothing where that was done before."""
        with suppress(ValueError):
            self._shown.remove(shown)


class ListDisplay:
    """Shows how far one list is, from the first result that is asked for; used by the thread that reads it.

    Args:
        make: makes what shows it; ``None`` where nothing is to be shown.
        displays: those of the client.
    """

    def __init__(self, make: Callable[[], Progress | None], displays: ListDisplays) -> None:
        self._make: Callable[[], Progress | None] | None = make
        self._displays = displays
        self._shown: Progress | None = None

    @property
    def is_open(self) -> bool:
        """Whether something is shown."""
        return self._shown is not None

    def begin(self) -> Progress | None:
        """Show it, unless that was begun before; return what shows it."""
        make, self._make = self._make, None
        if make is not None and (shown := make()) is not None:
            self._shown = shown
            self._displays.add(shown)
        return self._shown

    def advance(self, result: Result) -> None:
        """Count a result."""
        if self._shown is not None:
            self._shown.advance(result)

    def close(self) -> None:
        """Show the last state and end."""
        shown, self._shown = self._shown, None
        if shown is not None:
            self._displays.remove(shown)
            shown.close()
