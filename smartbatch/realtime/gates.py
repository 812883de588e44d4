"""The gates before a call: budget, breaker, retry budget, cooldown and rate limits.

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

from smartbatch.core.limits.breaker import Outcome, Transition
from smartbatch.core.limits.breaker import Permit as Pass
from smartbatch.core.limits.budget import Budget, SpendReservation
from smartbatch.core.limits.header_limits import Reservation
from smartbatch.core.limits.quota import Cooldown
from smartbatch.realtime.lane import Lane
from smartbatch.types import LimitReport

__all__ = ["Demand", "Ending", "Gates", "Permit"]


class Ending(enum.Enum):
    """How a call ended, as the gates need to know it."""

    SUCCESS = "success"
    REFUSED = "refused"
    """The provider's limit: the quota pauses everybody."""
    FAILURE = "failure"
    """The provider's fault: the breaker counts it."""
    IGNORED = "ignored"
    """The request's own fault: it says nothing about the provider's health."""
    DROPPED = "dropped"
    """Never sent: everything is given back."""


@frozen
class Demand:
    """What a call will use.

    Attributes:
        tokens: estimated input and output tokens.
        cost: most it can cost, USD.
        first: True for the first call of its requests.
        retry: True when it repeats a call that failed by itself, and not for the provider's state.
        output: the part of ``tokens`` that is output.
        budget: pays for it; the client's budget when ``None``.
    """

    tokens: float
    cost: float
    first: bool
    retry: bool
    output: float = 0.0
    own_budget: Budget | None = None


Change: TypeAlias = "Transition | Cooldown"


@define(eq=False)
class Permit:
    """The right to make one call. It has one owner and ends once."""

    lane: Lane
    demand: Demand
    reservation: Reservation
    through: Pass
    hold: SpendReservation
    ended: bool = False


class Gates:
    """Admits calls. Every method expects the client's monitor to be held.

    Args:
        budget: the client's, in USD.
        call_timeout: seconds after which a probe of the breaker counts as failed.
        rng: dice for pauses.
    """

    def __init__(self, budget: Budget, call_timeout: float, rng: random.Random) -> None:
        self.budget = budget
        self.permits_out = 0
        self._call_timeout = call_timeout
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
        if demand.retry:
            lane.retry_budget.take(now)
        elif demand.first:
            lane.retry_budget.called()
        self.permits_out += 1
        through = lane.breaker.take(now, now + self._call_timeout)
        return Permit(lane, demand, reservation, through, self.payer(demand.own_budget).reserve(demand.cost))

    def _look_locked(self, lane: Lane, demand: Demand, now: float) -> float:
        at = lane.breaker.look(now)
        if demand.retry:
            at = max(at, lane.retry_budget.look(now))
        if not self.payer(demand.own_budget).fits(demand.cost):
            return math.inf
        return max(at, lane.quota.quota.look(now, demand.tokens, demand.output))

    def payer(self, own_budget: Budget | None) -> Budget:
        """Return who pays for a request: the budget of its list, or else the client's budget."""
        return self.budget if own_budget is None else own_budget

    def end(
        self,
        permit: Permit,
        ending: Ending,
        now: float,
        *,
        tokens: float | None = None,
        output: float | None = None,
        cost: float | None = None,
        maybe_billed: bool = False,
        retry_after: float | None = None,
        limits: LimitReport | None = None,
    ) -> list[Change]:
        """End ``permit`` and return what changed for everybody.

        Args:
            tokens: what was really used; ``None`` keeps the estimate of a success and gives back others.
            output: the part of ``tokens`` that is output; ``None`` for the share that was expected.
            cost: what was really paid, USD; ``None`` as with ``tokens``.
            maybe_billed: the answer of a failed call is lost, and with it what it cost: its most counts.
            retry_after: seconds the provider asked to wait.
            limits: what the answer said about limits, whether it was a success or a failure.
        """
        if permit.ended:
            raise AssertionError("a permit ended twice")
        permit.ended = True
        lane, demand = permit.lane, permit.demand
        self.permits_out -= 1
        changes: list[Change] = []
        with lane.quota.lock:
            quota, reservation = lane.quota.quota, permit.reservation
            if ending is Ending.SUCCESS:
                used = demand.tokens if tokens is None else tokens
                quota.succeeded(reservation, now, used, demand.output if tokens is None else output)
            elif ending is Ending.REFUSED:
                changes.append(quota.refused(reservation, now, retry_after, self._rng, limits))
            elif ending is Ending.DROPPED:
                quota.dropped(reservation, now)
            else:
                quota.failed(reservation, now, tokens, output)
            if limits is not None and ending is not Ending.REFUSED:
                quota.learn(limits, reservation, now)
        payer = self.payer(demand.own_budget)
        if ending is Ending.SUCCESS:
            payer.settle(permit.hold, demand.cost if cost is None else cost)
            if demand.retry:
                lane.retry_budget.succeeded()
        else:
            payer.settle(permit.hold, demand.cost if maybe_billed else cost or 0.0)
            if demand.retry and ending is Ending.DROPPED:
                lane.retry_budget.dropped()
        health = _HEALTH.get(ending, Outcome.IGNORED)
        transition = lane.breaker.end(permit.through, now, health, self._rng)
        if transition is not None:
            changes.append(transition)
        return changes


_HEALTH = {Ending.SUCCESS: Outcome.SUCCESS, Ending.FAILURE: Outcome.FAILURE}
