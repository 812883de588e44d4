"""Tells the user which parameters of requests a provider does not take."""

from __future__ import annotations

import logging

from smartbatch.events import ParameterDropped

_LOGGER = logging.getLogger("smartbatch")


class DroppedParameters:
    """Logs each parameter that is left out once; a listener to events, safe from any thread.

    It is a warning of the standard logger ``smartbatch``, so it is on standard error unless the application
    configures its logging. It does not go through ``warnings``: a parameter turns out to be dropped on a
    worker thread, where there is no line of the caller's to name, and where a filter that makes errors of
    warnings would break a request that was paid for.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], object] = {}

    def __call__(self, event: ParameterDropped) -> None:
        self.tell(event.field, event.reason)

    def tell(self, field: str, reason: str) -> None:
        """Log a parameter, unless it was logged before."""
        mine = object()
        if self._told.setdefault((field, reason), mine) is not mine:  # one step, so no lock
            return
        _LOGGER.warning("parameter %s is left out: %s", field, reason)
