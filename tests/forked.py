"""Checks in a forked child."""

from __future__ import annotations

import os
from collections.abc import Callable


def exit_code_of_child(finds: Callable[[], bool]) -> int:
    """Call ``finds`` in a forked child: 0 for true, 1 for false, 2 if it raises."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if finds() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
