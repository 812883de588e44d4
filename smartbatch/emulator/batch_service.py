"""What answers requests about files and batches, and what it works with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias, overload

from attrs import frozen

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.provider_api import Reply
from smartbatch.emulator.settings import Settings

__all__ = ["BatchCall", "Desk"]


@frozen
class Desk:
    """What a request about files or batches is answered with.

    Attributes:
        house: has the files and batches.
        settings: those in force.
        now: monotonic seconds; :meth:`House.unix` makes Unix seconds of them.
        url: the server's own address as the client calls it, without a path.
    """

    backend: BatchBackend
    settings: Settings
    now: float
    url: str

    @overload
    def say(self, moment: float) -> str: ...
    @overload
    def say(self, moment: None) -> None: ...
    def say(self, moment: float | None) -> str | None:
        """Return monotonic seconds as the date and time of RFC 3339 in UTC; ``None`` for ``None``."""
        if moment is None:
            return None
        return datetime.fromtimestamp(self.backend.unix(moment), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


BatchCall: TypeAlias = "Callable[[Head, bytes, Desk], Reply]"
"""Answers a request by its head and body; raises ``Refused``, or lets ``Lost`` pass."""
