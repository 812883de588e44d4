"""Listeners for a client's events: those of the library, the user's observers, and warnings for the user."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from smartbatch._fork import on_main_thread
from smartbatch._words import duration
from smartbatch.events import (
    CachingStopped,
    CooldownStarted,
    Event,
    LongWait,
    Observer,
    ParameterDropped,
    PauseChanged,
    PriceUnknown,
    RetryScheduled,
)
from smartbatch.observe import logs

_E = TypeVar("_E", bound=Event)


class EventBus:
    """Calls all listeners with each event, on the calling thread. Takes no lock; safe from any thread.

    Args:
        observers: the user's observers. The caller may append to the list: appending is atomic, so no
            observer is lost if several threads add one at the same time.
    """

    def __init__(self, observers: list[Observer]) -> None:
        self._own: list[Callable[[Event], object]] = []
        self._of_class: dict[type[Event], list[Callable[[Any], object]]] = {}
        self._observers = observers

    def subscribe(self, listener: Callable[[_E], object], *classes: type[_E]) -> None:
        """Register a listener of the library for events of ``classes``; it must not raise."""
        for each in classes:
            self._of_class.setdefault(each, []).append(listener)

    def subscribe_to_all(self, listener: Callable[[Event], object]) -> None:
        """Register a listener of the library for every event; it must not raise."""
        self._own.append(listener)

    def publish_event(self, event: Event) -> None:
        """Call all listeners with an event. If an observer raises, its exception is logged, and the others
        are still called.

        Raises:
            BaseException: raised by a signal handler on the main thread while an observer was running; the
                user wants to stop.
        """
        for listener in self._own:
            listener(event)
        for listener in self._of_class.get(type(event), ()):
            listener(event)
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # on a worker, SystemExit would end only that thread
                if not isinstance(error, Exception) and on_main_thread():
                    raise
                logs.warn("observer_raised", observed=event.name, error=type(error).__name__)
                logs.user_error("an observer", error)


LONG_WAIT_SECONDS = 60.0

_LOGGER = logging.getLogger("smartbatch")


class UserWarnings:
    """Logs each long wait for a model, omitted parameter, unknown price and useless cache once. Safe from any
    thread.

    The standard logger ``smartbatch`` prints these warnings on standard error by default, so a program that
    waits for an hour does not seem to hang. The module ``warnings`` is not used, because a filter that turns
    warnings into errors would fail a request that has been paid for.

    Args:
        bus: the source of the events.
    """

    def __init__(self, bus: EventBus) -> None:
        # end of the last logged wait, by model and whether all its calls wait
        self._waits: dict[tuple[str, bool], float] = {}
        self._dropped: dict[tuple[str, str], object] = {}
        bus.subscribe(lambda event: self.dropped(event.field, event.reason), ParameterDropped)
        self._uncached: dict[tuple[str, bool], object] = {}  # by model and whether in batches
        bus.subscribe(self._caching_stopped, CachingStopped)
        bus.subscribe(self._paused, PauseChanged)
        bus.subscribe(_price_unknown, PriceUnknown)
        bus.subscribe(self._waits_long, CooldownStarted, LongWait, RetryScheduled)

    def dropped(self, field: str, reason: str) -> None:
        """Log a parameter that the provider does not accept, unless it has been logged already."""
        mine = object()
        if self._dropped.setdefault((field, reason), mine) is not mine:  # atomic, so no lock is needed
            return
        _LOGGER.warning("parameter %s is left out: %s", field, reason)

    def lost(self, requests: int, grace: float) -> None:
        """Log that requests failed because the program ended, and are not retried.

        Args:
            requests: the number of these requests; nothing is logged if it is 0.
            grace: seconds for which the interpreter waits for pending requests at exit.
        """
        if requests:
            _LOGGER.warning(
                "requests not answered when the program ended: %d (exit_grace is %s); "
                "leave the client's with block, or call stop(), to wait for all",
                requests,
                duration(grace),
            )

    def _caching_stopped(self, event: CachingStopped) -> None:
        """Log only the first prefix of a model, because the others often stop for the same reason."""
        mine = object()
        if self._uncached.setdefault((event.model, event.batch), mine) is not mine:
            return
        if event.batch:
            text = "%s: later batches do not use the provider's cache for shared prefixes: %s"
            _LOGGER.warning(text, event.model, event.reason)
        else:
            text = "%s: the provider's cache is no longer used for a shared prefix of about %s tokens: %s"
            _LOGGER.warning(text, event.model, f"{event.tokens:,}", event.reason)

    def _paused(self, event: PauseChanged) -> None:
        if event.paused:
            why = "" if event.reason is None else f": {event.reason}"
            _LOGGER.warning("%s: nothing is sent while it is paused by %s%s", event.model, event.by, why)

    def _waits_long(self, event: Event) -> None:
        if not isinstance(event, CooldownStarted | LongWait | RetryScheduled):
            return
        all_wait = not isinstance(event, RetryScheduled)
        seconds = event.delay if isinstance(event, RetryScheduled) else event.seconds
        key, until = (event.model, all_wait), event.at + seconds
        if seconds <= LONG_WAIT_SECONDS or until <= self._waits.get(key, 0.0) + LONG_WAIT_SECONDS:
            return
        self._waits[key] = until
        what = "nothing is sent" if all_wait else "a request that failed is not sent again"
        _LOGGER.warning("%s: %s for %s, as the provider requested", event.model, what, duration(seconds))


def _price_unknown(event: PriceUnknown) -> None:
    _LOGGER.warning(
        "%s: the price%s is unknown, so totals do not include its cost; set prices={%r: Price(input=…, "
        "output=…)} or the same in a settings file, with 0 if the server is free",
        event.model,
        " in batches" if event.batch else "",
        event.model,
    )


def warn_of_unbounded_answers(parallelism: int) -> None:
    _LOGGER.warning(
        "max_tokens is not set, so an answer can cost more than is reserved for it: the budget can be "
        "exceeded by one call per worker (parallelism is %d), or by the answers of one batch; set max_tokens",
        parallelism,
    )


def warn_of_batch(model: str, requests: int, first: int, times: tuple[float, float], again: str) -> None:
    """Log that a list was sent by batch, which may take hours.

    Args:
        model: as ``provider:model``.
        requests: number of requests in the batch.
        first: number of further requests, which are sent in real time.
        times: seconds within which 50 % and 95 % of such lists are answered.
        again: code that returns the answers later.
    """
    besides = f" and {first:,} in real time" if first else ""
    _LOGGER.warning(
        "%s: sent %s requests as a batch%s: usually done in %s, almost certainly within %s. The process may "
        "exit; %s returns the answers. strategy='individual' sends all in real time",
        model,
        f"{requests:,}",
        besides,
        *map(duration, times),
        again,
    )
