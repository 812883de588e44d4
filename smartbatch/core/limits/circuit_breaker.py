"""The circuit breaker: stops calls to a provider from which nothing comes, and probes it.

There is one for each provider and model. Only the provider's own failures count; a wrong request, a refusal
for the rate limit and a cancelled call are ``IGNORED``. Failures of a part of the calls never open it: those
are usual, and the throttle's to judge (:mod:`smartbatch.core.limits.throttle`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

from attrs import define, field, frozen

from smartbatch.core.limits.cooldown import RandomSource, jittered


class BreakerState(enum.Enum):
    """What the breaker lets through."""

    CLOSED = "closed"
    """Everything: the provider works, or works for a part of the calls."""
    OPEN = "open"
    """Nothing until the pause ends."""
    HALF_OPEN = "half_open"
    """Probes only; the first that succeeds closes it."""


class Outcome(enum.Enum):
    """How a call ended, as far as the breaker cares."""

    SUCCESS = "success"
    FAILURE = "failure"
    IGNORED = "ignored"
    """Says nothing about the provider, or was never sent."""


_CLOSED, _OPEN, _HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

LEGAL: Final[Mapping[tuple[BreakerState, BreakerState], str]] = {
    (_CLOSED, _OPEN): "nothing passes any more, or a permanent error",
    (_OPEN, _HALF_OPEN): "the pause is over and a probe was taken",
    (_HALF_OPEN, _CLOSED): "a probe succeeded",
    (_HALF_OPEN, _OPEN): "a permanent error",
}
"""Every change of state there is, and its cause. OPEN closes only by a probe; CLOSED never probes."""


@frozen
class Transition:
    """A change of state, for an event."""

    before: BreakerState
    after: BreakerState
    reason: str


@define(eq=False)
class BreakerPermit:
    """A call that may go; ended once. ``epoch`` is the breaker's when the call was taken; ``overdue`` is when
    a probe, if it is one, no longer keeps other probes from going. A call ``despite`` a permanent error is no
    probe.
    """

    epoch: int
    overdue: float
    despite: bool = False
    ended: bool = False


_USUAL = 0.05
"""Share of calls that fail before any is known. ``threshold`` failures in a row are the proof at this share;
at a higher one, as many as are equally unlikely: at 50 % four times as many, at 90 % 28 times."""

_USUAL_MOST = 0.9
_BY_CHANCE = math.log(1e-4)
_QUICK, _SLOW = 32, 256
"""Shares are those of the last 32 and the last 256 first calls of requests. The first follows what begins;
the second outlasts the end of a list, where only answers are still to come. How long
a request is tried follows from the larger of the two, and when the breaker opens from the second. Repeated
calls do not count: a few requests that always fail would make failures look usual. Those of requests that
were answered in the end count for how long a request is tried: at the end of a list there are no others."""

_KEPT = 1.0 - 1.0 / _QUICK

_PROBED_SHARE = 0.015
"""Probes go at most at 1.5 % of the rate of calls seen before, drawn at random: 2 % on average."""

_RATE_SECONDS = 5.0
"""Over which the rate of calls is averaged."""

_LEAST_WEIGHT = 1.0 - math.exp(-1.0 / _RATE_SECONDS)
"""Of calls that came within less than a second, the rate is taken to be that of a whole second."""

_STEADY = 60.0
"""Seconds of an outage in which probes go at that rate; later the time between two grows with the outage."""


FOLLOWED = "another process found it failing"
"""Reason of a breaker that opened because another process said so."""


@define(eq=False)
class CircuitBreaker:
    """Opens when nothing passes; see :data:`LEGAL` for its states.

    The outcome of a call taken before a change of state does not count after it: the calls in flight when it
    opens must not open it again once it closed.

    Args:
        threshold: consecutive failures, beyond twice as many as there are calls in flight, that open it where
            failures are rare, 1 or more.
        pause: longest time from the opening to the first probe, seconds.
        max_pause: longest time between two probes, seconds. Each is drawn between 50 % and 100 %.
        probes: most probes in flight at once; one that is under way for longer than ``max_pause`` does not
            count.

    Attributes:
        passed_at: when the last call succeeded.
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
    _quick_share: float = field(default=0.0, init=False)  # of first calls that failed
    _slow_share: float = field(default=0.0, init=False)
    _answered_share: float = field(default=0.0, init=False)  # of calls of answered requests that failed
    _usual: float = field(default=_USUAL, init=False)  # the second share, at the last success
    _rate: float = field(default=0.0, init=False)  # calls a second that ended, too low by _weight
    _weight: float = field(default=0.0, init=False)
    _ended_at: float = field(default=-math.inf, init=False)
    _opened_at: float = field(default=0.0, init=False)
    _next: float = field(default=0.0, init=False)  # when the next probe may go
    _jitter: float = field(default=1.0, init=False)
    _probing: list[BreakerPermit] = field(factory=list, init=False)
    _error: Exception | None = field(default=None, init=False)
    _unverified: bool = field(default=False, init=False)  # another process said so, and no probe ended since
    _changes: list[Transition] = field(factory=list, init=False)

    @property
    def failure_share(self) -> float:
        """Share of calls that failed lately: of the first calls, without that of the request that asks, or of
        all calls of the requests that were answered, whichever is larger.
        """
        firsts = max(self._quick_share, self._slow_share) - 1.0 / _QUICK
        return max(0.0, firsts, self._answered_share - 1.0 / _QUICK)

    @property
    def passed(self) -> bool:
        """Whether any call ever succeeded."""
        return self.passed_at > -math.inf

    @property
    def run_is_usual(self) -> bool:
        """Whether as many failures in a row as there were lately come by chance where this share fails."""
        return self._run * math.log(self._usual) > _BY_CHANCE

    def look(self, now: float) -> float:
        """Return the earliest time a call may go; ``now`` when it may.

        1. Closed: now.
        2. The time of the next probe has not come: then.
        3. As many probes are in flight as may be: when the first of them is overdue.
        4. A probe may go: now.
        """
        if self.state is _CLOSED:
            return now
        if now < self._next:
            return self._next
        overdue = sorted(probe.overdue for probe in self._probing)
        return now if len(overdue) < self._probes else max(now, overdue[-self._probes])

    def take(self, now: float) -> BreakerPermit:
        """Count a call that :meth:`look` let go.

        Raises:
            RuntimeError: when :meth:`look` would not let it go.
        """
        permit = BreakerPermit(self._epoch, now + self._max_pause)
        if self.state is _CLOSED:
            self._in_flight += 1
            return permit
        if self.look(now) > now:
            raise RuntimeError("the breaker does not let this call go; ask look() first")
        if self.state is _OPEN:
            self._transition(_HALF_OPEN, "the pause is over")
            permit.epoch = self._epoch
        self._probing.append(permit)
        self._next = now + self._jitter * self._interval(now)
        return permit

    def take_despite(self) -> BreakerPermit:
        """Count a call that is made although a permanent error holds all others: whoever makes it wants the
        provider's own answer to it."""
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
        """Count how a call ended; return the change of state it caused, if any.

        1. The call was taken before the last change of state: it does not count.
        2. It was made despite a permanent error: after a success a probe may go at once.
        3. Closed: count the outcome; enough failures in a row open the breaker.
        4. Half open: a success closes it; anything else only ends the probe.

        Args:
            first: whether it was the first call of its request.
            failures: of earlier calls of its request.

        Raises:
            RuntimeError: when the permit was ended before.
        """
        if permit.ended:
            raise RuntimeError("a permit ends once")
        permit.ended = True
        if outcome is Outcome.SUCCESS:
            self.passed_at = now
            self._answered_share += (1.0 - self._answered_share) * (1.0 - _KEPT**failures)
            self._answered_share *= _KEPT
        if permit.epoch != self._epoch:
            return None
        if permit.despite:
            if outcome is Outcome.SUCCESS:
                self._next = now
            return None
        if self.state is _CLOSED:
            self._in_flight -= 1
            if outcome is Outcome.IGNORED or not self._count(outcome is Outcome.FAILURE, now, first):
                return None
            return self.open(f"{self._run} failures in a row", now, rng)
        self._probing.remove(permit)
        self._jitter = jittered(1.0, rng)
        if outcome is not Outcome.SUCCESS:
            self._unverified = self._unverified and outcome is Outcome.IGNORED
            return None
        self._passed()
        return self._told(_CLOSED, "a probe succeeded")

    def open(self, reason: str, now: float, rng: RandomSource) -> Transition:
        """Let nothing but probes through from now on; the first goes after ``pause`` at the latest."""
        self._run = 0
        self._jitter = jittered(1.0, rng)
        self._opened_at = now
        self._next = now + self._jitter * min(self._pause, self._interval(now))
        return self._told(_OPEN, reason)

    def stop(self, error: Exception, now: float, until: float) -> Transition | None:
        """Hold all calls until ``until`` for a permanent error: a wrong key, no money. After that one probe
        goes.
        """
        change = None if self.state is _OPEN else self._told(_OPEN, "permanent error")
        self._error, self._unverified = error, False
        self._opened_at = now
        self._next = max(now, until)
        return change

    @property
    def permanent_error(self) -> Exception | None:
        """The permanent error that opened it; ``None`` once a probe was taken."""
        return self._error

    def stopped(self, now: float) -> Exception | None:
        """Return the permanent error that holds all calls now, if there is one."""
        return self._error if self.state is _OPEN and now < self._next else None

    def follow(self, now: float, rng: RandomSource, *, outage: bool) -> bool:
        """Follow what other processes found; return whether it opened, which :meth:`changes` tells as well.

        1. The provider is down, and this breaker is closed: it opens.
        2. The provider works again, and this breaker is open: a probe may go at once.
        """
        if outage and self.state is _CLOSED:
            self._changes.append(self.open(FOLLOWED, now, rng))
            self._unverified = True
            return True
        if not outage and self.state is _OPEN and self._error is None:
            self._next = now
        return False

    def is_unverified(self, now: float) -> bool:
        """Whether it is open because another process found an outage, maybe long ago, which a probe of this
        one is still to verify. A probe that takes longer than ``max_pause`` counts as failed.
        """
        overdue = self._probing and all(now >= probe.overdue for probe in self._probing)
        return self._unverified and not overdue

    def changes(self) -> list[Transition]:
        """Return, once, the changes that :meth:`take` caused since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def _count(self, failed: bool, now: float, first: bool) -> bool:
        """Count an outcome while closed; True when the failures are enough to open."""
        kept = math.exp((self._ended_at - now) / _RATE_SECONDS) if self._rate else 1.0
        self._rate = self._rate * kept + 1.0 / _RATE_SECONDS
        self._weight = self._weight * kept + (1.0 - kept)
        self._ended_at = now
        if first:
            self._firsts += 1
            self._quick_share += (failed - self._quick_share) / _QUICK
            self._slow_share += (failed - self._slow_share) / min(_QUICK + self._firsts, _SLOW)
        if not failed:
            self._passed()
            return False
        self._run += 1
        # Failures arrive sooner than answers, and others take their place: even where every second call is
        # answered, twice as many may fail as are in flight before the first answer comes.
        return self._run >= 2 * self._in_flight + self._threshold * math.log(_USUAL) / math.log(self._usual)

    def _passed(self) -> None:
        """End the run of failures; from now on the share of failures counts as usual."""
        self._run = 0
        self._usual = min(max(self._slow_share, _USUAL), _USUAL_MOST)

    def _interval(self, now: float) -> float:
        """Return the most seconds between two probes."""
        rate = self._rate / max(self._weight, _LEAST_WEIGHT)
        slower = max(1.0, (now - self._opened_at) / _STEADY)
        return min(slower / (_PROBED_SHARE * rate), self._max_pause) if rate else self._max_pause

    def _told(self, after: BreakerState, reason: str) -> Transition:
        """Change the state and return the change, which :meth:`changes` then does not return."""
        self._transition(after, reason)
        return self._changes.pop()

    def _transition(self, after: BreakerState, reason: str) -> None:
        """Change the state, see :data:`LEGAL`; nothing else does. Permits taken before no longer count."""
        self._changes.append(Transition(self.state, after, reason))
        self.state = after
        self._unverified = self._unverified and after is _HALF_OPEN
        self._epoch += 1
        self._in_flight = 0
        self._probing = []
        self._error = None
