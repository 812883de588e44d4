"""Start, stop, fork and exit: the moments at which threads, locks and pending work change hands."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from types import FrameType
from typing import Protocol

from smartbatch._clock import RealClock

__all__ = ["Living", "enrol", "on_main_thread", "reentered"]


class Living(Protocol):
    """Something with threads that must hear of a fork and of the interpreter's end."""

    def after_fork(self) -> None:
        """Called in a forked child: start empty, touch no inherited lock, socket or thread."""
        ...

    def at_exit(self, waited: float, *, interrupted: bool) -> None:
        """Called when the interpreter exits: finish within the grace, fail the rest.

        Args:
            waited: seconds the exit has already waited for others; they count against the grace.
            interrupted: whether Ctrl-C ended the script, so that nothing more should start.
        """
        ...


# A plain dictionary of weak references: a WeakSet keeps a guard that a fork could catch half-way.
_living: dict[int, weakref.ref[Living]] = {}


def enrol(living: Living) -> None:
    """Tell ``living`` about forks and the exit for as long as it exists."""
    key = id(living)
    _living[key] = weakref.ref(living, lambda _: _living.pop(key, None))


def _everybody() -> list[Living]:
    return [living for living in (reference() for reference in list(_living.values())) if living is not None]


def _after_fork_in_child() -> None:
    from smartbatch.realtime import shared_quota

    shared_quota.forget_all()
    for living in _everybody():
        living.after_fork()


def _at_exit() -> None:
    began = RealClock.now()
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt
    for living in _everybody():
        living.at_exit(RealClock.now() - began, interrupted=interrupted)


def on_main_thread() -> bool:
    """Whether this is the thread that signals interrupt."""
    return threading.current_thread() is threading.main_thread()


def reentered() -> bool:
    """Whether the main thread is inside this library already, beneath the code that calls it now.

    So it is in a signal handler, which may have interrupted a thread that holds a lock, and in a hook or an
    observer that runs on the main thread. Other threads are never interrupted.
    """
    if not on_main_thread():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.startswith("smartbatch.") and not name.startswith("smartbatch.cli.")


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
