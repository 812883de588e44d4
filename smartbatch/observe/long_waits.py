"""Tells the user of long waits: of more than a minute that a provider asked for, and of pauses by people."""

from __future__ import annotations

import logging

from smartbatch.events import CooldownStarted, Event, LongWait, PauseChanged, RetryScheduled
from smartbatch.observe.text import duration

LONG_WAIT = 60.0
"""Seconds."""

_LOGGER = logging.getLogger("smartbatch")


class LongWaits:
    """Logs each long wait of a model once; a listener to events, safe from any thread.

    It is a warning of the standard logger ``smartbatch``, so it is on standard error unless the application
    configures its logging: a program that waits for an hour must not look as if it hung.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, bool], float] = {}  # by model, and whether all calls wait: until when

    def __call__(self, event: Event) -> None:
        if isinstance(event, PauseChanged) and event.paused:
            why = "" if event.reason is None else f": {event.reason}"
            _LOGGER.warning("%s: nothing is sent, as it is paused by %s%s", event.model, event.by, why)
        if not isinstance(event, CooldownStarted | LongWait | RetryScheduled):
            return
        all_wait = not isinstance(event, RetryScheduled)
        seconds = event.delay if isinstance(event, RetryScheduled) else event.seconds
        key, until = (event.model, all_wait), event.at + seconds
        if seconds <= LONG_WAIT or until <= self._told.get(key, 0.0) + LONG_WAIT:
            return
        self._told[key] = until
        what = "nothing is sent" if all_wait else "a request that failed is not sent again"
        _LOGGER.warning("%s: %s for %s, as the provider asked", event.model, what, duration(seconds))
