"""Threads for jobs, and waits whose time limit is measured by a given clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define

from smartbatch._clock import Clock, Monitor
from smartbatch._fork import run_after_collection
from smartbatch.types import T

MAX_HUNG_READS = 8
"""Maximum number of abandoned reads that are still running."""


class OwnThreads:
    """Starts threads and recognizes them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mine = threading.local()

    def start(self, run: Callable[[], object], name: str) -> None:
        """Start a daemon thread, which cannot keep the interpreter alive if a call never returns.

        Raises:
            RuntimeError: the system allows no further thread, or the interpreter is exiting.
        """
        self._clock.spawned()
        try:
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True).start()
        except RuntimeError:
            self._clock.unspawned()
            raise

    def has_current(self) -> bool:
        """Return true on one of these threads, for example in a user's observer."""
        return getattr(self._mine, "here", False)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Treat the caller's thread as one of these while it runs user code."""
        before = self.has_current()
        self._mine.here = True
        try:
            yield
        finally:
            self._mine.here = before

    def _run(self, run: Callable[[], object]) -> None:
        self._clock.began()
        try:
            with self.counted():
                run()
        finally:
            self._clock.ended()


def wait_while(condition: Callable[[], object], monitor: Monitor, clock: Clock, timeout: float) -> None:
    """Wait until ``condition`` is false, at most ``timeout`` seconds. The monitor must be held."""
    until = clock.now() + timeout
    while condition() and (remaining := until - clock.now()) > 0:
        monitor.wait(remaining)


def run_within(run: Callable[[], object], seconds: float, clock: Clock, name: str) -> bool:
    """Run something that may hang, such as a read from a server, on a separate daemon thread.

    Returns:
        true if it ended within ``seconds``; otherwise it continues, and its exception is dropped.

    Raises:
        BaseException: raised by ``run`` in time.
    """
    monitor = clock.monitor()
    ended: list[BaseException | None] = []

    def act() -> None:
        raised: BaseException | None = None
        try:
            run()
        except BaseException as error:  # raised again in the waiting thread
            raised = error
        with monitor:
            ended.append(raised)
            monitor.notify_all()

    try:
        OwnThreads(clock).start(act, name)
    except RuntimeError:  # no thread can be started, but an existing one may run it
        if not run_after_collection(act):
            run()
            return True
    with monitor:
        wait_while(lambda: not ended, monitor, clock, seconds)
    if ended and ended[0] is not None:
        raise ended[0]
    return bool(ended)


class TimedReads:
    """Runs reads that may hang, each on a separate thread. Thread-safe.

    When :data:`MAX_HUNG_READS` abandoned threads are running, further reads wait for one of them to end.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monitor = clock.monitor()
        self._hung = 0

    def read(self, read: Callable[[], T], seconds: float, name: str) -> list[T]:
        """Return the value of ``read`` in a list, which is empty if it does not arrive within ``seconds``.

        Raises:
            BaseException: raised by ``read`` in time.
        """
        until = self._clock.now() + seconds
        found: list[T] = []
        timed = _TimedRead()

        def answer() -> None:
            try:
                found.append(read())
            finally:
                with self._monitor:
                    timed.ended = True
                    self._hung -= timed.given_up
                    self._monitor.notify_all()

        with self._monitor:
            wait_while(lambda: self._hung >= MAX_HUNG_READS, self._monitor, self._clock, seconds)
            if self._hung >= MAX_HUNG_READS:
                return []
        if run_within(answer, until - self._clock.now(), self._clock, name):
            return found
        with self._monitor:
            if not timed.ended:
                timed.given_up = True
                self._hung += 1
        return []


@define(eq=False)
class _TimedRead:
    ended: bool = False
    given_up: bool = False  # no caller waits for the read
