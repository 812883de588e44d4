"""Ctrl-C and SIGTERM during a run: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from smartbatch._clock import Clock

__all__ = ["Interrupts"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Catches the first signal while the block runs; outside the main thread it does nothing.

    An exception out of a signal handler could strike between a row's write and its booking, and a handler
    may not take locks. So the handler only marks the signal and pokes a pipe; a thread of its own does the
    rest.

    Args:
        clock: waits out the grace.
        on_first: called once, on that thread, after the first signal.
        on_late: called when the block still runs ``grace`` seconds later.
        grace: seconds.

    Attributes:
        caught: the first signal's number, 0 while there was none.
    """

    def __init__(
        self, clock: Clock, *, on_first: Callable[[], object], on_late: Callable[[], object], grace: float
    ) -> None:
        self._clock = clock
        self._on_first = on_first
        self._on_late = on_late
        self._grace = grace
        self._over = clock.monitor()
        self._ended = False
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self.caught = 0

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            self._thread = threading.Thread(target=self._listen, name="smartbatch-interrupts", daemon=True)
            self._thread.start()
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with self._over:
            self._ended = True
            self._over.notify_all()
        if self._pipe is not None and self._thread is not None:
            os.write(self._pipe[1], b".")
            if kind is None:  # else somebody is in a hurry; the thread is a daemon
                self._thread.join()
                for fd in self._pipe:
                    os.close(fd)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught = number
        if self._pipe is not None:
            os.write(self._pipe[1], b"!")

    def _listen(self) -> None:
        assert self._pipe is not None
        if os.read(self._pipe[0], 1) != b"!":
            return
        self._on_first()
        deadline = self._clock.now() + self._grace
        with self._over:
            while not self._ended and (left := deadline - self._clock.now()) > 0:
                self._over.wait(left)
            late = not self._ended
        if late:
            self._on_late()
