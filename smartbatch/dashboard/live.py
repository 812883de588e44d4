"""Live updates of a page, by Server-Sent Events or by polling.

The *version* of a page consists of the digests of its parts. Events carry it as their id, and browsers
send it back, so the server keeps no state per browser.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import final

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch._fork import PerProcess
from smartbatch.dashboard.page import DEFAULT_REFRESH_SECONDS, Page
from smartbatch.errors import SmartbatchError
from smartbatch.views.html import live_parts

HEARTBEAT_SECONDS = 2.0  # time between comments in a silent stream, which detect closed browsers
MAX_STREAM_SECONDS = 600.0  # time after which the browser reconnects
STOP_CHECK_SECONDS = 1.0  # time between checks for a stop of the server
WRITE_CHECK_SECONDS = 0.25  # time between checks for writes to the store
MIN_EARLY_LOOK_SECONDS = 5.0  # minimum time between updates caused by writes
RETRY_MILLISECONDS = 2_000  # time before a browser reopens a broken stream


@frozen
class Rendered:
    """The parts of a page that are updated, as HTML by element id."""

    parts: Mapping[str, str]
    refresh_seconds: float = DEFAULT_REFRESH_SECONDS

    @classmethod
    def of(cls, page: Page) -> Rendered:
        return cls(live_parts(page.view), page.refresh_seconds)

    @property
    def version(self) -> str:
        return ".".join(map(_digest, self.parts.values()))

    def changed(self, seen: str) -> dict[str, str]:
        """Return the parts that differ from the version ``seen``; all parts if it is the version of another
        page.
        """
        known = seen.split(".")
        if len(known) != len(self.parts):
            known = [""] * len(self.parts)
        return {
            name: body
            for (name, body), digest in zip(self.parts.items(), known, strict=True)
            if _digest(body) != digest
        }

    def news(self, seen: str) -> bytes:
        return json.dumps({"version": self.version, "sections": self.changed(seen)}).encode()


def stream(
    render: Callable[[], Rendered],
    seen: str,
    clock: Clock,
    stop: Callable[[], bool],
    written: Callable[[], int] = int,
) -> Iterator[bytes]:
    """Yield events with changed parts, and comments if nothing changes for a while.

    The page is rendered again after its ``refresh_seconds``, or sooner if it had not changed and the store is
    written to.

    Args:
        render: makes the page in its current state.
        seen: the version the browser has.
        stop: returns true when the server is stopping.
        written: returns a number that changes when the store is written to, if that can be observed.
    """
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    begun = sent_at = early_from = clock.now()
    while not stop() and clock.now() < begun + MAX_STREAM_SECONDS:
        before = written()
        try:
            page = render()
        except SmartbatchError:  # the browser then polls and gets the reason
            return
        if news := page.changed(seen):
            seen = page.version
            yield f"id: {seen}\nevent: sections\ndata: {json.dumps(news)}\n\n".encode()
            sent_at = clock.now()
        elif clock.now() >= sent_at + HEARTBEAT_SECONDS:
            yield b": here\n\n"
            sent_at = clock.now()
        look_at = clock.now() + page.refresh_seconds
        may_be_early = not news and clock.now() >= early_from
        while not stop() and (left := look_at - clock.now()) > 0:
            clock.sleep(min(WRITE_CHECK_SECONDS if may_be_early else STOP_CHECK_SECONDS, left))
            if may_be_early and written() != before:
                early_from = clock.now() + MIN_EARLY_LOOK_SECONDS
                break


@final
class OpenStreams:
    """Limits the streams of a process to ``limit``, so that they never occupy all threads of a server."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts = PerProcess(_StreamCount)

    def take(self) -> Callable[[], None] | None:
        """Reserve a place; return a function that releases it, or ``None`` if no place is free."""
        count = self._counts.get()
        with count.lock:
            if count.open >= self._limit:
                return None
            count.open += 1
        released = threading.Lock()

        def release() -> None:
            if released.acquire(blocking=False):
                with count.lock:
                    count.open -= 1

        return release

    @property
    def open(self) -> int:
        return self._counts.get().open


@final
class _StreamCount:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0


@final
class Streamed:
    """The body of a stream. It always releases its place, because a server always calls ``close``."""

    def __init__(self, events: Iterator[bytes], release: Callable[[], None]) -> None:
        self._events = events
        self._release = release

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._events)
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        self._release()


def _digest(body: str) -> str:
    return hashlib.blake2s(body.encode(), digest_size=6).hexdigest()
