"""The circuit breaker of one provider and model: stops calls while none succeeds, and probes the provider.

Only the provider's own failures count; a wrong request, a rate-limit refusal and a cancelled call are
``IGNORED``. Partial failures are left to the throttle (:mod:`smartbatch.core.limits.throttle`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

from attrs import define, field, frozen

from smartbatch.core.limits.cooldown import RandomSource, jittered


class BreakerState(enum.Enum):
    """The calls that the breaker admits."""

    CLOSED = "closed"
    """All calls are admitted."""
    OPEN = "open"
    """No call is admitted until the pause ends."""
    HALF_OPEN = "half_open"
    """Only probes are admitted; the first successful one closes the breaker."""


class Outcome(enum.Enum):
    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"
    """The call was never sent, or its outcome is irrelevant to the provider's health."""


_CLOSED, _OPEN, _HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

LEGAL_CHANGES: Final[Mapping[tuple[BreakerState, BreakerState], str]] = {
    (_CLOSED, _OPEN): "no call succeeds, or a permanent error",
    (_OPEN, _HALF_OPEN): "the pause is over and a probe was taken",
    (_HALF_OPEN, _CLOSED): "a probe succeeded",
    (_HALF_OPEN, _OPEN): "a permanent error",
}
"""All changes of state and their causes."""


@frozen
class Transition:
    before: BreakerState
    after: BreakerState
    reason: str


@define(eq=False)
class BreakerPermit:
    epoch: int  # epoch of the breaker when the call was admitted
    overdue: float  # when a probe no longer prevents other probes
    despite: bool = False  # sent despite a permanent error: not a probe
    ended: bool = False


_USUAL_SHARE = 0.05
"""Share of calls assumed to fail before anything is known. At this share, ``threshold`` consecutive failures
open the breaker; at a higher share, an equally unlikely number does: four times as many at 50 %, 28 times
at 90 %."""

_MAX_USUAL_SHARE = 0.9
_CHANCE_LOG = math.log(1e-4)
_SHORT_CALLS, _LONG_CALLS = 32, 256
"""Failure shares are measured over the last 32 and the last 256 first calls of requests. The short share
reacts quickly; the long share is still known when only the last answers of a list are missing. The long
share decides when the breaker opens, and the larger of the two decides how long a request is retried.
Retries do not count, because a few requests that always fail would make failures look usual.
"""

_KEPT_SHARE = 1.0 - 1.0 / _SHORT_CALLS

_PROBED_SHARE = 0.015
"""Maximum rate of probes as a share of the earlier rate of calls; random intervals make it 2 % on average."""

_RATE_SECONDS = 5.0
"""Seconds over which the rate of calls is averaged."""

_MIN_WEIGHT = 1.0 - math.exp(-1.0 / _RATE_SECONDS)
"""Calls within less than a second count as if they took a whole second."""

_STEADY_SECONDS = 60.0
"""Seconds of an outage during which probes keep the rate set by :data:`_PROBED_SHARE`; later, the interval
grows with the outage.
"""


FOLLOWED_OUTAGE = "another process found it failing"


@define(eq=False)
class CircuitBreaker:
    """Opens when no call succeeds; see :data:`LEGAL_CHANGES` for its states.

    The outcome of a call admitted before a change of state is ignored, so that calls in flight when the
    breaker opens cannot open it again.

    Args:
        threshold: consecutive failures that open it if failures are rare, 1 or more; twice the number of
            calls in flight is added.
        pause: maximum seconds from the opening to the first probe.
        max_pause: maximum seconds between two probes. Each interval is drawn between 50 % and 100 %.
        probes: maximum probes in flight; one that takes longer than ``max_pause`` does not count.
    """

    _threshold: int = 5
    _pause: float = 1.0
    _max_pause: float = 5.0
    _probes: int = 4
    state: BreakerState = field(default=_CLOSED, init=False)
    passed_at: float = field(default=-math.inf, init=False)
    _epoch: int = field(default=0, init=False)
    _run: int = field(default=0, init=False)  # consecutive failures
    _in_flight: int = field(default=0, init=False)  # calls of this epoch
    _firsts: int = field(default=0, init=False)
    _quick_share: float = field(default=0.0, init=False)  # share of failed first calls
    _slow_share: float = field(default=0.0, init=False)
    # share of failed calls among those of answered requests
    _answered_share: float = field(default=0.0, init=False)
    _usual: float = field(default=_USUAL_SHARE, init=False)  # the long share at the last success
    _rate: float = field(default=0.0, init=False)  # completed calls per second
    _weight: float = field(default=0.0, init=False)
    _ended_at: float = field(default=-math.inf, init=False)
    _opened_at: float = field(default=0.0, init=False)
    _next: float = field(default=0.0, init=False)  # when the next probe may be sent
    _jitter: float = field(default=1.0, init=False)
    _probing: list[BreakerPermit] = field(factory=list, init=False)
    _error: Exception | None = field(default=None, init=False)
    _unverified: bool = field(default=False, init=False)  # no probe has finished yet
    _changes: list[Transition] = field(factory=list, init=False)

    @property
    def failure_share(self) -> float:
        """The larger share of failures: among first calls, or among all calls of answered requests."""
        firsts = max(self._quick_share, self._slow_share) - 1.0 / _SHORT_CALLS
        return max(0.0, firsts, self._answered_share - 1.0 / _SHORT_CALLS)

    @property
    def passed(self) -> bool:
        return self.passed_at > -math.inf

    @property
    def run_is_usual(self) -> bool:
        """Whether the latest consecutive failures could plausibly be due to chance."""
        return self._run * math.log(self._usual) > _CHANCE_LOG

    def look(self, now: float) -> float:
        if self.state is _CLOSED:
            return now
        if now < self._next:
            return self._next
        # all probes are in flight: wait until the first is overdue
        overdue = sorted(probe.overdue for probe in self._probing)
        return now if len(overdue) < self._probes else max(now, overdue[-self._probes])

    def take(self, now: float) -> BreakerPermit:
        """Count a call that :meth:`look` admitted.

        Raises:
            RuntimeError: :meth:`look` would not admit it.
        """
        permit = BreakerPermit(self._epoch, now + self._max_pause)
        if self.state is _CLOSED:
            self._in_flight += 1
            return permit
        if self.look(now) > now:
            raise RuntimeError("the breaker does not admit this call; call look() first")
        if self.state is _OPEN:
            self._transition(_HALF_OPEN, "the pause is over")
            permit.epoch = self._epoch
        self._probing.append(permit)
        self._next = now + self._jitter * self._interval(now)
        return permit

    def take_despite(self) -> BreakerPermit:
        """Count a call sent despite a permanent error, for a caller that needs the provider's own answer."""
        return BreakerPermit(self._epoch, math.inf, despite=True)

    def end(
        self,
        permit: BreakerPermit,
        now: float,
        outcome: Outcome,
        rng: RandomSource,
        *,
        first: bool = True,
        failures: int = 0,
    ) -> Transition | None:
        """Count the outcome of a call; return the change of state it caused, if any.

        Args:
            first: whether it was the first call of its request.
            failures: number of earlier failed calls of its request.

        Raises:
            RuntimeError: the permit has already ended.
        """
        if permit.ended:
            raise RuntimeError("a permit ends once")
        permit.ended = True
        if outcome is Outcome.SUCCESS:
            self.passed_at = now
            self._answered_share += (1.0 - self._answered_share) * (1.0 - _KEPT_SHARE**failures)
            self._answered_share *= _KEPT_SHARE
        if permit.epoch != self._epoch:  # 1. admitted before the last change of state: ignored
            return None
        if permit.despite:  # 2. sent despite a permanent error: a success permits an immediate probe
            if outcome is Outcome.SUCCESS:
                self._next = now
            return None
        if self.state is _CLOSED:  # 3. closed: enough consecutive failures open the breaker
            self._in_flight -= 1
            if outcome is Outcome.IGNORED or not self._count(outcome is Outcome.FAILURE, now, first):
                return None
            return self.open(f"{self._run} failures in a row", now, rng)
        self._probing.remove(permit)  # 4. half open: a success closes it, anything else only ends the probe
        self._jitter = jittered(1.0, rng)
        if outcome is not Outcome.SUCCESS:
            self._unverified = self._unverified and outcome is Outcome.IGNORED
            return None
        self._passed()
        return self._change(_CLOSED, "a probe succeeded")

    def open(self, reason: str, now: float, rng: RandomSource) -> Transition:
        """Admit only probes from now on, the first within ``pause`` seconds."""
        self._run = 0
        self._jitter = jittered(1.0, rng)
        self._opened_at = now
        self._next = now + self._jitter * min(self._pause, self._interval(now))
        return self._change(_OPEN, reason)

    def stop(self, error: Exception, now: float, until: float) -> Transition | None:
        """Stop all calls until ``until`` for a permanent error, such as a wrong key; then admit one probe."""
        change = None if self.state is _OPEN else self._change(_OPEN, "permanent error")
        self._error, self._unverified = error, False
        self._opened_at = now
        self._next = max(now, until)
        return change

    @property
    def permanent_error(self) -> Exception | None:
        return self._error

    def stopped(self, now: float) -> Exception | None:
        return self._error if self.state is _OPEN and now < self._next else None

    def follow(self, now: float, rng: RandomSource, *, outage: bool) -> bool:
        """Follow the state that another process reported; return whether the breaker opened."""
        if outage and self.state is _CLOSED:
            self._changes.append(self.open(FOLLOWED_OUTAGE, now, rng))
            self._unverified = True
            return True
        if not outage and self.state is _OPEN and self._error is None:  # provider works again: probe now
            self._next = now
        return False

    def is_unverified(self, now: float) -> bool:
        """Whether it is open because another process reported an outage that no probe of this process has
        verified.

        A probe that takes longer than ``max_pause`` counts as failed.
        """
        overdue = self._probing and all(now >= probe.overdue for probe in self._probing)
        return self._unverified and not overdue

    def changes(self) -> list[Transition]:
        """Return, once, the changes that :meth:`take` and :meth:`follow` caused since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def _count(self, failed: bool, now: float, first: bool) -> bool:
        kept = math.exp((self._ended_at - now) / _RATE_SECONDS) if self._rate else 1.0
        self._rate = self._rate * kept + 1.0 / _RATE_SECONDS
        self._weight = self._weight * kept + (1.0 - kept)
        self._ended_at = now
        if first:
            self._firsts += 1
            self._quick_share += (failed - self._quick_share) / _SHORT_CALLS
            self._slow_share += (failed - self._slow_share) / min(_SHORT_CALLS + self._firsts, _LONG_CALLS)
        if not failed:
            self._passed()
            return False
        self._run += 1
        # Failures arrive sooner than answers, and new calls replace them. Even if every second call is
        # answered, twice as many calls as are in flight may fail before the first answer arrives.
        return self._run >= 2 * self._in_flight + self._threshold * math.log(_USUAL_SHARE) / math.log(
            self._usual
        )

    def _passed(self) -> None:
        self._run = 0
        self._usual = min(max(self._slow_share, _USUAL_SHARE), _MAX_USUAL_SHARE)

    def _interval(self, now: float) -> float:
        rate = self._rate / max(self._weight, _MIN_WEIGHT)
        slower = max(1.0, (now - self._opened_at) / _STEADY_SECONDS)
        return min(slower / (_PROBED_SHARE * rate), self._max_pause) if rate else self._max_pause

    def _change(self, after: BreakerState, reason: str) -> Transition:
        """Change the state; :meth:`changes` does not return this change."""
        self._transition(after, reason)
        return self._changes.pop()

    def _transition(self, after: BreakerState, reason: str) -> None:
        """Change the state and start a new epoch, in which earlier permits no longer count."""
        self._changes.append(Transition(self.state, after, reason))
        self.state = after
        self._unverified = self._unverified and after is _HALF_OPEN
        self._epoch += 1
        self._in_flight = 0
        self._probing = []
        self._error = None
