"""Whether code runs where a signal could have interrupted this library."""

from __future__ import annotations

import sys
import threading
from types import FrameType

__all__ = ["on_main_thread", "reentered"]


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
