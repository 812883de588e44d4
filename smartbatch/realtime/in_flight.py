"""What calls used and cost, by the prices of the tier that answered."""

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
from smartbatch.core.preparation.tokens import estimate
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
from smartbatch.providers.base import FLEX
from smartbatch.realtime.call import Outcome
from smartbatch.realtime.gates import Ending, Permit, Used
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.ticket import Ticket
from smartbatch.types import NO_USAGE, Answer, Route, Usage


@frozen
class Bill:
    """What an outcome of a call cost, USD.

    Attributes:
        cost: 0 where nothing was billed; ``None`` where the price, or what was used, is unknown.
        unconfirmed: the most it can have cost, where what was used is unknown; else 0.
        usage: its tokens; ``None`` where nothing was said of them.
    """

    cost: float | None = 0.0
    unconfirmed: float = 0.0
    usage: Usage | None = None


@frozen
class CallBill:
    """What a call used and cost.

    Attributes:
        usage: the tokens of all its outcomes; ``None`` where nothing was said of any.
        parts: what each outcome cost.
        cost: USD of all of them; ``None`` where one of them is unknown.
        known: USD of those whose cost is known.
        unconfirmed: USD that the others may have cost.
    """

    usage: Usage | None = None
    parts: Sequence[Bill] = ()
    cost: float | None = 0.0
    known: float = 0.0
    unconfirmed: float = 0.0


NO_BILL = CallBill()


def bill(lane: Lane, tickets: Sequence[Ticket], outcomes: Sequence[Outcome]) -> CallBill:
    """Add up what the outcomes of a call for ``tickets`` used and cost."""
    parts: list[Bill] = []
    whole: Usage | None = None
    known, unconfirmed, complete = 0.0, 0.0, True
    for ticket, outcome, usage in zip(tickets, outcomes, _usages(tickets, outcomes), strict=True):
        part = _bill_of(lane, ticket, outcome, usage)
        parts.append(part)
        if usage is not None:
            whole = usage if whole is None else whole + usage
        known += part.cost or 0.0
        unconfirmed += part.unconfirmed
        complete = complete and part.cost is not None
    return CallBill(whole, parts, known if complete else None, known, unconfirmed)


def _usages(tickets: Sequence[Ticket], outcomes: Sequence[Outcome]) -> list[Usage | None]:
    """Return the tokens of each outcome. An error of the whole call has those of the call: they are split by
    the lengths of the prompts.
    """
    first = outcomes[0]
    usages = [None if outcome is None else outcome.usage for outcome in outcomes]
    if len(outcomes) == 1 or usages[0] is None or not isinstance(first, ProviderError):
        return usages
    if any(outcome is not first for outcome in outcomes):
        return usages
    return [*split_usage(usages[0], *[[max(1, ticket.input_tokens) for ticket in tickets]] * 2)]


def account(ticket: Ticket, outcome: Outcome, bill: Bill) -> None:
    """Add what the call used and cost to the ticket's totals, failed attempts included."""
    usage = _usage_of(ticket, outcome, bill)
    ticket.calling = False
    ticket.usage = ticket.usage + usage if ticket.attempts > 1 else usage
    if bill.unconfirmed:
        ticket.unconfirmed += bill.unconfirmed
    elif bill.cost is None or ticket.cost is None:
        ticket.cost = None
    if bill.cost is not None and ticket.cost is not None:
        ticket.cost += bill.cost


def owed(ticket: Ticket) -> Bill:
    """Return what the calls of a ticket cost as far as their bills are known, and what the others may have
    cost: a call under way among them, whose answer the ticket does not wait for any more."""
    lane = ticket.lane
    unconfirmed, cost = ticket.unconfirmed, ticket.cost
    if ticket.calling and lane.provider.capabilities.priced and ticket.request.call is None:
        unconfirmed += _most_cost(lane, ticket)
        cost = cost or None
    return Bill(None if unconfirmed and not cost else cost, unconfirmed)


def _usage_of(ticket: Ticket, outcome: Outcome, bill: Bill) -> Usage:
    """Return the tokens of an outcome; estimated for an answer without them, unknown for a lost one."""
    usage = bill.usage
    if usage is not None or bill.cost is not None or ticket.request.call is not None:
        return usage or NO_USAGE
    if not isinstance(outcome, Answer):
        return Usage(unknown=True)
    return Usage(ticket.input_tokens, estimate(outcome.text or ""), estimated=True)


def _bill_of(lane: Lane, ticket: Ticket, outcome: Outcome, usage: Usage | None) -> Bill:
    """Return what one outcome cost. The cases, in order:

    1. The provider says it, or costs nothing.
    2. It does not say what was used, or only in part, as for a stream that was cut: an estimate would stand
       in for the bill. All it can have cost may have been billed; nothing for an error that says otherwise.
    3. The price of what was used, where that is known.
    """
    if isinstance(outcome, Answer | MissingAnswer) and outcome.cost is not None:
        return Bill(outcome.cost, usage=usage)
    if not lane.provider.capabilities.priced:
        return Bill(usage=usage)
    rates = _rates(lane, outcome)
    if usage is None or usage.estimated:
        is_missing = isinstance(outcome, MissingAnswer)
        if isinstance(outcome, ProviderError) and usage is None and not (outcome.maybe_billed or is_missing):
            return Bill()
        least = 0.0 if usage is None or rates is None else rates.cost(usage)
        return Bill(None, max(least, _most_cost(lane, ticket)), usage)
    return Bill(None if rates is None else rates.cost(usage), usage=usage)


def _most_cost(lane: Lane, ticket: Ticket) -> float:
    return max(ticket.reserve, lane.most_cost(ticket.request))


def route_of(lane: Lane, outcome: Outcome, size: int) -> Route:
    """Return the route of one request's result, among ``size`` that shared its call."""
    if is_kept(outcome):
        return Route.CACHED
    if lane.standard is not None and not _upgraded(lane, outcome):
        return Route.FLEX
    return Route.SHARED if size > 1 else Route.INDIVIDUAL


def is_kept(outcome: Outcome) -> bool:
    """Whether no call was made for it: it came from the cache, below a middleware."""
    return isinstance(outcome, Answer) and outcome.kept


def _rates(lane: Lane, outcome: Outcome) -> RateCard | None:
    """Return the prices that hold for an outcome: billed is the tier that answered, not the one asked for."""
    return lane.standard.rates if lane.standard is not None and _upgraded(lane, outcome) else lane.rates


def _upgraded(lane: Lane, outcome: Outcome) -> bool:
    """Whether a lane of the slower tier got its answer from another one, as the answer itself says."""
    return lane.tier is not None and isinstance(outcome, Answer) and outcome.tier not in (None, FLEX)


class FlexRefusal(enum.Enum):
    """Why a request leaves the slower tier, in the words of the event that tells of it."""

    FULL = "the flex tier has no capacity"
    DECLINED = "the flex tier was refused for this model"
    REJECTED = "requests were refused in the flex tier"
    """For a reason that may be their own: then they are refused at the standard price too, and not billed."""
    LATE = "the flex tier does not answer within call_timeout"


@frozen
class CallEnd:
    """How a call ended as a whole: for the gates, by the error that says so, and with what it used."""

    ending: Ending
    worst: ProviderError | None
    used: Used


@define(eq=False)
class InFlightCall:
    """A batch whose call is under way, from its permit to its routing. Owned by one worker.

    Attributes:
        started: when the call began, monotonic seconds; until then when the permit was taken.
        bill: what it used and cost, once it has ended.
        end: how it ended, once its outcomes are there.
        requests: those who wait for it, as events name them.
    """

    batch: Batch[Ticket, Outcome]
    permit: Permit
    started: float
    bill: CallBill = NO_BILL
    end: CallEnd | None = None
    requests: tuple[CalledRequest, ...] = ()

    def variables(self) -> Context:
        """Return a copy of the context variables of the first who waits for it, for one call."""
        for ticket in self.batch.items:
            for waiter in list(ticket.waiters):
                return waiter.variables.copy()
        return copy_context()


def end_of(call: InFlightCall) -> CallEnd:
    """Return how a call ended; limits and breaker ignore an error of the slower tier: it says nothing of the
    model.
    """
    outcomes = call.batch.outcomes
    ending, worst = _ending(outcomes)
    if worst is not None and flex_refusal(call.permit.lane, worst) is not None:
        ending = Ending.IGNORED
    usage, unconfirmed = call.bill.usage, call.bill.unconfirmed
    if unconfirmed:  # also of what was reserved for the call as a whole
        unconfirmed = max(unconfirmed, call.permit.demand.cost - call.bill.known)
    used = Used(
        tokens=usage.total_tokens if usage is not None else None,
        output=usage.output_tokens if usage is not None else None,
        cost=call.bill.known,
        unconfirmed=unconfirmed,
        retry_after=worst.retry_after if worst is not None else None,
        limits=next((out.limits for out in outcomes if out is not None and out.limits), None),
    )
    return CallEnd(ending, worst, used)


def _ending(outcomes: Sequence[Outcome]) -> tuple[Ending, ProviderError | None]:
    """Return how the call as a whole ended, and the error that says so."""
    if all(map(is_kept, outcomes)):
        return Ending.DROPPED, None
    errors = [outcome for outcome in outcomes if isinstance(outcome, ProviderError)]
    if len(errors) < len(outcomes):
        return Ending.SUCCESS, None
    first = errors[0]
    if first.kind is ErrorKind.RATE_LIMIT:
        return Ending.REFUSED, first
    return (Ending.FAILURE if is_unhealthy(first) else Ending.IGNORED), first


def flex_refusal(lane: Lane, error: ProviderError) -> FlexRefusal | None:
    """Return why a request that failed in ``lane`` goes to the standard lane; ``None`` when it does not."""
    if lane.tier is None or isinstance(error, ParameterRejected):
        return None
    if lane.tier.full(error):
        return FlexRefusal.FULL
    if lane.tier.declines(error):
        return FlexRefusal.DECLINED
    if error.kind is ErrorKind.CLIENT_ERROR:
        return FlexRefusal.REJECTED
    return FlexRefusal.LATE if error.kind is ErrorKind.TIMEOUT else None
