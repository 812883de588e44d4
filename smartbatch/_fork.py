"""Forks, signals, interpreter exit, and modules imported at first use.

This module has all hooks of the library. A forked child must not take an inherited lock, because the thread
holding it may not exist there. So registered objects start empty and touch nothing they inherited.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging  # noqa: F401  Hooks run in reverse order: its lock must be taken after ours have waited.
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from smartbatch._clock import RealClock


class Forked(Protocol):
    def after_fork(self) -> None:
        """Runs in the child: start empty, and touch no inherited lock, socket or thread."""
        ...


class Awaited(Forked, Protocol):
    def before_fork(self) -> None:
        """Runs in the parent, on the thread that forks; the fork waits for it."""
        ...

    def after_fork_in_parent(self) -> None:
        """Runs in the parent after the fork, on the same thread."""
        ...


class Stoppable(Protocol):
    """Has threads that must end before the interpreter exits."""

    def at_exit(self, waited: float, *, interrupted: bool) -> None:
        """Runs when the interpreter exits: finish within the grace period, then fail the rest.

        Args:
            waited: seconds of the grace period already spent on other objects.
            interrupted: Ctrl-C ended the script, so nothing more should start.
        """
        ...


_T = TypeVar("_T")


class _Registry(Generic[_T]):
    """Weak references in insertion order, each with its owner.

    A plain dictionary, because a fork in the middle of a WeakSet operation would corrupt the child's copy.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], tuple[int, bool]]] = {}

    def add(self, one: _T) -> None:
        key = id(one)
        self._known[key] = weakref.ref(one, lambda _: self._known.pop(key, None)), identity()

    def living(self, of: tuple[int, bool] | None = None) -> list[_T]:
        """Return the objects that still exist, or only those added under the identity ``of``."""
        return [
            one
            for reference, owner in list(self._known.values())
            if (of is None or owner == of) and (one := reference()) is not None
        ]


_forked: _Registry[Forked] = _Registry()
_awaited: _Registry[Awaited] = _Registry()
_stoppable: _Registry[Stoppable] = _Registry()

_NATIVE = threading.Lock
_noticed = os.getpid()
"""Process in which this module was imported or the latest fork was noticed."""


def identity() -> tuple[int, bool]:
    """Return the owner of locks, threads and sockets: the process ID, and whether threads are still the ones
    at import. ``gevent.monkey`` may have replaced them with green threads since.
    """
    return os.getpid(), threading.Lock is _NATIVE


def notice_fork() -> None:
    """Run the fork hooks now if the fork did not, as with uWSGI and C extensions.

    Call this before creating anything for the process and before waiting for anything inherited.
    """
    if _noticed == os.getpid():
        return
    with _noticing.setdefault(identity(), threading.RLock()):  # ``setdefault`` is atomic
        if _noticed != os.getpid():
            _after_fork_in_child()


_noticing: dict[tuple[int, bool], threading.RLock] = {}


def on_fork(one: Forked) -> None:
    """Call ``one.after_fork()`` in each forked child as long as ``one`` exists."""
    notice_fork()  # otherwise the child would treat ``one`` as its parent's
    _forked.add(one)


def around_fork(one: Awaited) -> None:
    """Like :func:`on_fork`, but also call the methods for the parent before and after each fork."""
    _awaited.add(one)
    _forked.add(one)


def on_exit(one: Stoppable) -> None:
    """Call ``one.at_exit`` when the interpreter exits, if ``one`` still exists.

    It is not called in a forked child, which must not wait for its parent's requests, nor after gevent
    replaced the threads of ``one``: waiting for their locks would block all green threads.
    """
    _stoppable.add(one)


class PerProcess(Generic[_T]):
    """One value for each :func:`identity`, created at first use.

    A forked child creates its own value, even if Python's fork hooks did not run. So does a process whose
    threads were replaced by green ones.

    The object itself has no lock, and :meth:`get` takes none once the value exists. Threads that meet at the
    first use wait on a lock of this identity, never on an inherited one. The parent's value is kept until
    :meth:`inherited` returns it.

    Args:
        make: creates the value; after an error, the next use tries again.
    """

    __slots__ = ("_locks", "_make", "_values")

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._values: dict[tuple[int, bool], _T] = {}
        self._locks: dict[tuple[int, bool], threading.RLock] = {}

    def get(self) -> _T:
        value = self.peek()
        if value is None:
            notice_fork()
            with self.lock():
                value = self.peek()
                if value is None:
                    value = self._values[identity()] = self._make()
        return value

    def peek(self) -> _T | None:
        """Return the value of this process if it exists. Takes no lock."""
        return self._values.get((os.getpid(), threading.Lock is _NATIVE))

    def take(self) -> _T | None:
        """Remove and return the value of this process, if it exists."""
        with self.lock():
            return self._values.pop(identity(), None)

    def inherited(self) -> _T | None:
        """Remove and return the value of the process this one was forked from. Takes no lock."""
        others = [owner for owner in self._values if owner[0] != os.getpid()]
        return self._values.pop(others[-1]) if others else None

    def lock(self) -> threading.RLock:
        """Return the lock for creating and taking the value. ``setdefault`` is atomic."""
        return self._locks.setdefault(identity(), threading.RLock())


class _Collected:
    """Runs work that finalizers queue, on a thread that exists while anything is running."""

    def __init__(self) -> None:
        self.todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = 0

    def begin(self) -> None:
        with self._lock:
            self._running += 1
            if self._running == 1:
                threading.Thread(target=self._run, name="smartbatch-collected", daemon=True).start()

    def offer(self, act: Callable[[], object]) -> bool:
        """Queue ``act`` and return True, or return False if there is no thread. Takes no lock."""
        if self._running:
            self.todo.put(act)
        return self._running > 0

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self.todo.put(None)

    def _run(self) -> None:
        while (act := RealClock.receive(self.todo)) is not None:
            thread = threading.Thread(target=act, name="smartbatch-stop", daemon=True)
            try:
                thread.start()  # a slow function must not delay the others
            except RuntimeError:  # no new thread can be started
                act()


_collected: PerProcess[_Collected] = PerProcess(_Collected)


def something_started() -> None:
    """Enable :func:`run_after_collection` until the matching call of :func:`something_ended`."""
    _collected.get().begin()


def something_ended() -> None:
    _collected.get().end()


def run_after_collection(act: Callable[[], object]) -> bool:
    """Call ``act`` soon on another thread; return False if nothing is running, so that nothing has to be
    stopped.

    For finalizers, which may run while any lock is held, and for interpreter exit, when some versions of
    Python start no more threads. The thread used here already exists.
    """
    collected = _collected.peek()
    return collected is not None and collected.offer(act)  # may interrupt any code


def _before_fork() -> None:
    for one in _awaited.living():
        one.before_fork()


def _after_fork_in_parent() -> None:
    for one in _awaited.living():
        one.after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _noticed
    _noticed = os.getpid()
    for one in _forked.living():
        one.after_fork()


def _at_exit() -> None:
    began = RealClock.now()
    last = getattr(sys, "last_type", None)
    interrupted = last is not None and issubclass(last, KeyboardInterrupt)
    for one in _stoppable.living(identity()):
        one.at_exit(RealClock.now() - began, interrupted=interrupted)
    if interrupted and last is not KeyboardInterrupt and not _interactive():
        _end_by_signal()


def _interactive() -> bool:
    """Whether a user is typing code: then a displayed exception has not ended a script."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1") or "IPython" in sys.modules


def _end_by_signal() -> None:
    """End the interpreter with ``SIGINT``, as after an uncaught Ctrl-C, so that a shell loop around it ends,
    too.

    CPython does this for ``KeyboardInterrupt`` but not for its subclasses.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def reentered() -> bool:
    """Whether the main thread is already inside this library, further down the stack.

    This happens in a signal handler, which may have interrupted code that holds a lock, and in a hook or
    observer on the main thread. Other threads are never interrupted.
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


IMPORT_TRIES = 3
"""Maximum tries to import a module while another thread of the program imports part of it."""

_turn = PerProcess(threading.RLock)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one thread at a time import modules that import each other in a cycle.

    Threads that enter the cycle at different places would wait for each other. Python then gives one of them
    a half-initialized module, which fails with ``ImportError`` or ``AttributeError``.
    """
    with _turn.get():
        yield


def imported(name: str) -> Any:
    """Import a third-party module at first use. Thread-safe."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    with one_at_a_time():
        for _ in range(IMPORT_TRIES - 1):
            try:
                __import__(name)
            except (ImportError, AttributeError):  # the program's own threads do not take this lock
                continue
            return sys.modules[name]
        __import__(name)
        return sys.modules[name]


def names_on_demand(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which loads public names at first use.

    Args:
        module_of: the module of each name, relative to the package.
    """

    def load(name: str) -> Any:
        try:
            module = module_of[name]
        except KeyError:
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    return load


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
