"""The circuit breaker: stops calls to a provider that fails, and probes it with one call at a time.

There is one for each provider and model. Only the provider's own failures count; a wrong request, a refusal
for the rate limit and a cancelled call are ``IGNORED``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from attrs import define, field, frozen

from smartbatch.core.limits.backoff import RandomSource, jittered

__all__ = ["BreakerState", "CircuitBreaker", "Outcome", "Permit", "Transition"]


class BreakerState(enum.Enum):
    """What the breaker lets through."""

    CLOSED = "closed"
    """Everything: the provider works."""
    OPEN = "open"
    """Nothing until the pause ends."""
    HALF_OPEN = "half_open"
    """Probes only; their outcome decides."""


class Outcome(enum.Enum):
    """How a call ended, as far as the breaker cares."""

    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"
    """Says nothing about the provider, or was never sent."""


_CLOSED, _OPEN, _HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

LEGAL: Final[Mapping[tuple[BreakerState, BreakerState], str]] = {
    (_CLOSED, _OPEN): "too many failures, or a permanent error",
    (_OPEN, _HALF_OPEN): "the pause is over and a probe was taken",
    (_HALF_OPEN, _CLOSED): "a probe succeeded",
    (_HALF_OPEN, _OPEN): "a probe failed, did not come back in time, or met a permanent error",
}
"""Every change of state there is, and its cause. OPEN closes only by a probe; CLOSED never probes."""


@frozen
class Transition:
    """A change of state, for an event."""

    before: BreakerState
    after: BreakerState
    reason: str


@define(eq=False)
class Permit:
    """A call that may go; ended once. ``epoch`` is the breaker's when the call was taken, ``deadline`` when
    the call, if it is a probe, has to be back.
    """

    epoch: int
    deadline: float
    ended: bool = False


_WINDOW = 20
_MASK = (1 << _WINDOW) - 1
_SHARE, _LEAST = 0.5, 10
"""Share of failures among the last 20 outcomes that opens the breaker, given at least 10 failures."""


@define(eq=False)
class CircuitBreaker:
    """Opens after failures in a row or at a share of the last 20 calls; see :data:`LEGAL` for its states.

    The outcome of a call taken before a change of state does not count after it: of 64 calls in flight when
    a provider fails, five open the breaker, and the other 59 must not lengthen its pause.

    Args:
        threshold: consecutive failures that open it, 1 or more.
        pause: seconds of the first pause; each failed probe doubles it.
        max_pause: longest pause in seconds. Each pause is drawn between 50 % and 100 %.
        probes: most probes in flight at once.
    """

    _threshold: int = 5
    _pause: float = 1.0
    _max_pause: float = 15.0
    _probes: int = 1
    state: BreakerState = field(default=_CLOSED, init=False)
    _epoch: int = field(default=0, init=False)
    _consecutive: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)  # the last outcomes as bits, 1 is a failure
    _seen: int = field(default=0, init=False)
    _openings: int = field(default=0, init=False)
    _until: float = field(default=0.0, init=False)
    _jitter: float = field(default=1.0, init=False)
    _probing: list[Permit] = field(factory=list, init=False)
    _error: Exception | None = field(default=None, init=False)
    _changes: list[Transition] = field(factory=list, init=False)

    def look(self, now: float) -> float:
        """Return the earliest time a call may go; ``now`` when it may.

        1. Closed: now.
        2. Half open with an overdue probe: the probe failed, the breaker opens again, and case 5 holds.
        3. Half open with a free probe: now.
        4. Half open with all probes in flight: the first probe's deadline; by then it has answered or failed.
        5. Open: the end of the pause.
        """
        if self.state is _CLOSED:
            return now
        if self.state is _HALF_OPEN:
            if any(probe.deadline <= now for probe in self._probing):
                self._reopen(now, "a probe did not come back in time")
            elif len(self._probing) < self._probes:
                return now
            else:
                return min(probe.deadline for probe in self._probing)
        return max(now, self._until)

    def take(self, now: float, probe_deadline: float) -> Permit:
        """Count a call that :meth:`look` let go; ``probe_deadline`` is when it, if it is a probe, has to be
        back.

        Raises:
            RuntimeError: when :meth:`look` would not let it go.
        """
        if self.state is _CLOSED:
            return Permit(self._epoch, probe_deadline)
        if self.look(now) > now:
            raise RuntimeError("the breaker does not let this call go; ask look() first")
        if self.state is _OPEN:
            self._transition(_HALF_OPEN, "the pause is over")
        permit = Permit(self._epoch, probe_deadline)
        self._probing.append(permit)
        return permit

    def end(self, permit: Permit, now: float, outcome: Outcome, rng: RandomSource) -> Transition | None:
        """Count how a call ended; return the change of state it caused, if any.

        1. The call was taken before the last change of state: it does not count.
        2. Closed: count the outcome; enough failures open the breaker.
        3. Half open: a success closes it, a failure opens it again, anything else frees the probe.

        Raises:
            RuntimeError: when the permit was ended before.
        """
        if permit.ended:
            raise RuntimeError("a permit ends once")
        permit.ended = True
        if permit.epoch != self._epoch:
            return None
        before = len(self._changes)
        if self.state is _CLOSED:
            if outcome is not Outcome.IGNORED:
                self._count(outcome is Outcome.FAILURE, now, rng)
        else:
            self._probed(permit, now, outcome, rng)
        return self._changes.pop() if len(self._changes) > before else None

    def stop(self, error: Exception, now: float, until: float) -> Transition | None:
        """Hold all calls until ``until`` for a permanent error: a wrong key, no money. After that one probe
        goes.
        """
        before = len(self._changes)
        if self.state is not _OPEN:
            self._transition(_OPEN, "permanent error")
        self._error = error
        self._until = max(now, until)
        return self._changes.pop() if len(self._changes) > before else None

    def stopped(self, now: float) -> Exception | None:
        """Return the permanent error that holds all calls now, if there is one."""
        return self._error if self.state is _OPEN and now < self._until else None

    def changes(self) -> list[Transition]:
        """Return, once, the changes that :meth:`look` and :meth:`take` caused since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def _count(self, failed: bool, now: float, rng: RandomSource) -> None:
        self._failures = (self._failures << 1 | failed) & _MASK
        self._seen = min(self._seen + 1, _WINDOW)
        if not failed:
            self._consecutive = 0
            return
        self._consecutive += 1
        failures = self._failures.bit_count()
        if self._consecutive >= self._threshold:
            reason = f"{self._consecutive} failures in a row"
        elif failures >= _LEAST and failures >= _SHARE * self._seen:
            reason = f"{failures} of the last {self._seen} calls failed"
        else:
            return
        self._jitter = jittered(1.0, rng)
        self._reopen(now, reason)

    def _probed(self, permit: Permit, now: float, outcome: Outcome, rng: RandomSource) -> None:
        self._probing.remove(permit)
        if outcome is Outcome.SUCCESS:
            self._transition(_CLOSED, "a probe succeeded")
        elif outcome is Outcome.FAILURE:
            self._jitter = jittered(1.0, rng)
            self._reopen(now, "a probe failed")

    def _reopen(self, now: float, reason: str) -> None:
        # An overdue probe is found by look(), which has no random source: it keeps the jitter drawn last.
        self._until = now + self._jitter * min(self._pause * 2.0**self._openings, self._max_pause)
        self._openings = min(self._openings + 1, 64)
        self._transition(_OPEN, reason)

    def _transition(self, after: BreakerState, reason: str) -> None:
        """Change the state, see :data:`LEGAL`; nothing else does. Permits taken before no longer count."""
        before = self.state
        self.state = after
        self._epoch += 1
        self._probing = []
        self._error = None
        if after is _CLOSED:
            self._consecutive = self._failures = self._seen = self._openings = 0
        self._changes.append(Transition(before, after, reason))
