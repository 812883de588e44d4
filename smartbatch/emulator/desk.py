"""What answers requests about files and batches, and what it works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

from smartbatch.emulator.api import Reply
from smartbatch.emulator.head import Head
from smartbatch.emulator.house import House
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

    house: House
    settings: Settings
    now: float
    url: str


BatchCall: TypeAlias = "Callable[[Head, bytes, Desk], Reply]"
"""Answers a request by its head and body; raises ``Refused``, or lets ``Lost`` pass."""
