"""The gates before a call: budget, breaker, throttle, cooldown and rate limits.

All gates are checked and then taken in one critical section. Taking them one by one could use up the
breaker's only probe, or part of a quota, for a call that another gate forbids. Gates neither sleep nor do
I/O; they return the time at which to try again.
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
    SUCCESS = "success"
    REFUSED = "refused"
    """Rejected by a provider's limit. The quota pauses all requests."""
    FAILURE = "failure"
    """Failed because of the provider. The breaker counts it."""
    IGNORED = "ignored"
    """Failed for a reason that says nothing about the provider's health."""
    DROPPED = "dropped"
    """Never sent. All permits are returned."""


@define(eq=False)
class Demand:
    tokens: float  # estimated, input and output
    cost: float  # maximum, USD
    first: bool
    failures: int  # earlier failures of its first request, excluding rate limits
    output: float  # output tokens, included in tokens
    urgent: bool  # its share of a limit is leased first
    own_budget: Budget | None  # None for the client's budget
    keeps_going: bool = False  # sent even if the provider refuses the key, account or model


@frozen
class Used:
    # input and output; None keeps the estimate after a success and returns it after a failure
    tokens: float | None = None
    output: float | None = None  # output tokens; None assumes the expected share
    cost: float = 0.0  # USD
    unconfirmed: float = 0.0  # USD that may have been billed in addition
    retry_after: float | None = None  # seconds
    limits: LimitReport | None = None


NOTHING_USED = Used()
Change: TypeAlias = "Transition | Cooldown"


@define(eq=False)
class Permit:
    """The right to make one call. It has a single owner, which ends it exactly once."""

    lane: Lane
    demand: Demand
    reservation: Reservation
    through: BreakerPermit
    hold: SpendReservation
    ended: bool = False
    cooldown: Cooldown | None = None  # started or extended when the permit ended


class Gates:
    """All methods except :meth:`end_quota` require the client's monitor."""

    def __init__(self, budget: Budget, rng: random.Random) -> None:
        self.budget = budget
        self.permits_out = 0
        self._rng = rng

    def next_try(self, lane: Lane, demand: Demand, now: float) -> float:
        """Return ``now`` if a permit is available, otherwise the earliest time to try again."""
        with lane.quota.lock:
            return self._look_locked(lane, demand, now)

    def admit(self, lane: Lane, demand: Demand, now: float) -> Permit | float:
        """Return a permit, or the earliest time to try again."""
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
        """Return why the limits can never allow a call, or an empty string."""
        lease = lane.quota.quota.lease
        return "" if lease is None else lease.refusal

    def waits_for_lease(self, lane: Lane) -> bool:
        """Return whether calls must wait for a lease of a limit or budget that has already been requested."""
        leases = (lane.quota.quota.lease, self.budget.lease)
        return any(lease is not None and lease.is_lacking for lease in leases)

    def note_waiting(self, lane: Lane, waiting: int, parallelism: int) -> None:
        """Record how many requests wait for a gate. A lease covers at most one request per worker."""
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

    def reserve_more(self, permit: Permit, cost: float) -> None:
        """Add USD that fit into the budget to the reservation of ``permit``."""
        permit.demand.cost += cost
        self.payer(permit.demand.own_budget).resize(permit.hold, permit.hold.usd + cost)

    def payer(self, own_budget: Budget | None) -> Budget:
        return self.budget if own_budget is None else own_budget

    def end(self, permit: Permit, ending: Ending, now: float, used: Used = NOTHING_USED) -> list[Change]:
        """End ``permit``. Return the changes that affect all requests: to the breaker or a cooldown.

        Raises:
            AssertionError: the permit has already ended.
        """
        if permit.ended:
            raise AssertionError("a permit ended twice")
        permit.ended = True
        self.permits_out -= 1
        lane, demand = permit.lane, permit.demand
        # 1. End the quota's part, unless end_quota has already done so.
        if not permit.reservation.ended:
            self.end_quota(permit, ending, now, used)
        changes: list[Change] = [] if permit.cooldown is None else [permit.cooldown]
        succeeded = ending is Ending.SUCCESS
        # 2. Charge the known cost to the budget. Amounts that may have been billed in addition stay reserved.
        self.payer(demand.own_budget).reconcile(permit.hold, used.cost, used.unconfirmed)
        # 3. Report the provider's success or failure to the throttle and the breaker.
        health = _HEALTH.get(ending, Outcome.IGNORED)
        judged = health is not Outcome.IGNORED and lane.breaker.state is BreakerState.CLOSED
        accepted = succeeded if judged else None  # only the breaker needs probes
        lane.throttle.end(permit.reservation.started, now, accepted=accepted)
        transition = lane.breaker.end(
            permit.through, now, health, self._rng, first=demand.first, failures=demand.failures
        )
        if transition is not None:
            lane.throttle.restart()
            changes.append(transition)
        return changes

    def end_quota(self, permit: Permit, ending: Ending, now: float, used: Used) -> None:
        """End the quota's part of ``permit``. Only the quota's own lock is needed.

        A success is charged for its tokens, a refusal starts or extends a cooldown, an unsent call returns
        everything, and any other failure is charged for the tokens it used. The quota follows limits reported
        in the answer.
        """
        demand, reservation, quota = permit.demand, permit.reservation, permit.lane.quota.quota
        reported = used.limits if ending is not Ending.REFUSED else None
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
            if reported is not None:
                quota.learn(reported, reservation, now)


def is_refused(lane: Lane) -> bool:
    """Return whether the provider refuses the key, the account or the model.

    If so, only requests with ``keeps_going`` are sent.
    """
    error = lane.breaker.permanent_error
    return isinstance(error, ProviderError) and is_for_all(error)


_HEALTH = {Ending.SUCCESS: Outcome.SUCCESS, Ending.FAILURE: Outcome.FAILURE}
