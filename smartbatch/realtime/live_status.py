"""Current status of a client's requests: which ones wait, how long, and for what."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from attrs import evolve

from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.lease import LimitLease, QuotaFacts
from smartbatch.observe.participants import LaneStatus, RealtimeStatus
from smartbatch.realtime.lane_queue import LaneQueue
from smartbatch.realtime.queue import RequestQueue
from smartbatch.realtime.ticket import Ticket, TicketState
from smartbatch.types import Priority

_MAX_SEARCHED = 10_000
"""Number of oldest requests that are searched for the longest waits; the search takes about a millisecond."""

_MINUTE_SECONDS = 60.0


def status_of(
    queue: RequestQueue, budget: Budget, now: float, hide: Callable[[str], str], *, budget_scope: str
) -> RealtimeStatus:
    """Compute the status, holding the monitor only briefly.

    Args:
        hide: returns an anonymous name for a quota or budget.
        budget_scope: names a budget that processes share.
    """
    waits: dict[str, int] = {}
    lanes = []
    with queue.monitor:
        served = 0
        for lane, lane_queue in queue.lanes.items():
            with lane.quota.lock:
                facts, lease = lane.quota.quota.facts(now), lane.quota.quota.lease
            cause = _cause(lane_queue, facts, budget, now, flushed=queue.flushing)
            if cause:
                waits[cause] = waits.get(cause, 0) + lane_queue.waiting
                served += lane_queue.waiting
            elif lane_queue.held:
                cause = next(iter(lane_queue.waiting_for_calls))
            elif lane_queue.delayed:
                cause = "retry"
            for held_for, waiting in lane_queue.waiting_for_calls.items():
                waits[held_for] = waits.get(held_for, 0) + waiting
                served += waiting
            name = hide(f"{lane.provider.scope}\n{lane.model}")
            lanes.append(_status_of_lane(lane_queue, cause, name, facts, lease, now))
        if queue.counts.waiting > served:
            waits["retry"] = queue.counts.waiting - served
        left = budget.left
        unleased = {} if budget.lease is None else {hide(budget_scope): budget.lease.last_unleased}
        status = RealtimeStatus(
            waiting=queue.counts.waiting,
            in_flight=queue.counts.in_flight,
            blocked=queue.blocked,
            waits=waits,
            budget=0.0 if left is None else _whole(budget, left) + sum(unleased.values()),
            spent=budget.spent,
            unconfirmed=budget.unconfirmed,
            unleased=unleased,
            lanes=tuple(lanes),
        )
        tickets = list(itertools.islice(queue.live, _MAX_SEARCHED))
    oldest = _oldest(tickets, now)
    return evolve(status, oldest_wait=max(oldest.values(), default=0.0), oldest_waits=oldest)


def _whole(budget: Budget, left: float) -> float:
    return budget.spent + budget.unconfirmed + budget.reserved + left


def _oldest(tickets: list[Ticket], now: float) -> dict[str, float]:
    found: dict[Priority, float] = {}
    for ticket in tickets:
        waiter = next(iter(ticket.waiters), None)  # one step, because the list may become empty at any time
        if ticket.state is TicketState.WAITING and waiter is not None:
            found.setdefault(waiter.request.priority, waiter.submitted)
            if len(found) == len(Priority):
                break
    return {each.name.lower(): _short(max(0.0, now - found[each])) for each in sorted(found)}


def _cause(lane_queue: LaneQueue, facts: QuotaFacts, budget: Budget, now: float, *, flushed: bool) -> str:
    """Return what the first request of a lane waits for, or an empty string."""
    lane, head = lane_queue.lane, lane_queue.head()
    if head is None:
        return ""
    if lane.provider_health.pause is not None:
        return "pause"
    if lane_queue.ready(now, flushed=flushed) > now:
        return "window"
    if lane.provider_health.open_since is not None:
        return "breaker"
    if facts.cool_until > now:
        return "cooldown"
    left = (head.own_budget or budget).left
    if left is not None and left < head.reserve:
        return "budget"
    return "limit" if lane.held_until > now else "slot"


def _status_of_lane(
    lane_queue: LaneQueue, cause: str, name: str, facts: QuotaFacts, lease: LimitLease | None, now: float
) -> LaneStatus:
    lane = lane_queue.lane
    grant = None if lease is None else lease.grant
    rates: Sequence[float] = facts.rates if grant is None else grant.rates
    left: Sequence[float] = [0.0] * 4 if grant is None else grant.left
    return LaneStatus(
        model=lane.label,
        quota=name,
        waiting=lane_queue.waiting + sum(lane_queue.waiting_for_calls.values()),
        in_flight=lane.in_flight,
        waits_for=cause,
        breaker=lane.breaker.state.value,
        requests_per_minute=_short(rates[0] * _MINUTE_SECONDS),
        tokens_per_minute=_short(rates[1] * _MINUTE_SECONDS),
        input_tokens_per_minute=_short(rates[2] * _MINUTE_SECONDS),
        output_tokens_per_minute=_short(rates[3] * _MINUTE_SECONDS),
        requests_left=_short(left[0]),
        tokens_left=_short(left[1]),
        input_tokens_left=_short(left[2]),
        output_tokens_left=_short(left[3]),
        spaced_per_minute=_short(facts.spaced * _MINUTE_SECONDS),
        cooldown=_short(max(0.0, facts.cool_until - now)),
        processes=1 if grant is None else max(1, grant.members),
        is_lost=lease is not None and lease.lost,
        answered=facts.accepted,
    )


def _short(number: float) -> float:
    return round(number, 3) if math.isfinite(number) else 0.0
