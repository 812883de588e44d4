"""The timeline of a batch and its random faults, which depend only on seed, index and positions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal

from attrs import frozen

from smartbatch.emulator.batches.batch_settings import BATCH_FAULTS, LINE_FAULTS, checked_names, fault_group
from smartbatch.emulator.settings import EmulatorSettings

_NORMAL = NormalDist()
_SCALE = 1 / (1 << 64)
_FINALIZING_SHARE = 0.1  # fraction of a run after its last line, for preparing the results


class BatchRandomness:
    """The random numbers of one backend.

    Each number is a hash of the seed and its purpose, so it does not depend on other batches or lines.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self._settings = settings
        self._seed = b"smartbatch emulator %d batch " % settings.seed
        rates = settings.batch_faults
        self._of_batches = {name: rates[name] for name in BATCH_FAULTS if rates.get(name)}
        self._of_lines = {name: rates[name] for name in LINE_FAULTS if rates.get(name)}

    def uniform(self, what: str, *place: object) -> float:
        """Return the number for this purpose, uniformly distributed in [0, 1)."""
        digest = hashlib.blake2b(self._seed + f"{what} {place}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") * _SCALE

    def identity(self, what: str, *place: object) -> str:
        """Return 24 hexadecimal digits for this purpose."""
        text = f"id {what} {place}".encode()
        return hashlib.blake2b(self._seed + text, digest_size=12).hexdigest()

    def batch_faults(self, api: str, index: int, label: Mapping[str, str]) -> frozenset[str]:
        """Return the faults of a create call and its batch.

        Raises:
            ConfigError: the hook named an unknown fault.
        """
        hook = self._settings.batch_fault_for
        if hook is not None and (named := hook(index, label)) is not None:
            return frozenset(checked_names(named, BATCH_FAULTS, "batch_fault_for"))
        return self._drawn(self._of_batches, api, index)

    @property
    def has_line_faults(self) -> bool:
        return bool(self._of_lines) or self._settings.batch_line_fault_for is not None

    def line_faults(self, api: str, index: int, position: int, custom_id: str | None) -> frozenset[str]:
        hook = self._settings.batch_line_fault_for
        if hook is not None and (named := hook(index, position, custom_id)) is not None:
            return frozenset(checked_names(named, LINE_FAULTS, "batch_line_fault_for"))
        return self._drawn(self._of_lines, api, index, position)

    def _drawn(self, rates: Mapping[str, float], *place: object) -> frozenset[str]:
        if not rates:
            return frozenset()
        faults = set()
        remaining: dict[str, float] = {}  # random number of each group, minus the rates compared so far
        for name, rate in rates.items():
            group = fault_group(name)[0]
            left = remaining[group] if group in remaining else self.uniform(group, *place)
            if 0 <= left < rate:
                faults.add(name)
            remaining[group] = left - rate if left >= rate else -1.0
        return frozenset(faults)

    def turnaround(self, api: str, index: int) -> float:
        median, sigma = self._settings.batch_turnaround, self._settings.batch_turnaround_sigma
        if not sigma or not median:
            return median
        uniform = min(max(self.uniform("turnaround", api, index), 1e-12), 1 - 1e-12)
        return median * math.exp(sigma * _NORMAL.inv_cdf(uniform))


@frozen
class Timeline:
    """The times of a batch that is not canceled, in monotonic seconds."""

    created: float
    validated: float
    started: float
    run_seconds: float  # seconds for all lines together
    finalizing: float  # when its last line has run; infinite if some never run
    ended: float  # infinite if the batch is stuck
    expires: float  # when lines that have not run expire
    total: int
    runs: int  # maximum number of lines that run
    final: Literal["completed", "failed", "expired", "cancelled"]

    def ran(self, now: float) -> int:
        if now < self.started or not self.runs:
            return 0
        if now >= self.line_at(self.runs - 1):
            return self.runs
        done = int((now - self.started) / self.run_seconds * self.total)
        # Rounding errors of the division are corrected with the times of the lines.
        while done and self.line_at(done - 1) > now:
            done -= 1
        while self.line_at(done) <= now:
            done += 1
        return done

    def line_at(self, position: int) -> float:
        return self.started + self.run_seconds * (position + 1) / self.total


def timeline(
    settings: EmulatorSettings,
    created: float,
    turnaround: float,
    total: int,
    faults: frozenset[str],
    *,
    failing: bool,
    windows: float = 1.0,
) -> Timeline:
    """Return the timeline of a batch.

    Args:
        created: monotonic seconds of its creation.
        turnaround: seconds from its creation until it finishes.
        total: number of lines.
        failing: whether the batch's validation fails.
        windows: time until lines expire, in multiples of ``batch_window``.
    """
    validated = created + settings.batch_validating
    started = validated + settings.batch_queueing
    ended = max(started, created + turnaround)
    run_seconds = (ended - started) * (1 - _FINALIZING_SHARE)
    expires = created + settings.batch_window * windows
    runs, final = total, "completed"
    if failing:
        runs, final, ended = 0, "failed", validated
    elif "stuck" in faults:
        runs, ended = total // 2, math.inf
    elif "cancelled_elsewhere" in faults:
        runs, final = total // 2, "cancelled"
    elif faults & {"expire_part", "expire_all"}:
        runs = total // 2 if "expire_part" in faults else 0
        final, expires = "expired", ended
    elif expires < ended:
        final, ended = "expired", expires
    finalizing = started + run_seconds if runs == total else math.inf
    return Timeline(
        created,
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
