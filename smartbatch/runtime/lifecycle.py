"""Start, stop, fork and exit: the moments at which threads, locks and pending work change hands."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol

from smartbatch.clock import RealClock

__all__ = ["Living", "enrol"]


class Living(Protocol):
    """Something with threads that must hear of a fork and of the interpreter's end."""

    def after_fork(self) -> None:
        """Called in a forked child: start empty, touch no inherited lock, socket or thread."""
        ...

    def at_exit(self, waited: float) -> None:
        """Called when the interpreter exits: finish within the grace, fail the rest.

        Args:
            waited: seconds the exit has already waited for others; they count against the grace.
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
    from smartbatch.runtime import quotas

    quotas.forget_all()
    for living in _everybody():
        living.after_fork()


def _at_exit() -> None:
    began = RealClock.now()
    for living in _everybody():
        living.at_exit(RealClock.now() - began)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
