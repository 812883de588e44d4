"""What calls used and cost, by the prices of the tier that answered."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from smartbatch._values import Value
from smartbatch.errors import MissingAnswer
from smartbatch.prices import RateCard
from smartbatch.providers.flex import FLEX
from smartbatch.realtime.call.layers import Outcome
from smartbatch.realtime.lane import Lane
from smartbatch.realtime.ticket import Ticket
from smartbatch.types import Answer, Route, Usage


@frozen(eq=False, repr=False)
class CallBill(Value):
    """What a call used and cost.

    Attributes:
        usage: the tokens of all its outcomes; ``None`` where nothing was said of any.
        cost: USD; ``None`` when one part of it is unknown.
        costs: USD of each outcome, likewise.
    """

    usage: Usage | None = None
    cost: float | None = 0.0
    costs: Sequence[float | None] = ()


NO_BILL = CallBill()


def bill(lane: Lane, outcomes: Sequence[Outcome]) -> CallBill:
    """Add up what the outcomes of a call used and cost."""
    usage: Usage | None = None
    cost: float | None = 0.0
    costs: list[float | None] = []
    for outcome in outcomes:
        each = _cost_of(lane, outcome)
        costs.append(each)
        cost = None if cost is None or each is None else cost + each
        if outcome is not None and outcome.usage is not None:
            usage = outcome.usage if usage is None else usage + outcome.usage
    return CallBill(usage, cost, costs)


def account(ticket: Ticket, outcome: Outcome, cost: float | None) -> None:
    """Add what the call used and cost to the ticket's totals, failed attempts included."""
    usage = outcome.usage if outcome is not None else None
    if usage is not None:
        ticket.usage = ticket.usage + usage if ticket.attempts > 1 else usage
    ticket.cost = None if cost is None or ticket.cost is None else ticket.cost + cost


def _cost_of(lane: Lane, outcome: Outcome) -> float | None:
    """Return the USD one outcome cost; ``None`` when the price, or what an answer used, is unknown."""
    if isinstance(outcome, Answer | MissingAnswer) and outcome.cost is not None:
        return outcome.cost
    if outcome is None or not lane.provider.capabilities.priced:
        return 0.0
    if outcome.usage is None:
        return None if isinstance(outcome, Answer) else 0.0
    rates = _rates(lane, outcome)
    return None if rates is None else rates.cost(outcome.usage)


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
