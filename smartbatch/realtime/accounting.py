"""What calls used and cost, by the prices of the tier that answered."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from smartbatch.core.batching.packing import split_usage
from smartbatch.core.preparation.tokens import estimate
from smartbatch.errors import MissingAnswer, ProviderError
from smartbatch.prices import RateCard
from smartbatch.providers.base import FLEX
from smartbatch.realtime.call.layers import Outcome
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
