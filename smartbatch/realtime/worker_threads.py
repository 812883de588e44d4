"""Threads that make calls: started when there is work, kept for the next, ended when there is none for a
while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from smartbatch._clock import RealClock

__all__ = ["LINGER", "WorkerThreads"]

LINGER = 10.0
"""Seconds, on the machine's clock, after which a thread without work ends."""

_Work = Callable[[], None]


class WorkerThreads:
    """Daemon threads for work, as many as there is work at a time.

    ``concurrent.futures.ThreadPoolExecutor`` keeps every thread it ever started, and has the interpreter's
    exit wait for those in a call.

    Args:
        linger: seconds after which a thread without work ends; :data:`LINGER` when ``None``.
    """

    def __init__(self, linger: float | None = None) -> None:
        self._linger = LINGER if linger is None else linger
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._closed = False

    def run(self, work: _Work) -> None:
        """Have a thread do ``work``: the one that fell idle last, so that others may end, or a new one.

        Raises:
            RuntimeError: no thread could be started.
        """
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()  # a thread would keep an argument alive for as long as it runs
            threading.Thread(target=self._serve, args=(inbox,), name="smartbatch-worker", daemon=True).start()
        inbox.put(work)

    def close(self) -> None:
        """End the threads without work now, and each other one after its work."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for inbox in idle:
            inbox.put(None)

    def _serve(self, inbox: SimpleQueue[_Work | None]) -> None:
        work: _Work | None = RealClock.receive(inbox)
        while work is not None:
            work()
            work = None  # an idle thread keeps nothing alive
            with self._lock:
                if self._closed:
                    return
                self._idle.append(inbox)
            work = self._next(inbox)

    def _next(self, inbox: SimpleQueue[_Work | None]) -> _Work | None:
        """Return the next work for the thread with this inbox; ``None`` when there was none for a while."""
        try:
            return RealClock.receive(inbox, self._linger)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
        return RealClock.receive(inbox)  # something is being put in at this moment
