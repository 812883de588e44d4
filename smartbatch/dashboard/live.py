"""What changed on a page while somebody looks: by Server-Sent Events, and by polling where these do not go.

What a browser shows is named by the digests of the parts it has, the *version*. It comes with each event
as its id, and back with each question, so the server keeps nothing of those who look.
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
from smartbatch.dashboard.page import EVERY, TICK, Page
from smartbatch.errors import SmartbatchError
from smartbatch.views.html import live_parts

HEARTBEAT = 2.0
"""Seconds after which a stream without news says that it is there. By that a browser that went away is
noticed, so it is short: whoever goes through the pages leaves a stream on each."""
LONGEST = 600.0
"""Seconds of a stream; the browser opens the next one with the version it has."""
NOTICED, SOONER_EVERY = 0.25, 5.0
"""Seconds within which it is noticed that the store was written to after a look without news, and seconds
between two looks for that reason, as most of what is written changes nothing that is shown."""
RETRY = 2_000
"""Milliseconds after which a browser opens a broken stream again."""


@frozen
class Rendered:
    """What of a page is renewed: HTML by the ids of its parts, and the seconds until the next look."""

    parts: Mapping[str, str]
    every: float = EVERY

    @classmethod
    def of(cls, page: Page) -> Rendered:
        """Return the parts of a page."""
        return cls(live_parts(page.view), page.every)

    @property
    def version(self) -> str:
        """What names the present content of the parts."""
        return ".".join(map(_digest, self.parts.values()))

    def changed(self, seen: str) -> dict[str, str]:
        """Return the parts that differ from the version ``seen``; all, if that is of another page."""
        known = seen.split(".")
        if len(known) != len(self.parts):
            known = [""] * len(self.parts)
        return {
            name: body
            for (name, body), digest in zip(self.parts.items(), known, strict=True)
            if _digest(body) != digest
        }

    def news(self, seen: str) -> bytes:
        """Return the answer to a question for news: the version, and what changed, as JSON."""
        return json.dumps({"version": self.version, "sections": self.changed(seen)}).encode()


def stream(
    render: Callable[[], Rendered],
    seen: str,
    clock: Clock,
    stop: Callable[[], bool],
    written: Callable[[], int] = int,
) -> Iterator[bytes]:
    """Yield events with what changed, and comments where nothing did. The next look is after the seconds that
    the page names; sooner, where nothing had changed and the store is written to.

    Args:
        render: makes the page as it is now.
        seen: the version the browser has.
        stop: whether the server ends.
        written: returns what changes when the store is written to; the same where nobody can tell.
    """
    yield f"retry: {RETRY}\n\n".encode()
    begun = spoke = sooner_from = clock.now()
    while not stop() and clock.now() < begun + LONGEST:
        before = written()
        try:
            page = render()
        except SmartbatchError:  # the browser asks again, and is told then
            return
        if news := page.changed(seen):
            seen = page.version
            yield f"id: {seen}\nevent: sections\ndata: {json.dumps(news)}\n\n".encode()
            spoke = clock.now()
        elif clock.now() >= spoke + HEARTBEAT:
            yield b": here\n\n"
            spoke = clock.now()
        look_at = clock.now() + page.every
        sooner = not news and clock.now() >= sooner_from
        while not stop() and (left := look_at - clock.now()) > 0:
            clock.sleep(min(NOTICED if sooner else TICK, left))
            if sooner and written() != before:
                sooner_from = clock.now() + SOONER_EVERY
                break


@final
class OpenStreams:
    """Counts the streams of this process, so that they never take all of a server's threads.

    Args:
        most: at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._states = PerProcess(_Count)

    def take(self) -> Callable[[], None] | None:
        """Return what gives the place of a stream back; ``None`` where there are enough."""
        state = self._states.get()
        with state.lock:
            if state.open >= self._most:
                return None
            state.open += 1
        given = threading.Lock()

        def give_back() -> None:
            if given.acquire(blocking=False):
                with state.lock:
                    state.open -= 1

        return give_back

    @property
    def open(self) -> int:
        """Streams that are open in this process."""
        return self._states.get().open


@final
class _Count:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0


@final
class Streamed:
    """The body of a stream, which gives its place back however it ends: a server calls ``close``."""

    def __init__(self, events: Iterator[bytes], give_back: Callable[[], None]) -> None:
        self._events = events
        self._give_back = give_back

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._events)
        except BaseException:
            self._give_back()
            raise

    def close(self) -> None:
        """Called by the server at the end, also where the browser went away."""
        self._give_back()


def _digest(body: str) -> str:
    return hashlib.blake2s(body.encode(), digest_size=6).hexdigest()
