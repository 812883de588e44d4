"""Threads of jobs, and waiting with a time limit, in the time of a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smartbatch._clock import Clock, Monitor
from smartbatch._fork import run_after_collection


class OwnThreads:
    """Starts threads, and knows them again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mine = threading.local()

    def start(self, run: Callable[[], None], name: str) -> None:
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

    def _run(self, run: Callable[[], None]) -> None:
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
