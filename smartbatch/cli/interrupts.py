"""Ctrl-C and SIGTERM during a run: the first asks for an orderly end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final

from smartbatch._clock import RealClock

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Catches the first signal while the block runs; outside the main thread it does nothing.

    A handler that raised could come between the write of a row and the record of it, and a handler may not
    take locks. So the handler only marks the signal and puts it into a queue that may be used in handlers; a
    thread of its own takes it from there and calls ``on_first``.

    Args:
        on_first: called once, on that thread, after the first signal.

    Attributes:
        caught: the first signal's number, 0 while there was none.
    """

    def __init__(self, on_first: Callable[[], object]) -> None:
        self._on_first = on_first
        self._before: dict[int, Any] = {}
        self._heard: SimpleQueue[int] = SimpleQueue()
        self._thread = threading.Thread(target=self._listen, name="smartbatch-interrupts", daemon=True)
        self.caught = 0

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._thread.start()
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._heard.put(0)
        if self._before and kind is None:  # after an error the thread, a daemon, is not waited for
            RealClock.join(self._thread)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught = number
        self._heard.put(number)

    def _listen(self) -> None:
        if RealClock.receive(self._heard):
            self._on_first()
