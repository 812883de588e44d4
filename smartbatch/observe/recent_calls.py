"""Calls and tokens of the last half hour by model, as used of their limits per minute."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from attrs import define, frozen

from smartbatch.types import Usage

STEP = 10.0  # seconds that are counted together
_STEPS = 180
_MINUTE = 60.0
_MODELS = 64  # models counted separately; calls of further ones only count in totals


@define
class CallCounts:
    """Calls and tokens of some seconds."""

    calls: float = 0  # started
    requests: float = 0  # in these calls
    input_tokens: float = 0  # of finished calls
    output_tokens: float = 0  # of finished calls

    @property
    def tokens(self) -> float:
        """All tokens."""
        return self.input_tokens + self.output_tokens

    def add(self, other: CallCounts, share: float = 1.0) -> None:
        """Add other counts, or a share of them."""
        self.calls += other.calls * share
        self.requests += other.requests * share
        self.input_tokens += other.input_tokens * share
        self.output_tokens += other.output_tokens * share


@frozen
class MinuteOfCalls:
    """The calls of all models within a minute."""

    at: float  # Unix seconds of its beginning
    calls: float  # started
    tokens: float  # of finished calls


class RecentCalls:
    """Counts calls in steps of :data:`STEP` seconds, in bounded memory. The caller holds a lock."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, CallCounts]] = {}

    def started(self, at: float, model: str, size: int) -> None:
        """Count a call of ``size`` requests; ``at`` is in monotonic seconds."""
        counts = self._counts(at, model)
        counts.calls += 1
        counts.requests += size

    def ended(self, at: float, model: str, usage: Usage) -> None:
        """Count the tokens of a call."""
        counts = self._counts(at, model)
        counts.input_tokens += usage.input_tokens
        counts.output_tokens += usage.output_tokens

    def last_minute(self, now: float) -> dict[str, CallCounts]:
        """Return the calls of the last minute by model; further models together have an empty name. The step
        that began before the minute counts in part.
        """
        began = now - _MINUTE
        first = int(began // STEP)
        found: dict[str, CallCounts] = {}
        for step in range(first, int(now // STEP) + 1):
            share = 1.0 if step > first else (first + 1) - began / STEP
            for model, counts in self._steps.get(step, {}).items():
                found.setdefault(model, CallCounts()).add(counts, share)
        return found

    def minutes(self, wall: float, now: float) -> tuple[MinuteOfCalls, ...]:
        """Return the calls of each minute of the last half hour that had any, oldest first.

        Args:
            wall: Unix seconds at ``now``.
            now: monotonic seconds.
        """
        found: dict[int, CallCounts] = {}
        oldest = int(now // STEP) - _STEPS
        for step, by_model in self._steps.items():
            if step > oldest:
                whole = found.setdefault(int((step * STEP + wall - now) // _MINUTE), CallCounts())
                for counts in by_model.values():
                    whole.add(counts)
        return tuple(MinuteOfCalls(at * _MINUTE, found[at].calls, found[at].tokens) for at in sorted(found))

    def _counts(self, at: float, model: str) -> CallCounts:
        step = int(at // STEP)
        by_model = self._steps.get(step)
        if by_model is None:
            by_model = self._steps[step] = {}
            for old in [each for each in self._steps if each <= step - _STEPS]:
                del self._steps[old]
        counts = by_model.get(model)
        if counts is None:
            if len(by_model) >= _MODELS:
                model = ""
            counts = by_model.setdefault(model, CallCounts())
        return counts


def together(histories: Iterable[Iterable[MinuteOfCalls]]) -> tuple[MinuteOfCalls, ...]:
    """Return the minutes of several clients, or processes, as one history."""
    found: dict[float, tuple[float, float]] = {}
    for minute in chain.from_iterable(histories):
        calls, tokens = found.get(minute.at, (0.0, 0.0))
        found[minute.at] = calls + minute.calls, tokens + minute.tokens
    return tuple(MinuteOfCalls(at, *found[at]) for at in sorted(found))
