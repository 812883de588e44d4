"""How the library's own modules are imported when they are first needed."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from smartbatch._fork import PerProcess

NEW_OBJECTS = 20_000
"""New objects, less those that were freed, after which the garbage collector looks; Python's own is 700."""

NEW_OBJECTS_OF_AN_SDK = 200_000
"""The same while an SDK is imported, which makes 80,000 to 150,000 objects that all stay."""


TRIES = 3
"""Times a module is imported that fails because another thread of the program imports a part of it."""

_turn = PerProcess(threading.RLock)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one thread at a time import modules that import each other in circles.

    Threads that enter such a circle at different places would wait for each other. Python then gives one of
    them a module that is half made, which shows as an ``ImportError`` or an ``AttributeError``.
    """
    with _turn.get():
        yield


def imported(name: str) -> Any:
    """Return a module of another project, imported at its first use; any thread may ask for it."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        return module
    with one_at_a_time():
        for _ in range(TRIES - 1):
            try:
                __import__(name)
            except (ImportError, AttributeError):  # the program's own threads import without taking turns
                continue
            return sys.modules[name]
        __import__(name)
        return sys.modules[name]


@contextmanager
def collector_paused(module: str) -> Iterator[None]:
    """Pause the garbage collector while ``module`` is imported, whose classes and functions all stay; do
    nothing where it is imported already.

    Looking through them again and again takes a sixth of the processor time until the first request. So that
    this is not done at once afterwards, all objects move to the oldest generation, unless the program keeps
    objects of its own out of the collector's sight. Threads may meet here: the first one pauses the
    collector, and only that one goes on with it.
    """
    if module in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _make_all_old()
            gc.enable()


@contextmanager
def collector_slowed(module: str) -> Iterator[None]:
    """Have the garbage collector look only after :data:`NEW_OBJECTS_OF_AN_SDK` new objects while ``module``
    is imported; do nothing where it is imported already, or where the program wants the collector as seldom.

    An SDK is imported on a thread of its own, for a second or two, while the program may be making garbage:
    that is still collected, which :func:`collector_paused` would not do. What was made meanwhile moves to the
    oldest generation as there. A threshold that the program sets in between stays. Threads that import what
    the SDK imports as well wait for it: :func:`one_at_a_time`.
    """
    with one_at_a_time():
        yield from _slowed(module)


def _slowed(module: str) -> Iterator[None]:
    before = gc.get_threshold()
    if module in sys.modules or not 0 < before[0] < NEW_OBJECTS_OF_AN_SDK:
        yield
        return
    slowed = (NEW_OBJECTS_OF_AN_SDK, *before[1:])
    gc.set_threshold(*slowed)
    try:
        yield
    finally:
        _make_all_old()
        if gc.get_threshold() == slowed:
            gc.set_threshold(*before)


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Have the garbage collector look through new objects after :data:`NEW_OBJECTS` of them, and seldom
    through those that are there already: for a program that has many short-lived objects, few in cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    _make_all_old()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _make_all_old() -> None:
    """Move all objects to the oldest generation, unless the program itself keeps some from the collector."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
