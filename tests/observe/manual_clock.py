"""Time that is set by hand."""

from __future__ import annotations


class ManualClock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time
