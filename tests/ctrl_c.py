"""Ctrl-C at every possible moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType

__all__ = ["interrupted_at_every_moment"]

MOST = 2_000
"""Maximum number of moments that can be tried."""


class _Interrupt:
    """Raises KeyboardInterrupt the ``at``-th time the interpreter could: at the start of a function, or
    after a C call.
    """

    def __init__(self, at: int, spared: Collection[CodeType]) -> None:
        self._left = at
        self._spared = spared

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and not self._is_spared(frame):
            self._left -= 1
            if self._left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    def _is_spared(self, frame: FrameType | None) -> bool:
        while self._spared and frame is not None:
            if frame.f_code in self._spared:
                return True
            frame = frame.f_back
        return False


def interrupted_at_every_moment(
    act: Callable[[], object], *, spared: Collection[CodeType] = ()
) -> Iterator[int]:
    """Yield after each moment at which ``act`` was interrupted, until it completes.

    Tracebacks keep all frames alive, like those of a notebook.

    Args:
        spared: functions of other libraries that are not interrupted.
    """
    kept: list[BaseException] = []
    for at in range(1, MOST):
        try:
            sys.setprofile(_Interrupt(at, spared))
            act()
            sys.setprofile(None)
            break
        except KeyboardInterrupt as error:
            kept.append(error)
        finally:
            sys.setprofile(None)
        yield at
    assert 2 < len(kept) < MOST - 1, f"interrupted {len(kept)} times"
