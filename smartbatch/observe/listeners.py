"""The listeners to a client's events: the library's own first, then the user's observers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from smartbatch._display import duration
from smartbatch._fork import on_main_thread
from smartbatch.events import (
    CooldownStarted,
    Event,
    LongWait,
    Observer,
    ParameterDropped,
    PauseChanged,
    RetryScheduled,
)
from smartbatch.observe import logs

_E = TypeVar("_E", bound=Event)


class EventBus:
    """Calls all listeners with each event, on the calling thread. Takes no lock; safe from any thread.

    Args:
        observers: the user's. A list that the caller may append to: appending is atomic, so that observers
            that are added by several threads at once are all there.
    """

    def __init__(self, observers: list[Observer]) -> None:
        self._own: list[Callable[[Event], object]] = []
        self._of_class: dict[type[Event], list[Callable[[Any], object]]] = {}
        self._observers = observers

    def subscribe(self, listener: Callable[[_E], object], *classes: type[_E]) -> None:
        """Have a listener of the library's own called with the events of ``classes``; it must not raise."""
        for each in classes:
            self._of_class.setdefault(each, []).append(listener)

    def subscribe_to_all(self, listener: Callable[[Event], object]) -> None:
        """Have a listener of the library's own called with every event, before others; it must not raise."""
        self._own.append(listener)

    def tell(self, event: Event) -> None:
        """Call all listeners with an event. What an observer raises is logged, and the others are called.

        Raises:
            BaseException: what a signal handler raised on the main thread while an observer happened to run:
                the user wants to stop.
        """
        for listener in self._own:
            listener(event)
        for listener in self._of_class.get(type(event), ()):
            listener(event)
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # SystemExit on a worker would only end the worker
                if not isinstance(error, Exception) and on_main_thread():
                    raise
                logs.warn("observer_raised", observed=event.name, error=type(error).__name__)
                logs.user_error("an observer", error)


LONG_WAIT = 60.0
"""Seconds."""

_LOGGER = logging.getLogger("smartbatch")


class UserWarnings:
    """Logs each long wait of a model, and each parameter that is left out, once; safe from any thread.

    They are warnings of the standard logger ``smartbatch``, so they are on standard error unless the
    application configures its logging: a program that waits for an hour must not look as if it hung. They do
    not go through ``warnings``: what they tell turns out on a worker thread, where there is no line of the
    caller's to name, and where a filter that makes errors of warnings would break a request that was paid
    for.

    Args:
        bus: what it listens to.
    """

    def __init__(self, bus: EventBus) -> None:
        self._waits: dict[tuple[str, bool], float] = {}  # by model, and whether all calls wait: until when
        self._dropped: dict[tuple[str, str], object] = {}
        bus.subscribe(lambda event: self.dropped(event.field, event.reason), ParameterDropped)
        bus.subscribe(self._paused, PauseChanged)
        bus.subscribe(self._waits_long, CooldownStarted, LongWait, RetryScheduled)

    def dropped(self, field: str, reason: str) -> None:
        """Log a parameter that the provider does not take, unless it was logged before."""
        mine = object()
        if self._dropped.setdefault((field, reason), mine) is not mine:  # one step, so no lock
            return
        _LOGGER.warning("parameter %s is left out: %s", field, reason)

    def lost(self, requests: int, grace: float) -> None:
        """Log how many requests the interpreter's end failed that nobody asks again, unless there are none.

        Args:
            grace: seconds that the interpreter's end gives what is pending.
        """
        if requests:
            _LOGGER.warning(
                "requests not answered when the program ended: %d (exit_grace is %s); "
                "leave the client's with block, or call stop(), to wait for all",
                requests,
                duration(grace),
            )

    def _paused(self, event: PauseChanged) -> None:
        if event.paused:
            why = "" if event.reason is None else f": {event.reason}"
            _LOGGER.warning("%s: nothing is sent, as it is paused by %s%s", event.model, event.by, why)

    def _waits_long(self, event: Event) -> None:
        if not isinstance(event, CooldownStarted | LongWait | RetryScheduled):
            return
        all_wait = not isinstance(event, RetryScheduled)
        seconds = event.delay if isinstance(event, RetryScheduled) else event.seconds
        key, until = (event.model, all_wait), event.at + seconds
        if seconds <= LONG_WAIT or until <= self._waits.get(key, 0.0) + LONG_WAIT:
            return
        self._waits[key] = until
        what = "nothing is sent" if all_wait else "a request that failed is not sent again"
        _LOGGER.warning("%s: %s for %s, as the provider asked", event.model, what, duration(seconds))


def tell_unbounded(parallelism: int) -> None:
    """Log that a budget can be exceeded by answers without ``max_tokens``."""
    _LOGGER.warning(
        "max_tokens is not set, so an answer can cost more than is reserved for it: the budget can be "
        "exceeded by one call per worker (parallelism is %d), or by the answers of one batch; set max_tokens",
        parallelism,
    )


def tell_by_batch(model: str, requests: int, first: int, times: tuple[float, float], again: str) -> None:
    """Log that a list was sent by batch, which may take hours.

    Args:
        requests: those in the batch.
        first: further ones, which are sent in real time.
        times: seconds within which half and 95 of 100 such lists are answered.
        again: what returns the answers later, as code.
    """
    besides = f", and {first:,} in real time" if first else ""
    _LOGGER.warning(
        "%s: sent %s requests by batch%s. Half of such lists are answered within %s, 95 of 100 within %s. "
        "The process may exit; %s returns the answers. strategy='individual' sends all in real time",
        model,
        f"{requests:,}",
        besides,
        *map(duration, times),
        again,
    )
