"""An iterable that is read on a thread of its own, so that results do not wait for its next item."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from types import GeneratorType
from typing import Generic, TypeVar

from smartbatch._clock import Clock

_T = TypeVar("_T")

_MOST_AHEAD = 64
"""Items that have been read and not been taken: enough to keep whoever takes them busy."""


class ReadAhead(Iterator[_T], Generic[_T]):
    """Reads items on one thread, in the context of the caller, never more than were asked for.

    The thread starts when items are first asked for and ends with the items, or after :meth:`close`. What it
    waits for within an item cannot be interrupted; it is a daemon, so the interpreter does not wait for it.

    Args:
        items: read and closed by the thread.
        given: the iterable that they are made from; closed as well if it is a generator.
        clock: time and waiting.
    """

    def __init__(self, items: Iterator[_T], given: object, clock: Clock) -> None:
        self._items = items
        self._given = given
        self._clock = clock
        self._monitor = clock.monitor()
        self._read: deque[_T] = deque()
        self._granted = 0
        self._reading = False
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None
        self._wake: Callable[[], None] | None = None
        self._process = os.getpid()

    @property
    def is_ready(self) -> bool:
        """Whether the next item, or the end, can be taken without waiting."""
        return bool(self._read) or self._ended

    def ask(self, room: int, wake: Callable[[], None]) -> None:
        """Have items read, as many as there is room for at most, those included that were not taken yet.

        Args:
            wake: called by the thread whenever there is something to take.
        """
        with self._monitor:
            granted = min(room, _MOST_AHEAD) - len(self._read) - self._reading
            self._granted = max(0, granted)
            if self._granted:
                self._monitor.notify()
        if self._wake is None:
            self._wake = wake
            self._clock.spawned()
            run = copy_context().run
            threading.Thread(target=run, args=(self._run,), name="smartbatch-prompts", daemon=True).start()

    def __next__(self) -> _T:
        if self._read:
            return self._read.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Read no further; the thread closes the items. Returns at once."""
        if os.getpid() != self._process:  # a forked child has no such thread, and may not take its lock
            return
        with self._monitor:
            self._closed, self._granted = True, 0
            self._read.clear()
            self._monitor.notify()
        if self._wake is None:  # no thread has begun
            self._close_items()

    def _run(self) -> None:
        self._clock.began()
        try:
            while self._may_read():
                try:
                    item = next(self._items)
                except BaseException as error:
                    self._end(error)
                    break
                with self._monitor:
                    self._reading = False
                    if not self._closed:
                        self._read.append(item)
                self._notify()
            self._close_items()
        finally:
            self._clock.ended()

    def _may_read(self) -> bool:
        """Wait until an item is asked for; return whether one is, and nobody closed this."""
        with self._monitor:
            self._monitor.wait_for(lambda: self._granted or self._closed)
            self._granted -= 1
            self._reading = not self._closed
            return self._reading

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, StopIteration):
            if "thread" in str(error).lower():
                error.add_note(
                    "the prompts are read on a thread of their own; read_ahead=False reads them on the "
                    "thread that asks for the results"
                )
            self._error = error
        with self._monitor:
            self._ended = True
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake()

    def _close_items(self) -> None:
        for each in (self._items, self._given):
            if isinstance(each, GeneratorType):
                each.close()
