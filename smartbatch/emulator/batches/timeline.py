"""When a batch does what, and which faults it meets: seeded, decided by its index and positions alone."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal

from attrs import frozen

from smartbatch.emulator.batches.batch_settings import BATCH_FAULTS, LINE_FAULTS, checked_names, group_of
from smartbatch.emulator.settings import Settings

__all__ = ["BatchRandomness", "Timeline", "timeline"]

_NORMAL = NormalDist()
_SCALE = 1 / (1 << 64)
_FINALIZING = 0.1
"""The part of a run in which all lines have run and the results are put together."""


class BatchRandomness:
    """The dice of one house. Every batch and every line draws from its own place, so no other moves it.

    Args:
        settings: seed, rates and hooks.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seed = b"smartbatch emulator %d batch " % settings.seed
        rates = settings.batch_faults
        self._of_batches = {name: rates[name] for name in BATCH_FAULTS if rates.get(name)}
        self._of_lines = {name: rates[name] for name in LINE_FAULTS if rates.get(name)}

    def die(self, what: str, *place: object) -> float:
        """Return a number from 0 to 1 (not reached) that belongs to this place."""
        digest = hashlib.blake2b(self._seed + f"{what} {place}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") * _SCALE

    def identity(self, what: str, *place: object) -> str:
        """Return 24 hexadecimal digits that name what is at this place."""
        text = f"id {what} {place}".encode()
        return hashlib.blake2b(self._seed + text, digest_size=12).hexdigest()

    def of_batch(self, api: str, index: int, label: Mapping[str, str]) -> frozenset[str]:
        """Return the faults of a create and its batch.

        Raises:
            ConfigError: when the hook names an unknown one.
        """
        hook = self._settings.batch_fault_for
        if hook is not None and (named := hook(index, label)) is not None:
            return frozenset(checked_names(named, BATCH_FAULTS, "batch_fault_for"))
        return self._drawn(self._of_batches, api, index)

    def of_line(self, api: str, index: int, position: int, custom_id: str | None) -> frozenset[str]:
        """Return the faults of a line; see :meth:`of_batch`."""
        hook = self._settings.batch_line_fault_for
        if hook is not None and (named := hook(index, position, custom_id)) is not None:
            return frozenset(checked_names(named, LINE_FAULTS, "batch_line_fault_for"))
        return self._drawn(self._of_lines, api, index, position)

    def _drawn(self, rates: Mapping[str, float], *place: object) -> frozenset[str]:
        if not rates:
            return frozenset()
        met = set()
        rolled: dict[str, float] = {}  # what is left of the die of each group
        for name, rate in rates.items():
            group = group_of(name)[0]
            left = rolled[group] if group in rolled else self.die(group, *place)
            if 0 <= left < rate:
                met.add(name)
            rolled[group] = left - rate if left >= rate else -1.0
        return frozenset(met)

    def turnaround(self, api: str, index: int) -> float:
        """Return the seconds from a batch's create to its end."""
        median, sigma = self._settings.batch_turnaround, self._settings.batch_turnaround_sigma
        if not sigma or not median:
            return median
        die = min(max(self.die("turnaround", api, index), 1e-12), 1 - 1e-12)
        return median * math.exp(sigma * _NORMAL.inv_cdf(die))


@frozen
class Timeline:
    """A batch's course as long as nobody cancels it. Times are monotonic seconds.

    Attributes:
        landed: it exists.
        validated: its validation ends.
        started: its first line begins.
        run_seconds: that all lines take together.
        finalizing: its last line has run; infinite when some never run.
        ended: its end; infinite when it is stuck.
        expires: what has not run by then expires.
        total: its lines.
        runs: how many of them run at most.
        final: its end.
    """

    landed: float
    validated: float
    started: float
    run_seconds: float
    finalizing: float
    ended: float
    expires: float
    total: int
    runs: int
    final: Literal["completed", "failed", "expired"]

    def ran(self, now: float) -> int:
        """Return how many lines have run; they run in their order."""
        if now < self.started or not self.runs:
            return 0
        if now >= self.line_at(self.runs - 1):
            return self.runs
        done = int((now - self.started) / self.run_seconds * self.total)
        # The division may fall on either side of a line's own time.
        while done and self.line_at(done - 1) > now:
            done -= 1
        while self.line_at(done) <= now:
            done += 1
        return done

    def line_at(self, position: int) -> float:
        """Return when a line has run."""
        return self.started + self.run_seconds * (position + 1) / self.total


def timeline(
    settings: Settings, landed: float, turnaround: float, total: int, faults: frozenset[str], *, failing: bool
) -> Timeline:
    """Return the course of a batch.

    Args:
        settings: its times.
        landed: when it comes to exist.
        turnaround: seconds from then to its end.
        total: its lines.
        faults: what it meets.
        failing: True when it will not pass its validation.
    """
    validated = landed + settings.batch_validating
    started = validated + settings.batch_queueing
    ended = max(started, landed + turnaround)
    run_seconds = (ended - started) * (1 - _FINALIZING)
    expires = landed + settings.batch_window
    runs, final = total, "completed"
    if failing:
        runs, final, ended = 0, "failed", validated
    elif "stuck" in faults:
        runs, ended = total // 2, math.inf
    elif faults & {"expire_part", "expire_all"}:
        runs = total // 2 if "expire_part" in faults else 0
        final, expires = "expired", ended
    elif expires < ended:
        final, ended = "expired", expires
    finalizing = started + run_seconds if runs == total else math.inf
    return Timeline(
        landed,
        validated,
        started,
        run_seconds,
        finalizing,
        ended,
        expires,
        total,
        runs,
        final,  # type: ignore[arg-type]
    )
