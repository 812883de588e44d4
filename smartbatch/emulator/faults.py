"""The random fault and latency of each request; both depend on the seed and the request's index only."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

from smartbatch.emulator.settings import EmulatorSettings

MIXED = ("500", "503", "429", "429_no_header", "reset", "hang", "truncated")
"""The faults of a single rate, in equal shares."""

_NORMAL = NormalDist()
_SCALE = 1 / (1 << 64)


class FaultPlan:
    """The faults and latencies of one emulator.

    Each random number is a hash of the seed and the request's index, so neither the order in which requests
    finish nor another setting changes the faults.

    Args:
        settings: seed, rates, outage and latency.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self._settings = settings
        self._seed = b"smartbatch emulator %d " % settings.seed
        rates = settings.faults
        if isinstance(rates, float | int):
            rates = {kind: rates / len(MIXED) for kind in MIXED}
        self._thresholds: list[tuple[float, str]] = []
        total = 0.0
        for kind, rate in rates.items():
            total += rate
            if rate > 0:
                self._thresholds.append((total, kind))

    def fault(self, index: int) -> str | None:
        """Return the fault of the request with this index, or ``None``."""
        if self._thresholds:
            uniform = self._uniform(b"fault", index)
            for threshold, kind in self._thresholds:
                if uniform < threshold:
                    return kind
        return None

    def latency(self, index: int, tokens: int) -> float:
        """Return the seconds until a whole answer with ``tokens`` output tokens."""
        return self.first_token(index) + self._settings.per_token * tokens

    def first_token(self, index: int) -> float:
        """Return the seconds until the first token."""
        settings = self._settings
        if not settings.latency_sigma or not settings.latency:
            return settings.latency
        uniform = min(max(self._uniform(b"latency", index), 1e-12), 1 - 1e-12)
        return settings.latency * math.exp(settings.latency_sigma * _NORMAL.inv_cdf(uniform))

    def in_outage(self, index: int, elapsed: float) -> bool:
        """Return True during an outage.

        Args:
            index: the request's index.
            elapsed: seconds since the first request.
        """
        settings = self._settings
        if settings.outage and settings.outage[0] <= index < sum(settings.outage):
            return True
        between = settings.outage_between
        return between is not None and between[0] <= elapsed < between[1]

    def identity(self, index: int) -> str:
        """Return 24 hexadecimal digits that identify the request."""
        return hashlib.blake2b(self._seed + b"id %d" % index, digest_size=12).hexdigest()

    def _uniform(self, what: bytes, index: int) -> float:
        digest = hashlib.blake2b(self._seed + what + b" %d" % index, digest_size=8).digest()
        return int.from_bytes(digest, "big") * _SCALE
