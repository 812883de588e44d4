"""Threads of jobs, and waiting with a time limit, in the time of a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define

from smartbatch._clock import Clock, Monitor
from smartbatch._fork import run_after_collection
from smartbatch.types import T

MOST_HUNG = 8
"""Reads that are left behind at most, because what they read does not answer."""


class OwnThreads:
    """Starts threads, and knows them again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mine = threading.local()

    def start(self, run: Callable[[], object], name: str) -> None:
        """Start a daemon thread: a call that never returns must not keep the interpreter from ending.

        Raises:
            RuntimeError: the system allows no further thread, or the interpreter ends.
        """
        self._clock.spawned()
        try:
            threading.Thread(target=self._run, args=(run,), name=name, daemon=True).start()
        except RuntimeError:
            self._clock.unspawned()
            raise

    def has_current(self) -> bool:
        """Whether the caller runs on one of these threads, for example in an observer of the user's."""
        return getattr(self._mine, "here", False)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the caller's thread among these for a while: something of the user's runs on it."""
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
    """Wait until ``condition`` is false, or for ``timeout`` seconds. The monitor must be held."""
    until = clock.now() + timeout
    while condition() and (remaining := until - clock.now()) > 0:
        monitor.wait(remaining)


def run_within(run: Callable[[], object], seconds: float, clock: Clock, name: str) -> bool:
    """Do what may hang, such as a read of a server that was stopped, on a daemon thread of its own.

    Returns:
        whether it has ended within ``seconds``; else it goes on, and what it raises then is dropped.

    Raises:
        BaseException: what ``run`` raised in time.
    """
    monitor = clock.monitor()
    ended: list[BaseException | None] = []

    def act() -> None:
        raised: BaseException | None = None
        try:
            run()
        except BaseException as error:  # raised where it is waited for
            raised = error
        with monitor:
            ended.append(raised)
            monitor.notify_all()

    try:
        OwnThreads(clock).start(act, name)
    except RuntimeError:  # no thread can be had, but there may be one
        if not run_after_collection(act):
            run()
            return True
    with monitor:
        wait_while(lambda: not ended, monitor, clock, seconds)
    if ended and ended[0] is not None:
        raise ended[0]
    return bool(ended)


class TimedReads:
    """Reads that may hang, each on a thread of its own. Safe from any thread.

    Who asks again and again while nothing answers leaves :data:`MOST_HUNG` threads behind, and not one with
    each question: the others wait for one of these first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._monitor = clock.monitor()
        self._hung = 0

    def read(self, read: Callable[[], T], seconds: float, name: str) -> list[T]:
        """Return what ``read`` returns within ``seconds``, in a list that is empty where it did not.

        Raises:
            BaseException: what ``read`` raised in time.
        """
        until = self._clock.now() + seconds
        found: list[T] = []
        asked = _Asked()

        def answer() -> None:
            try:
                found.append(read())
            finally:
                with self._monitor:
                    asked.ended = True
                    self._hung -= asked.given_up
                    self._monitor.notify_all()

        with self._monitor:
            wait_while(lambda: self._hung >= MOST_HUNG, self._monitor, self._clock, seconds)
            if self._hung >= MOST_HUNG:
                return []
        if run_within(answer, until - self._clock.now(), self._clock, name):
            return found
        with self._monitor:
            if not asked.ended:
                asked.given_up = True
                self._hung += 1
        return []


@define(eq=False)
class _Asked:
    """A read, whether it has ended, and whether nobody waits for it any more."""

    ended: bool = False
    given_up: bool = False
