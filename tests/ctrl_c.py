"""Ctrl-C at every moment at which it can come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType

__all__ = ["interrupted_at_every_moment"]

MOST = 2_000
"""Moments after which something is not short enough to be tried at each of them."""


class _Interrupt:
    """Ctrl-C at the ``at``-th moment at which the interpreter looks for signals: when a function begins, and
    after a call of one written in C."""

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
    """Yield after each moment at which ``act`` was interrupted, until it comes to its end.

    The tracebacks keep all frames meanwhile, as those of a notebook do.

    Args:
        spared: functions, of another library, that are not interrupted.
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
