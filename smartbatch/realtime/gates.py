"""The gates before a call: budget, breaker, throttle, cooldown and rate limits.

All are looked at, then all are taken, in one critical section: taking them one by one could lose the
breaker's only probe, or spend a request of the quota on a call that its tokens forbid. A gate never sleeps
and never does I/O; it answers with a time. The free slot, the last gate, is the dispatcher's to know.
"""

from __future__ import annotations

import enum
import math
import random
from typing import TypeAlias

from attrs import define, frozen

from smartbatch.core.limits.budget import Budget, SpendReservation
from smartbatch.core.limits.circuit_breaker import BreakerPermit, BreakerState, Outcome, Transition
from smartbatch.core.limits.cooldown import Cooldown
from smartbatch.core.limits.failures import is_for_all
from smartbatch.core.limits.reported_limits import Reservation
from smartbatch.errors import ProviderError
from smartbatch.realtime.lane import Lane
from smartbatch.types import LimitReport


class Ending(enum.Enum):
    """How a call ended, as the gates need to know it."""

    SUCCESS = "success"
    REFUSED = "refused"
    """The provider's limit: the quota pauses all requests."""
    FAILURE = "failure"
    """The provider failed: the breaker counts it."""
    IGNORED = "ignored"
    """The request failed for itself: it says nothing about the provider's health."""
    DROPPED = "dropped"
    """Never sent: everything is given back."""


@define(eq=False)
class Demand:
    """What a call will use.

    Attributes:
        tokens: estimated input and output tokens.
        cost: most it can cost, USD.
        first: whether it is the first call of its requests.
        failures: of earlier calls of its first request, refusals for the limit aside.
        output: the part of ``tokens`` that is output.
        urgent: whether its first request is; then its share of a limit is leased before others.
        own_budget: pays for it; the client's budget when ``None``.
        keeps_going: whether it is made although the provider refuses the key, the account or the model.
    """

    tokens: float
    cost: float
    first: bool
    failures: int
    output: float
    urgent: bool
    own_budget: Budget | None
    keeps_going: bool = False


@frozen
class Used:
    """What a call really used, and what its answer said.

    Attributes:
        tokens: of input and output; ``None`` keeps the estimate of a success and gives back others.
        output: the part of ``tokens`` that is output; ``None`` for the share that was expected.
        cost: USD, as far as its bill is known.
        unconfirmed: USD that it may have cost besides, where its bill is unknown.
        retry_after: seconds the provider asked to wait.
        limits: what the answer said about limits, whether it was a success or a failure.
    """

    tokens: float | None = None
    output: float | None = None
    cost: float = 0.0
    unconfirmed: float = 0.0
    retry_after: float | None = None
    limits: LimitReport | None = None


NOTHING = Used()
"""Of a call that was never made, or of which nothing is known."""

Change: TypeAlias = "Transition | Cooldown"


@define(eq=False)
class Permit:
    """The right to make one call. It has one owner and ends once.

    Attributes:
        cooldown: that began as it ended, or was lengthened.
    """

    lane: Lane
    demand: Demand
    reservation: Reservation
    through: BreakerPermit
    hold: SpendReservation
    ended: bool = False
    cooldown: Cooldown | None = None


class Gates:
    """Admits calls. Every method but :meth:`end_quota` expects the client's monitor to be held.

    Args:
        budget: the client's, in USD.
        rng: random numbers for the lengths of cooldowns and breaker pauses.
    """

    def __init__(self, budget: Budget, rng: random.Random) -> None:
        self.budget = budget
        self.permits_out = 0
        self._rng = rng

    def look(self, lane: Lane, demand: Demand, now: float) -> float:
        """Return the earliest time at which asking for a permit makes sense: ``now`` when there is one."""
        with lane.quota.lock:
            return self._look_locked(lane, demand, now)

    def admit(self, lane: Lane, demand: Demand, now: float) -> Permit | float:
        """Return a permit, or the earliest time at which asking again makes sense."""
        with lane.quota.lock:
            at = self._look_locked(lane, demand, now)
            if at > now:
                return at
            reservation = lane.quota.quota.take(now, demand.tokens, demand.output)
        self.permits_out += 1
        ignores_breaker = demand.keeps_going and is_refused(lane)
        through = lane.breaker.take_despite() if ignores_breaker else lane.breaker.take(now)
        lane.throttle.take(now)
        return Permit(lane, demand, reservation, through, self.payer(demand.own_budget).reserve(demand.cost))

    def refusal(self, lane: Lane) -> str:
        """Return why the limits let no call go, where waiting does not help; else an empty text."""
        lease = lane.quota.quota.lease
        return "" if lease is None else lease.refusal

    def lack_lease(self, lane: Lane) -> bool:
        """Whether a call lacked what is leased of a limit or the budget, and more is asked for."""
        leases = (lane.quota.quota.lease, self.budget.lease)
        return any(lease is not None and lease.is_lacking for lease in leases)

    def lack(self, lane: Lane, waiting: int, parallelism: int) -> None:
        """So many requests wait for a gate: of a limit that processes share as much is leased as all can use
        that have a worker."""
        lease = lane.quota.quota.lease
        if lease is not None:
            lease.waiting = min(waiting, parallelism)

    def _look_locked(self, lane: Lane, demand: Demand, now: float) -> float:
        lease = lane.quota.quota.lease
        if lease is not None:
            lease.urgent = demand.urgent
        if lease is not None and lease.outages != lane.provider_health.outages:
            lane.provider_health.outages = lease.outages
            if lane.breaker.follow(now, self._rng, outage=lease.outage):
                lane.provider_health.open_since = now
        at = lane.throttle.look(now)
        if not (demand.keeps_going and is_refused(lane)):
            at = max(at, lane.breaker.look(now))
        if not self.payer(demand.own_budget).fits(demand.cost):
            return math.inf
        return max(at, lane.quota.quota.look(now, demand.tokens, demand.output))

    def payer(self, own_budget: Budget | None) -> Budget:
        """Return who pays for a request: the budget of its list, or else the client's budget."""
        return self.budget if own_budget is None else own_budget

    def end(self, permit: Permit, ending: Ending, now: float, used: Used = NOTHING) -> list[Change]:
        """End ``permit`` and return what changed for all requests: the breaker, or a cooldown.

        In order, each by how the call ended:

        1. The quota, unless :meth:`end_quota` has ended it before.
        2. The budget: what is known of the cost is spent, and what may have been billed besides stays held
           back.
        3. The throttle and the breaker: they count successes and failures of the provider.

        Raises:
            AssertionError: the permit has ended before.
        """
        if permit.ended:
            raise AssertionError("a permit ended twice")
        permit.ended = True
        self.permits_out -= 1
        lane, demand = permit.lane, permit.demand
        if not permit.reservation.ended:
            self.end_quota(permit, ending, now, used)
        changes: list[Change] = [] if permit.cooldown is None else [permit.cooldown]
        succeeded = ending is Ending.SUCCESS
        self.payer(demand.own_budget).settle(permit.hold, used.cost, used.unconfirmed)
        health = _HEALTH.get(ending, Outcome.IGNORED)
        judged = health is not Outcome.IGNORED and lane.breaker.state is BreakerState.CLOSED
        accepted = succeeded if judged else None  # the outcome of a probe is the breaker's affair
        lane.throttle.end(permit.reservation.started, now, accepted=accepted)
        transition = lane.breaker.end(
            permit.through, now, health, self._rng, first=demand.first, failures=demand.failures
        )
        if transition is not None:
            lane.throttle.restart()
            changes.append(transition)
        return changes

    def end_quota(self, permit: Permit, ending: Ending, now: float, used: Used) -> None:
        """End what ``permit`` has of the quota, whose lock is enough: so the monitor is held for less long.

        A success uses tokens; a refusal starts or lengthens a cooldown; a call that was never made gives all
        back; any other failure uses what was really used. Then it learns the limits that the answer told.
        """
        demand, reservation, quota = permit.demand, permit.reservation, permit.lane.quota.quota
        told = used.limits if ending is not Ending.REFUSED else None
        with permit.lane.quota.lock:
            if ending is Ending.SUCCESS and used.tokens is None:
                quota.succeeded(reservation, now, demand.tokens, demand.output)
            elif ending is Ending.SUCCESS:
                quota.succeeded(reservation, now, used.tokens, used.output)
            elif ending is Ending.REFUSED:
                permit.cooldown = quota.refused(reservation, now, used.retry_after, self._rng, used.limits)
            elif ending is Ending.DROPPED:
                quota.dropped(reservation, now)
            else:
                quota.failed(reservation, now, used.tokens, used.output)
            if told is not None:
                quota.learn(told, reservation, now)


def is_refused(lane: Lane) -> bool:
    """Whether the provider refuses the key, the account or the model, as far as is known; then only requests
    of lists that keep going are sent."""
    error = lane.breaker.permanent_error
    return isinstance(error, ProviderError) and is_for_all(error)


_HEALTH = {Ending.SUCCESS: Outcome.SUCCESS, Ending.FAILURE: Outcome.FAILURE}
