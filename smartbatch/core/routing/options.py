"""The constraints of a list, and a forecast of time and cost for each open route.

With a deadline, a list is divided into a few batches. They can be withdrawn one by one as real time has
capacity for them, which costs less than withdrawing all requests as soon as one batch is late.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

from attrs import evolve, frozen

from smartbatch._words import DURATION_EXAMPLES, seconds_in
from smartbatch.core.routing.offers import BatchOffer, Offer
from smartbatch.core.routing.rescue import (
    HIGHEST_LEVEL,
    MARGIN_SHARE,
    best_start,
    chance_within,
    late_penalty,
    rescue_starts,
)
from smartbatch.core.routing.workload import Cost, Load, expected_usd
from smartbatch.errors import ConfigError
from smartbatch.types import Deadline, Prefer, Route, Strategy

# possible shares of a hybrid's requests that are sent in real time at first
SPLIT_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MAX_EARLY_SHARE = 0.1
"""Maximum share that a forced hybrid sends in real time at first, so that it costs at most a tenth more than
a batch at half price.
"""
# maximum batches of a list with a deadline, and minimum requests per batch
MAX_PIECES, MIN_PIECE_REQUESTS = 12, 10
FORECAST_PIECES = 4  # evenly spread batches whose chance of finishing before their withdrawal is forecast
CANCEL_LEAD_ODDS = 0.8  # probability that a cancel finishes before the first calls of a hybrid
EQUAL_ODDS = 0.01  # probabilities that differ by at most this are considered equal
RARE_ODDS = 0.05  # below this probability, the price of a batch is not taken as the lowest cost
MIN_PIECES_GAIN = 0.005  # minimum increase of the share answered by batch that justifies several batches


@frozen(kw_only=True)
class Constraints:
    """The requirements of a list."""

    strategy: Strategy = Strategy.AUTO  # forces a route, or leaves the choice open
    # "balanced" weighs money against time, "speed" chooses the fastest route, "cost" the cheapest
    prefer: Prefer = "balanced"
    deadline: float | None = None  # seconds from now
    budget: float | None = None  # USD
    # USD per hour of waiting: without a deadline, added to the cost; otherwise part of the late penalty
    time_value: float = 5.0
    threshold: int = 10  # minimum requests of a pure batch
    at_once: int = 3  # lists of at most this many requests are always sent in real time
    keep_going: bool = False  # send all requests even if the first ones all fail


def seconds_until(deadline: Deadline | None, wall: float) -> float | None:
    """Return the seconds from ``wall`` (Unix seconds) until ``deadline``; ``None`` without a deadline.

    Raises:
        ConfigError: the value is not a time, lacks its time zone, or has passed.
    """
    if deadline is None:
        return None
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise ConfigError(
                f"deadline = {deadline.isoformat()} has no time zone and is therefore ambiguous; add "
                "one, such as .astimezone()"
            )
        seconds = deadline.timestamp() - wall
        if seconds <= 0:
            raise ConfigError(f"deadline = {deadline.isoformat()} has passed")
        return seconds
    found = seconds_in(deadline)
    if found is None or not 0 < found < math.inf:
        raise ConfigError(
            f"deadline = {deadline!r:.60} is not a positive duration; use {DURATION_EXAMPLES}, or a datetime "
            "with its time zone"
        )
    return found


@frozen
class Option:
    """A route with its forecast. Times are seconds, money is USD, and probabilities are 0 to 1."""

    route: Route
    p50: float  # time until the last answer, as are ``p95`` and ``expected``
    p95: float
    expected: float
    cost: Cost | None  # None if the price is unknown
    calls: int
    share: float  # price relative to the standard price; ranks routes with unknown prices
    batches: int = 0
    first: int = 0  # requests sent in real time at first
    weight: float = 0.0  # cost plus value of the expected wait; compared if there is no deadline
    rescue_at: float | None = None  # time after which an unfinished batch is cancelled; None for never
    rescue_needs: float = 0.0  # time kept free to answer the rest in real time, including the cancel
    # probability that the batch finishes before the rescue or, without one, before the deadline
    chance: float = 1.0
    odds: float = 1.0  # probability of meeting the deadline, with a rescue; 1 without a deadline
    pieces: int = 1  # minimum number of batches, withdrawn one after another
    quota: float | None = None  # share of the rate limits used while it runs; None if no limit is known
    problem: str = ""  # why it is not feasible; empty if it is
    untried: bool = False  # its times are assumed, because no batch has been observed
    # cost assigned to the risk of missing the deadline, in the unit of :func:`price`
    late_cost: float = 0.0
    ruled_out: str = ""  # why a feasible option was excluded; empty if it was compared

    @property
    def feasible(self) -> bool:
        return not self.problem


def open_routes(
    load: Load, offers: Sequence[Offer], batch: BatchOffer | None, constraints: Constraints
) -> Iterator[Option]:
    """Yield the open options of a list, by rules 1 and 2 of :mod:`smartbatch.core.routing.choice`."""
    n, strategy = load.requests, constraints.strategy
    if strategy is Strategy.THRESHOLD:
        strategy = Strategy.BATCH if n >= constraints.threshold else Strategy.INDIVIDUAL
    standard = offers[0]
    if strategy is Strategy.INDIVIDUAL:
        yield real_time(individual(offers), n)
        return
    if strategy is Strategy.HYBRID and n <= constraints.at_once:
        yield real_time(standard, n)
        return
    if strategy is Strategy.AUTO or batch is None:
        yield from (real_time(offer, n) for offer in offers if offer.open)
    if batch is None or n == 0:
        return
    n, standard = load.by_job, of_job(load, standard, batch)
    if strategy is Strategy.AUTO and n < max(constraints.threshold, constraints.at_once + 1):
        return
    if strategy in (Strategy.BATCH, Strategy.AUTO):
        yield by_batch(n, 0, standard, batch, constraints)
    if strategy is Strategy.HYBRID:
        yield by_batch(n, _early(n, standard, batch, constraints), standard, batch, constraints)
    elif strategy is Strategy.AUTO:
        yield _best_split(n, standard, batch, constraints)


def of_job(load: Load, standard: Offer, batch: BatchOffer) -> Offer:
    """Return the real-time offer for the requests that a job sends. A job pays for identical rows once."""
    return evolve(standard, cost=batch.alone) if load.repeats else standard


def individual(offers: Sequence[Offer]) -> Offer:
    """Return the offer with one request per call."""
    return next((offer for offer in offers if offer.route is Route.INDIVIDUAL), offers[0])


def real_time(offer: Offer, n: int) -> Option:
    throughput = offer.throughput
    return Option(
        route=offer.route,
        p50=throughput.finish(n, 0.5),
        p95=throughput.finish(n, 0.95),
        expected=throughput.expected(n),
        cost=offer.cost,
        calls=throughput.calls(n),
        share=offer.share,
        quota=throughput.quota(n),
    )


def by_batch(n: int, first: int, standard: Offer, batch: BatchOffer, constraints: Constraints) -> Option:
    """Forecast sending ``first`` requests in real time and the others as batches."""
    rest = n - first
    at_once = standard.throughput.finish(first, 0.95)
    plan = _rescue(n, rest, at_once, standard, batch, constraints)
    odds = _odds(plan, first, standard, constraints)
    p50 = max(standard.throughput.finish(first, 0.5), batch.finish(rest, 0.5))
    p95 = max(at_once, batch.finish(rest, 0.95))
    expected = max(standard.throughput.expected(first), batch.expected(rest))
    if plan.at is not None and constraints.deadline is not None:
        p50, p95, expected = (min(each, constraints.deadline) for each in (p50, p95, expected))
    return Option(
        route=Route.HYBRID if first else Route.BATCH,
        p50=p50,
        p95=p95,
        expected=expected,
        cost=_mixed_cost(n, first, plan.share, standard, batch),
        calls=standard.throughput.calls(first) if first else 0,
        batches=max(batch.batches(rest), plan.pieces),
        first=first,
        rescue_at=plan.at,
        rescue_needs=plan.needs,
        chance=plan.chance,
        odds=odds,
        pieces=plan.pieces,
        share=(first + rest * (plan.share * batch.share + 1 - plan.share)) / n,
        untried=not batch.seen,
        late_cost=_late_cost(1 - odds, standard, constraints),
    )


def _late_cost(late: float, standard: Offer, constraints: Constraints) -> float:
    if constraints.deadline is None:
        return 0.0
    whole = expected_usd(standard.cost)
    return late * late_penalty(whole, constraints.time_value) * (1.0 if whole is None else whole)


@frozen
class _RescuePlan:
    at: float | None
    needs: float
    chance: float
    share: float  # share of requests answered before that
    met: float  # probability of meeting the deadline
    pieces: int = 1


def _rescue(
    n: int, rest: int, busy: float, standard: Offer, batch: BatchOffer, constraints: Constraints
) -> _RescuePlan:
    """Return the latest start of a rescue."""
    # 1. Without a deadline there is no rescue.
    if constraints.deadline is None:
        return _RescuePlan(None, 0.0, 1.0, 1.0, 1.0)
    margin = MARGIN_SHARE * constraints.deadline
    pieces = max(1, min(MAX_PIECES, rest // MIN_PIECE_REQUESTS))
    each = standard.throughput.finish(rest, 0.5) / pieces
    saving = (1 - batch.share) * rest / n

    points = min(pieces, FORECAST_PIECES)
    places = [(point + 0.5) * pieces / points - 0.5 for point in range(points)]

    def part(at: float, sure: float) -> float:
        ahead = batch.cancel(sure) + margin
        later = (at + max(0.0, place * each - ahead) for place in places)
        return sum(batch.part(seconds, rest) for seconds in later) / points

    penalty = late_penalty(expected_usd(standard.cost), constraints.time_value)
    found = rescue_starts(
        constraints.deadline - margin,
        lambda sure: batch.cancel(sure) + standard.throughput.finish(rest, sure),
        lambda at: 1 - batch.chance(at + (pieces - 1) * each, rest),
        lambda at, sure: saving * part(at, sure),
        floor=max(0.0, busy - batch.cancel(CANCEL_LEAD_ODDS)),
        late_penalty=penalty,
    )
    start = best_start(found)
    chance, whole = batch.chance(constraints.deadline, rest), batch.part(constraints.deadline, rest)
    never = _RescuePlan(
        None,
        batch.cancel(HIGHEST_LEVEL) + standard.throughput.finish(rest, HIGHEST_LEVEL) + margin,
        chance,
        whole,
        1.0,
    )
    # 2. If no start is within the allowed risk, the batch alone has to meet the deadline.
    if start is None:
        return never
    # 3. Choose the start with the highest worth. Batches are withdrawn one after another, each when real time
    # has nearly finished the previous one. If several batches gain too little, there is one.
    alone, share = batch.part(start.at, rest), part(start.at, start.sure)
    if share < alone + MIN_PIECES_GAIN:
        pieces, share = 1, alone
    # 4. If the batch is nearly certain to be on time, waiting for it may be worth more than any start.
    if chance >= HIGHEST_LEVEL and saving * whole - penalty * (1 - chance) > start.worth:
        return evolve(never, pieces=pieces)  # if it is late anyway, batches are withdrawn one by one
    chance = batch.chance(start.at, rest)
    return _RescuePlan(start.at, start.needs + margin, chance, share, 1 - start.risk, pieces)


def _odds(plan: _RescuePlan, first: int, standard: Offer, constraints: Constraints) -> float:
    if plan.at is not None or constraints.deadline is None:
        return plan.met
    if not first:
        return plan.chance
    throughput = standard.throughput
    return plan.chance * chance_within(
        constraints.deadline, throughput.finish(first, 0.5), throughput.finish(first, 0.95)
    )


def _mixed_cost(n: int, first: int, share: float, standard: Offer, batch: BatchOffer) -> Cost | None:
    """Return the cost, assuming that withdrawn batches have answered nothing."""
    if standard.cost is None or batch.cost is None:
        return None
    individually, rest = standard.cost.of(first / n), (n - first) / n
    early, late = batch.cost.of(rest), standard.cost.of(rest)
    expected = share * early.expected + (1 - share) * late.expected
    low, high = (
        late.low if share < RARE_ODDS else early.low,
        late.high if share < HIGHEST_LEVEL else early.high,
    )
    return individually.plus(evolve(early, low=low, expected=expected, high=high))


def _early(n: int, standard: Offer, batch: BatchOffer, constraints: Constraints) -> int:
    """Return how many requests a forced hybrid sends at first: as many as real time answers in a tenth of the
    batch's time.
    """
    tenth = MAX_EARLY_SHARE * batch.finish(n, 0.5)
    # leave requests for the batch
    most = min(max(constraints.at_once, math.floor(MAX_EARLY_SHARE * n)), n - 1)
    if standard.throughput.finish(most, 0.5) <= tenth:
        return most
    low, high = min(constraints.at_once, n - 1), most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if standard.throughput.finish(middle, 0.5) <= tenth else (low, middle - 1)
    return max(0, low)


def _best_split(n: int, standard: Offer, batch: BatchOffer, constraints: Constraints) -> Option:
    """Return the cheapest hybrid that meets the deadline, or the one most likely to meet it."""
    fewest = min(constraints.at_once, n - 1)
    if constraints.deadline is None:
        return by_batch(n, fewest, standard, batch, constraints)
    splits = sorted({fewest, *(max(fewest, math.ceil(share * n)) for share in SPLIT_SHARES)} - {n})
    candidates = [by_batch(n, first, standard, batch, constraints) for first in splits]
    met = [each for each in candidates if each.p95 <= constraints.deadline]
    return min(met, key=price) if met else likeliest(candidates)


def likeliest(options: Sequence[Option]) -> Option:
    """Return the cheapest of the options that are about equally likely to meet the deadline."""
    most = max(option.odds for option in options)
    return min((option for option in options if option.odds >= most - EQUAL_ODDS), key=price)


def price(option: Option) -> tuple[float, float]:
    return (option.share if option.cost is None else option.cost.expected, option.expected)
