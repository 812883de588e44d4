"""A call in flight: its usage, its cost at the prices of the tier that answered, and its end."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextvars import Context, copy_context

from attrs import define, frozen

from smartbatch.core.batching.packing import split_usage
from smartbatch.core.batching.request_batch import Batch
from smartbatch.core.limits.failures import (
    is_unhealthy,
)
from smartbatch.core.prefixes.entries import NOTHING, Chosen
from smartbatch.core.preparation.tokens import estimate, estimated_usage
from smartbatch.errors import (
    ErrorKind,
    MissingAnswer,
    ParameterRejected,
    ProviderError,
)
from smartbatch.events import (
    CalledRequest,
)
from smartbatch.prices import RateCard
from smartbatch.providers.base import FLEX_TIER_NAME, processing_of
from smartbatch.realtime.call import Outcome
from smartbatch.realtime.gates import Ending, Permit, Used
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.ticket import Ticket
from smartbatch.types import NO_USAGE, Answer, Route, Usage


@frozen
class Bill:
    cost: float | None = 0.0  # USD; None if price or usage is unknown
    unconfirmed: float = 0.0  # maximum USD if the usage is unknown, otherwise 0
    usage: Usage | None = None  # None if not reported


@frozen
class CallBill:
    usage: Usage | None = None  # total; None if not reported
    parts: Sequence[Bill] = ()
    cost: float | None = 0.0  # total USD; None if one part is unknown
    known: float = 0.0  # USD of the parts with a known cost
    unconfirmed: float = 0.0  # maximum USD of the other parts


NO_BILL = CallBill()


def bill(call: InFlightCall, outcomes: Sequence[Outcome]) -> CallBill:
    lane, tickets = call.permit.lane, call.batch.items
    parts: list[Bill] = []
    whole: Usage | None = None
    known, unconfirmed, complete = 0.0, 0.0, True
    for ticket, outcome, usage in zip(tickets, outcomes, _usages(tickets, outcomes), strict=True):
        part = _bill_of(lane, ticket, outcome, usage)
        if call.cached.uses_explicit and not is_from_cache(outcome):
            part = _with_cache(call, part)
        parts.append(part)
        if part.usage is not None:
            whole = part.usage if whole is None else whole + part.usage
        known += part.cost or 0.0
        unconfirmed += part.unconfirmed
        complete = complete and part.cost is not None
    return CallBill(whole, parts, known if complete else None, known, unconfirmed)


def _usages(tickets: Sequence[Ticket], outcomes: Sequence[Outcome]) -> list[Usage | None]:
    """Return the usage of each request. An error of the whole call reports the tokens of all requests; these
    are split by prompt length.
    """
    first = outcomes[0]
    usages = [None if outcome is None else outcome.usage for outcome in outcomes]
    if len(outcomes) == 1 or usages[0] is None or not isinstance(first, ProviderError):
        return usages
    if any(outcome is not first for outcome in outcomes):
        return usages
    return [*split_usage(usages[0], *[[max(1, ticket.input_tokens) for ticket in tickets]] * 2)]


def add_to_ticket(ticket: Ticket, outcome: Outcome, bill: Bill) -> None:
    """Add usage and cost of a call to the ticket's totals, which include failed tries."""
    usage = _usage_of(ticket, outcome, bill)
    ticket.calling = False
    ticket.usage = ticket.usage + usage if ticket.attempts > 1 else usage
    if bill.unconfirmed:
        ticket.unconfirmed += bill.unconfirmed
    elif bill.cost is None or ticket.cost is None:
        ticket.cost = None
    if bill.cost is not None and ticket.cost is not None:
        ticket.cost += bill.cost


def ticket_bill(ticket: Ticket) -> Bill:
    """Return the known cost of a ticket's calls, and the maximum cost of the others.

    The others include a call in flight whose answer the ticket no longer waits for.
    """
    lane = ticket.lane
    unconfirmed, cost = ticket.unconfirmed, ticket.cost
    if ticket.calling and lane.provider.capabilities.priced and ticket.request.call is None:
        unconfirmed += _most_cost(lane, ticket)
        cost = cost or None
    return Bill(None if unconfirmed and not cost else cost, unconfirmed)


def _usage_of(ticket: Ticket, outcome: Outcome, bill: Bill) -> Usage:
    usage = bill.usage
    if usage is not None or bill.cost is not None or ticket.request.call is not None:
        return usage or NO_USAGE
    if not isinstance(outcome, Answer):
        return Usage(unknown=True)
    return estimated_usage(ticket.request, ticket.lane.label, estimate(outcome.text or ""))


def _bill_of(lane: Lane, ticket: Ticket, outcome: Outcome, usage: Usage | None) -> Bill:
    # 1. The provider reports the cost or is free.
    if isinstance(outcome, Answer | ProviderError) and outcome.cost is not None:
        return Bill(outcome.cost, usage=usage)
    if not lane.provider.capabilities.priced:
        return Bill(usage=usage)
    # 2. The usage is missing or incomplete, for example after an interrupted stream: up to the maximum
    # cost may be billed, unless the error rules that out.
    rates = _rates(lane, outcome)
    if usage is None or usage.estimated:
        is_missing = isinstance(outcome, MissingAnswer)
        if isinstance(outcome, ProviderError) and usage is None and not (outcome.maybe_billed or is_missing):
            return Bill()
        least = 0.0 if usage is None or rates is None else rates.cost(usage)
        return Bill(None, max(least, _most_cost(lane, ticket)), usage)
    # 3. Otherwise, compute the cost from the usage if the price is known.
    return Bill(None if rates is None else rates.cost(usage), usage=usage)


def _with_cache(call: InFlightCall, part: Bill) -> Bill:
    """Add what an explicit cache has cost since the latest charge, even if its request failed.

    If the cost of the request itself is unknown, the next request or the deletion is charged.
    """
    lane, mark = call.permit.lane, call.cached.mark
    if part.unconfirmed or (part.cost is None and part.usage is None) or lane.caches is None or mark is None:
        return part
    cache = Usage(explicit_cache_tokens=lane.caches.due(lane.provider, lane.model, mark.prefixes[-1].key))
    if cache == NO_USAGE:
        return part
    cost = None if part.cost is None or lane.rates is None else part.cost + lane.rates.cost(cache)
    return Bill(cost, usage=(part.usage or NO_USAGE) + cache)


def _most_cost(lane: Lane, ticket: Ticket) -> float:
    return max(ticket.reserve, lane.max_lost_cost(ticket.request))


def route_of(lane: Lane, outcome: Outcome, size: int) -> Route:
    """Return the route of a request whose call has ``size`` requests."""
    if is_from_cache(outcome):
        return Route.CACHED
    if lane.standard is not None and not _upgraded(lane, outcome):
        return Route.FLEX
    return Route.SHARED if size > 1 else Route.INDIVIDUAL


def is_from_cache(outcome: Outcome) -> bool:
    return isinstance(outcome, Answer) and outcome.kept


def _rates(lane: Lane, outcome: Outcome) -> RateCard | None:
    """Return the prices of the tier that answered, whichever tier the request named."""
    named = processing_of(outcome.tier) if isinstance(outcome, Answer) else None
    if named == "priority":
        return lane.current_rates(named)
    if _upgraded(lane, outcome):
        return lane.current_rates("standard")
    return (named and lane.current_rates(named)) or lane.rates


def _upgraded(lane: Lane, outcome: Outcome) -> bool:
    return (
        lane.tier is not None and isinstance(outcome, Answer) and outcome.tier not in (None, FLEX_TIER_NAME)
    )


class FlexRefusal(enum.Enum):
    """Why a request leaves the flex tier, as worded in its event."""

    FULL = "the flex tier has no capacity"
    DECLINED = "the flex tier was refused for this model"
    REJECTED = "requests were refused in the flex tier"
    """The request itself may be the cause. The standard tier then rejects it too, and nothing is billed."""
    LATE = "the flex tier does not answer within call_timeout"


@frozen
class CallEnd:
    ending: Ending
    worst: ProviderError | None
    used: Used


@define(eq=False)
class InFlightCall:
    """A batch from its permit to its routing. Owned by one worker."""

    batch: Batch[Ticket, Outcome]
    permit: Permit
    started: float  # monotonic seconds; the time of the permit until the call starts
    cached: Chosen = NOTHING  # the entries of the provider's cache that it uses
    bill: CallBill = NO_BILL
    end: CallEnd | None = None
    requests: tuple[CalledRequest, ...] = ()  # one per waiter, for events

    def variables(self) -> Context:
        for ticket in self.batch.items:
            for waiter in list(ticket.waiters):
                return waiter.variables.copy()
        return copy_context()


def end_of(call: InFlightCall) -> CallEnd:
    """Determine how a call ended. Flex errors do not affect limits and breaker."""
    outcomes = call.batch.outcomes
    ending, worst = _ending(outcomes)
    if worst is not None and flex_refusal(call.permit.lane, worst) is not None:
        ending = Ending.IGNORED
    usage, unconfirmed = call.bill.usage, call.bill.unconfirmed
    if unconfirmed:  # the reservation of the whole call may be higher
        unconfirmed = max(unconfirmed, call.permit.demand.cost - call.bill.known)
    lane = call.permit.lane
    if usage is not None and usage.explicit_cache_tokens and not usage.total_tokens:
        usage = None  # the request failed and only its cache is charged: its own tokens are unknown
    free = 0 if usage is None or lane.rules is None or lane.rules.counts_reads else usage.cached_tokens
    used = Used(
        tokens=usage.total_tokens - free if usage is not None else None,
        output=usage.output_tokens if usage is not None else None,
        cost=call.bill.known,
        unconfirmed=unconfirmed,
        retry_after=worst.retry_after if worst is not None else None,
        limits=next((out.limits for out in outcomes if out is not None and out.limits), None),
    )
    return CallEnd(ending, worst, used)


def _ending(outcomes: Sequence[Outcome]) -> tuple[Ending, ProviderError | None]:
    if all(map(is_from_cache, outcomes)):
        return Ending.DROPPED, None
    errors = [outcome for outcome in outcomes if isinstance(outcome, ProviderError)]
    if len(errors) < len(outcomes):
        return Ending.SUCCESS, None
    first = errors[0]
    if first.kind is ErrorKind.RATE_LIMIT:
        return Ending.REFUSED, first
    return (Ending.FAILURE if is_unhealthy(first) else Ending.IGNORED), first


def flex_refusal(lane: Lane, error: ProviderError) -> FlexRefusal | None:
    """Return why a failed request moves to the standard lane, or ``None`` if it stays."""
    if lane.tier is None or isinstance(error, ParameterRejected):
        return None
    if lane.tier.full(error):
        return FlexRefusal.FULL
    if lane.tier.is_missing(error):
        return FlexRefusal.DECLINED
    if error.kind is ErrorKind.CLIENT_ERROR:
        return FlexRefusal.REJECTED
    return FlexRefusal.LATE if error.kind is ErrorKind.TIMEOUT else None
