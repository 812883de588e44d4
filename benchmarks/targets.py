"""What figures are to be: a figure that misses its target is marked, and its benchmark ends with 1."""

from __future__ import annotations

import sys
from typing import NoReturn


class Targets:
    """The targets of one run."""

    def __init__(self) -> None:
        self._missed = 0

    def at_most(self, figure: float, most: float, unit: str = "") -> str:
        """Return the target of a figure in words, and whether it was missed."""
        return self._told(figure <= most, f"target: at most {most:g}{unit}")

    def at_least(self, figure: float, least: float, unit: str = "") -> str:
        """Return the target of a figure in words, and whether it was missed."""
        return self._told(figure >= least, f"target: at least {least:g}{unit}")

    def _told(self, met: bool, target: str) -> str:
        self._missed += not met
        return target if met else f"{target}, MISSED"

    def exit(self) -> NoReturn:
        """End the process: with 1 when a target was missed."""
        sys.exit(self._missed > 0)
