"""Runs work on several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

PATIENCE = 60.0
"""Seconds that only a failing test waits."""


def run_together(work: Callable[..., object], each: Iterable[Any]) -> None:
    """Call ``work`` with each value on its own thread, and wait for all of them."""
    threads = [threading.Thread(target=work, args=(value,), daemon=True) for value in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
