"""Modules that are imported when they are first needed, which several threads may do at once."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from smartbatch._fork import PerProcess

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


def names_on_demand(package: str, module_of: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose public names load on first use.

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
