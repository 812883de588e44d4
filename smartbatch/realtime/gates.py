"""The gates before a call: budget, breaker, throttle, cooldown and rate limits.

All are checked and then all are taken, in one critical section: taking them one by one could lose the
breaker's only probe, or use up a request of the quota for a call that its tokens forbid. A gate never sleeps
and never does I/O; it answers with a time. The last gate, a free worker, is the dispatcher's.
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
    """How a call ended, as far as the gates are concerned."""

    SUCCESS = "success"
    REFUSED = "refused"
    """Rejected because of a provider's limit: the quota pauses all requests."""
    FAILURE = "failure"
    """A failure of the provider: the breaker counts it."""
    IGNORED = "ignored"
    """A failure of this request alone: it says nothing about the provider's health."""
    DROPPED = "dropped"
    """Never sent: all permits are returned."""


@define(eq=False)
class Demand:
    """What a call will use."""

    tokens: float  # estimated, input and output
    cost: float  # maximum, USD
    first: bool  # whether it is the first call of its requests
    failures: int  # of earlier calls of its first request, without refusals by a limit
    output: float  # the part of tokens that is output
    urgent: bool  # whether its first request is urgent; then its share of a limit is leased first
    own_budget: Budget | None  # the budget that pays; None for the client's
    keeps_going: bool = False  # whether it is made although the provider refuses the key, account or model


@frozen
class Used:
    """What a call actually used, and what its answer said about limits."""

    # input and output; None keeps the estimate of a success and returns that of a failure
    tokens: float | None = None
    output: float | None = None  # the part of tokens that is output; None for the expected share
    cost: float = 0.0  # USD, as far as it is known
    unconfirmed: float = 0.0  # USD that may have been billed in addition
    retry_after: float | None = None  # seconds the provider asked to wait
    limits: LimitReport | None = None  # reported in the answer or the error


NOTHING = Used()
"""The use of a call that was never made, or about which nothing is known."""

Change: TypeAlias = "Transition | Cooldown"


@define(eq=False)
class Permit:
    """The right to make one call. It has one owner and ends once."""

    lane: Lane
    demand: Demand
    reservation: Reservation
    through: BreakerPermit
    hold: SpendReservation
    ended: bool = False
    cooldown: Cooldown | None = None  # started or extended when the permit ended


class Gates:
    """Admits calls. All methods but :meth:`end_quota` expect the client's monitor to be held."""

    def __init__(self, budget: Budget, rng: random.Random) -> None:
        self.budget = budget
        self.permits_out = 0
        self._rng = rng

    def look(self, lane: Lane, demand: Demand, now: float) -> float:
        """Return the earliest time at which to ask for a permit: ``now`` if there is one."""
        with lane.quota.lock:
            return self._look_locked(lane, demand, now)

    def admit(self, lane: Lane, demand: Demand, now: float) -> Permit | float:
        """Return a permit, or the earliest time at which to ask again."""
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
        """Return why the limits will never allow a call, however long it waits; otherwise an empty string."""
        lease = lane.quota.quota.lease
        return "" if lease is None else lease.refusal

    def lack_lease(self, lane: Lane) -> bool:
        """Whether a call lacked leased parts of a limit or the budget, so that more were requested."""
        leases = (lane.quota.quota.lease, self.budget.lease)
        return any(lease is not None and lease.is_lacking for lease in leases)

    def lack(self, lane: Lane, waiting: int, parallelism: int) -> None:
        """Note how many requests wait for a gate; the lease of a shared limit covers those that have a
        worker.
        """
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
        """Return the budget of the request's list, or else the client's."""
        return self.budget if own_budget is None else own_budget

    def end(self, permit: Permit, ending: Ending, now: float, used: Used = NOTHING) -> list[Change]:
        """End ``permit``; return what changed for all requests: the breaker, or a cooldown.

        Raises:
            AssertionError: the permit has ended before.
        """
        if permit.ended:
            raise AssertionError("a permit ended twice")
        permit.ended = True
        self.permits_out -= 1
        lane, demand = permit.lane, permit.demand
        # 1. End the quota's part, unless end_quota did so before.
        if not permit.reservation.ended:
            self.end_quota(permit, ending, now, used)
        changes: list[Change] = [] if permit.cooldown is None else [permit.cooldown]
        succeeded = ending is Ending.SUCCESS
        # 2. Charge the known cost to the budget; what may have been billed in addition stays reserved.
        self.payer(demand.own_budget).settle(permit.hold, used.cost, used.unconfirmed)
        # 3. Inform the throttle and the breaker, which count the provider's successes and failures.
        health = _HEALTH.get(ending, Outcome.IGNORED)
        judged = health is not Outcome.IGNORED and lane.breaker.state is BreakerState.CLOSED
        accepted = succeeded if judged else None  # probes matter only to the breaker
        lane.throttle.end(permit.reservation.started, now, accepted=accepted)
        transition = lane.breaker.end(
            permit.through, now, health, self._rng, first=demand.first, failures=demand.failures
        )
        if transition is not None:
            lane.throttle.restart()
            changes.append(transition)
        return changes

    def end_quota(self, permit: Permit, ending: Ending, now: float, used: Used) -> None:
        """End the quota's part of ``permit``. Its own lock suffices, which keeps the monitor free.

        A success uses tokens, a refusal starts or extends a cooldown, a call that was not made returns
        everything, and any other failure uses its actual tokens. Limits reported in the answer are learned.
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
    """Whether the provider is known to refuse the key, the account or the model.

    If so, only requests of lists that keep going are sent.
    """
    error = lane.breaker.permanent_error
    return isinstance(error, ProviderError) and is_for_all(error)


_HEALTH = {Ending.SUCCESS: Outcome.SUCCESS, Ending.FAILURE: Outcome.FAILURE}
