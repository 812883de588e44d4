"""How those who wait for news of jobs are woken, without anything being told twice or missed."""

from __future__ import annotations

from smartbatch._clock import Clock

__all__ = ["ChangeNotifier"]


class ChangeNotifier:
    """Rings when something was stored; safe from any thread, and held by none while others run.

    Read :attr:`rings` before you look at the store, and hand it to :meth:`listen` afterwards: what came
    between the two wakes you at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._monitor = clock.monitor()
        self._clock = clock
        self.rings = 0

    def ring(self) -> None:
        """Wake everybody."""
        with self._monitor:
            self.rings += 1
            self._monitor.notify_all()

    def listen(self, seen: int, timeout: float) -> None:
        """Wait until it has rung since ``seen``, or for ``timeout`` seconds."""
        until = self._clock.now() + timeout
        with self._monitor:
            while self.rings == seen:
                remaining = until - self._clock.now()
                if remaining <= 0:
                    return
                self._monitor.wait(remaining)
