"""Ctrl-C and SIGTERM during a run: the first requests an orderly stop, the second stops immediately."""

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
    """Catches the first signal while the block runs; does nothing outside the main thread.

    A handler that raises could interrupt the code between writing a row and recording it, and a handler must
    not take locks. Therefore it only puts the signal into a reentrant queue, from which a separate thread
    takes it and calls ``on_first``, once.

    Attributes:
        caught: the number of the first signal, or 0.
    """

    def __init__(self, on_first: Callable[[], object]) -> None:
        self._on_first = on_first
        self._before: dict[int, Any] = {}
        self._received: SimpleQueue[int] = SimpleQueue()
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
        self._received.put(0)
        if self._before and kind is None:  # after an error, do not wait for the daemon thread
            RealClock.join(self._thread)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught = number
        self._received.put(number)

    def _listen(self) -> None:
        if RealClock.receive(self._received):
            self._on_first()
