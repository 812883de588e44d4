"""Chooses the route of a list: the cheapest feasible one, by forecasts of time and cost.

The rules, in order:

1. A forced strategy leaves one route. ``threshold`` decides by the number of requests alone. A forced hybrid
   sends its first few requests in real time, and a list of at most ``at_once`` requests entirely in real
   time.
2. Lists of fewer requests than ``threshold`` (10), or of at most ``at_once`` (3), are sent in real time, even
   if earlier batches were fast. For longer lists every route is considered.
3. With a deadline, the cheapest route with a probability of at least 95 % of meeting it is chosen; among
   routes of about the same cost, the fastest. A batch must cost less than real time even with its
   ``late_cost``, the cost assigned to the risk of being late. A batch is considered to meet any deadline that
   leaves enough time to cancel it and answer all of its requests in real time; the expected cost of doing so
   is part of its cost. If there is too little time for all of them, some are sent in real time immediately
   (hybrid). If no route is that safe, the one most likely to be on time is chosen, provided its probability
   is at least one half.
4. Without a deadline, the route with the smallest ``weight`` is chosen, which is the cost plus the value of
   the expected wait. ``prefer="cost"`` ignores the wait, ``prefer="speed"`` the cost. As long as no batch has
   been observed, a batch is tried if it is cheaper and its median time is not longer.
5. A budget excludes routes that will almost surely exceed it. If every route will probably exceed it, the
   cheapest is chosen and stopped at the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from attrs import evolve, field, frozen

from smartbatch._words import duration, money, plural, share
from smartbatch.core.forecast import EXPIRY_SECONDS
from smartbatch.core.routing.offers import BatchOffer, Offer
from smartbatch.core.routing.options import (
    Constraints,
    Option,
    by_batch,
    individual,
    likeliest,
    of_job,
    open_routes,
    price,
    real_time,
)
from smartbatch.core.routing.rescue import HIGHEST_LEVEL, Speed, chance_within, first_rescue, late_penalty
from smartbatch.core.routing.workload import Load, expected_usd
from smartbatch.types import Route, Strategy

MAX_P95_SECONDS = 2 * EXPIRY_SECONDS  # largest feasible 95 % quantile with prefer="cost"
# share of the price; a smaller saving does not justify waiting until the deadline or risking a rescue
CLOSE_PRICE_SHARE = 0.003
MAX_LIST_REQUESTS = 1_000_000  # requests of the longest list considered by break_even
MIN_ODDS = 0.5  # minimum probability of meeting the deadline


_Judge: TypeAlias = "Callable[[Constraints], Sequence[Option]]"


@frozen
class Decision:
    load: Load
    constraints: Constraints
    options: tuple[Option, ...] = field(repr=False)  # every open route, including the chosen one
    chosen: Option
    reason: str
    alone: Option = field(repr=False)  # all requests sent individually
    # all requests sent as a batch; None if that is not possible or was excluded
    batch: Option | None = field(repr=False)
    # closed routes with the reason; empty for a forced strategy
    closed: tuple[tuple[Route, str], ...] = field(default=(), repr=False)
    # maximum calls in flight; 0 if unknown, as for a stored decision
    calls_at_once: int = field(default=0, eq=False, repr=False)

    @property
    def piece(self) -> int | None:
        """Maximum requests per batch, if the list is divided into several batches."""
        chosen = self.chosen
        if chosen.pieces == 1:
            return None
        return math.ceil((self.load.by_job - chosen.first) / chosen.pieces)

    @property
    def late_penalty(self) -> float:
        return late_penalty(expected_usd(self.alone.cost), self.constraints.time_value)


class Infeasible(ValueError):
    """No route meets the constraints; the message names the nearest constraints that can be met."""


def choose(
    load: Load, offers: Sequence[Offer], batch: BatchOffer | None, constraints: Constraints
) -> Decision:
    """Choose the route of a list.

    Args:
        offers: the real-time routes; the first is the default, which a rescue uses.
        batch: ``None`` if no Batch API can be used.

    Raises:
        Infeasible: no option meets the constraints, and none is likely enough to meet the deadline.
    """

    def judged(asked: Constraints) -> tuple[Option, ...]:
        return tuple(_judged(option, asked) for option in open_routes(load, offers, batch, asked))

    options = _ruled_out(judged(constraints), constraints)
    feasible = [option for option in options if option.feasible and not option.ruled_out]
    found = _best(feasible, load, constraints) if feasible else _likeliest(options, constraints, judged)
    if found is None:
        raise _infeasible(load.requests, constraints, judged)
    best, reason = found
    chosen = best if batch is None else _timed(best, load, offers[0], batch, constraints)
    options = tuple(chosen if option is best else option for option in options)
    routes = {option.route: option for option in options}
    alone = routes.get(Route.INDIVIDUAL) or _judged(real_time(individual(offers), load.requests), constraints)
    always = routes.get(Route.BATCH)
    if always is None and batch is not None and load.requests:
        endless = evolve(constraints, deadline=None)
        always = _judged(by_batch(load.by_job, 0, of_job(load, offers[0], batch), batch, endless), endless)
    closed = tuple(_closed(load, offers, batch, constraints))
    if chosen.rescue_at is not None:
        reason += f"; the chance that it finishes before its rescue begins is {share(chosen.chance)}"
    return Decision(load, constraints, options, chosen, reason, alone, always, closed)


def break_even(
    load: Load, offers: Sequence[Offer], batch: BatchOffer, constraints: Constraints
) -> int | None:
    """Return the smallest number of average requests of ``load`` that is sent as a batch or a hybrid.

    Deadline and budget are ignored, because they apply to a single list. The costs in the offers are those of
    ``load``.
    """
    free = evolve(constraints, deadline=None, budget=None, strategy=Strategy.AUTO)

    def pays(requests: int) -> bool:
        part = requests / load.requests
        scaled = Load(requests)  # its tokens are included in the costs
        priced = [evolve(offer, cost=None if offer.cost is None else offer.cost.of(part)) for offer in offers]
        cost = None if batch.cost is None else batch.cost.of(part)
        try:
            decision = choose(scaled, priced, evolve(batch, cost=cost), free)
        except Infeasible:
            return False
        return decision.chosen.route.by_batch

    if load.requests < 1 or not pays(MAX_LIST_REQUESTS):
        return None
    low, high = free.at_once, MAX_LIST_REQUESTS
    while high - low > 1:  # bisection: a longer list is nearly always better suited to a batch
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


# -- rules -------------------------------------------------------------------------------------------------


def _judged(option: Option, constraints: Constraints) -> Option:
    """Return the option with its weight, its odds and, if it is not feasible, the reason."""
    worth = constraints.time_value * option.expected / 3600
    weight = worth + (expected_usd(option.cost) or 0.0)
    problems = []
    if constraints.deadline is not None and option.p95 > constraints.deadline:
        problems.append("misses the deadline")
    elif constraints.deadline is not None and option.rescue_at is None and option.chance < HIGHEST_LEVEL:
        problems.append("might be late even with a rescue")
    if _too_dear(option, constraints):
        problems.append("costs more than the budget")
    if constraints.prefer == "cost" and constraints.deadline is None and option.p95 > MAX_P95_SECONDS:
        problems.append("takes more than two days")
    odds = option.odds
    if constraints.deadline is not None and not option.batches:
        odds = chance_within(constraints.deadline, option.p50, option.p95)
    return evolve(option, weight=weight, odds=odds, problem=" and ".join(problems))


def _ruled_out(options: Sequence[Option], constraints: Constraints) -> tuple[Option, ...]:
    """Mark feasible options that must not be chosen."""
    # 1. A forced strategy leaves no choice.
    if constraints.strategy is not Strategy.AUTO:
        return tuple(options)
    feasible = [each for each in options if each.feasible]
    budget = constraints.budget
    # 2. Options expected to exceed the budget, if another is expected to stay within it.
    if budget is not None and any(_fits(each, budget) for each in feasible):
        options = _marked(
            options, lambda each: not _fits(each, budget), "is expected to cost more than the budget"
        )
    # 3. Batches whose savings do not outweigh the risk of being late, unless speed is preferred.
    if constraints.deadline is not None and constraints.prefer != "speed":
        surer = (each for each in options if each.feasible and not each.ruled_out and not each.batches)
        surely = min((price(each)[0] for each in surer), default=math.inf)
        options = _marked(
            options,
            lambda each: bool(each.batches) and price(each)[0] + each.late_cost >= surely,
            "saves nothing if the risk of being late is included",
        )
    return tuple(options)


def _marked(options: Sequence[Option], is_out: Callable[[Option], bool], why: str) -> Sequence[Option]:
    return [
        evolve(each, ruled_out=why) if each.feasible and not each.ruled_out and is_out(each) else each
        for each in options
    ]


def _closed(
    load: Load, offers: Sequence[Offer], batch: BatchOffer | None, constraints: Constraints
) -> Iterator[tuple[Route, str]]:
    """Yield the routes that a list cannot take, with the reason."""
    if constraints.strategy is not Strategy.AUTO or not load.requests:
        return
    yield from ((offer.route, "packing is turned on") for offer in offers if not offer.open)
    if batch is None:
        yield Route.BATCH, "no Batch API can be used for these requests"
    elif load.requests <= constraints.at_once:
        yield Route.BATCH, f"lists of up to {plural(constraints.at_once, 'request')} never wait for a batch"
    elif load.by_job < constraints.threshold:
        yield Route.BATCH, f"fewer requests than the threshold of {constraints.threshold}"


def _timed(
    option: Option, load: Load, standard: Offer, batch: BatchOffer, constraints: Constraints
) -> Option:
    """Add the forecast start of the rescue to an option.

    The forecast is the best of a few possible starts. A running job decides again at each step, because the
    age of its batches changes the odds.
    """
    deadline, rest = constraints.deadline, load.by_job - option.first
    if not option.batches or deadline is None or batch.cancelling is None:
        return option
    speed = Speed(standard.throughput, batch.cancelling, batch.times)
    size = math.ceil(rest / option.batches)
    sizes = [size] * (option.batches - 1) + [rest - size * (option.batches - 1)]
    penalty = late_penalty(expected_usd(standard.cost), constraints.time_value)
    at = first_rescue(deadline, [each for each in sizes if each > 0], speed, penalty)
    if at is None:
        return evolve(option, rescue_at=None, chance=batch.chance(deadline, rest))
    return evolve(option, rescue_at=at, rescue_needs=deadline - at, chance=batch.chance(at, rest))


def _too_dear(option: Option, constraints: Constraints) -> bool:
    return constraints.budget is not None and option.cost is not None and option.cost.low > constraints.budget


def _likeliest(
    options: Sequence[Option], constraints: Constraints, judged: _Judge
) -> tuple[Option, str] | None:
    if constraints.deadline is None:
        return None
    tried = [each for each in options if each.odds >= MIN_ODDS and not _too_dear(each, constraints)]
    if not tried:
        return None
    chosen = likeliest(tried)
    reason = f"no route is sure to meet the deadline; this one has the best chance, {share(chosen.odds)}"
    sooner = _in_real_time(constraints, judged)
    if sooner is not None:
        reason += f"; real time meets it ({_with_money(sooner)}, {_strategy_of(sooner)})"
    return chosen, reason


def _best(feasible: Sequence[Option], load: Load, constraints: Constraints) -> tuple[Option, str]:
    """Return the best of the feasible options, and why it is the best."""
    # 1. A forced strategy has a single option.
    if constraints.strategy is not Strategy.AUTO:
        return feasible[0], _forced(feasible[0], load, constraints)
    budget = constraints.budget
    # 2. No option is expected to stay within the budget: choose the cheapest.
    if budget is not None and not any(_fits(each, budget) for each in feasible):
        return min(feasible, key=price), (
            f"the cheapest of {_counted(feasible)}, none of which is expected to stay within the budget"
        )
    # 3. prefer="speed": choose the fastest or, among equally fast ones, the cheapest; never an option that
    # another one beats in both mean and 95 % quantile.
    if constraints.prefer == "speed":
        chosen = min(_soonest_ones(feasible), key=lambda option: (option.p50, *price(option)))
        reason = f"the fastest of {_counted(feasible)}, as prefer='speed' requires"
    elif constraints.deadline is not None:
        # 4. A deadline: choose the cheapest or, among options of about the same cost, the fastest.
        cheapest = min(feasible, key=price)
        most = (1 + CLOSE_PRICE_SHARE) * price(cheapest)[0]
        chosen = min((each for each in feasible if price(each)[0] <= most), key=lambda each: each.p95)
        meet = "meet" if len(feasible) > 1 else "meets"
        reason = f"the cheapest of {_counted(feasible)} that {meet} the deadline"
        if chosen is not cheapest:
            reason = (
                f"the fastest of {_counted(feasible)} that meet the deadline and cost at most "
                f"{share(CLOSE_PRICE_SHARE)} more than the cheapest"
            )
    elif constraints.prefer == "cost":
        chosen = min(feasible, key=price)
        reason = f"the cheapest of {_counted(feasible)}, as prefer='cost' requires"
    else:
        # 5. Otherwise choose the smallest weight, but try a batch if none has been observed and it may be
        # better.
        chosen = min(feasible, key=lambda option: (option.weight, option.expected))
        trial = None if chosen.batches else _trial(chosen, feasible)
        if trial is not None:
            return trial, (
                "no batch has been observed yet, so one is tried: it costs less, and half of all batches "
                f"are assumed to finish within {duration(trial.p50)} "
                f"({chosen.route.value}: {duration(chosen.p50)})"
            )
        reason = _weighed(chosen, feasible, load, constraints)
    return chosen, reason


def _soonest_ones(options: Sequence[Option]) -> list[Option]:
    """Return the options that no other option beats in both mean and 95 % quantile. The median alone could
    mislead: if no batch has been observed, its assumed median may be low although it can take a day.
    """

    def is_beaten(option: Option) -> bool:
        return any(
            other.expected <= option.expected
            and other.p95 <= option.p95
            and (other.expected, other.p95) != (option.expected, option.p95)
            for other in options
        )

    return [option for option in options if not is_beaten(option)]


def _trial(chosen: Option, feasible: Sequence[Option]) -> Option | None:
    """Return a batch to try because none has been observed: it is cheaper, and its median time is not longer.

    Without trials, a client that expects slow batches would never learn that they are fast.
    """
    better = (each for each in feasible if each.untried and each.p50 <= chosen.p50)
    return min((each for each in better if price(each) < price(chosen)), key=price, default=None)


def _fits(option: Option, budget: float) -> bool:
    return option.cost is None or option.cost.expected <= budget


def _forced(option: Option, load: Load, constraints: Constraints) -> str:
    if constraints.strategy is Strategy.THRESHOLD:
        return (
            f"the list has {plural(load.requests, 'request')}, and the threshold is {constraints.threshold}"
        )
    if constraints.strategy is Strategy.HYBRID and load.requests <= constraints.at_once:
        return (
            f"lists of up to {plural(constraints.at_once, 'request')} are sent entirely in real time, like "
            "the first requests of a hybrid"
        )
    if option.route.value != constraints.strategy.value:
        return f"strategy={constraints.strategy.value!r} was requested, but is not available here"
    return f"strategy={constraints.strategy.value!r} was requested"


def _weighed(chosen: Option, feasible: Sequence[Option], load: Load, constraints: Constraints) -> str:
    if len(feasible) == 1:
        few = load.requests <= constraints.at_once
        return "the only route for so few requests" if few else "the only available route"
    second = min((o for o in feasible if o is not chosen), key=lambda option: option.weight)
    return (
        f"if an hour of waiting counts as {money(constraints.time_value)}, {chosen.route.value} comes to "
        f"{money(chosen.weight)}, {second.route.value} to {money(second.weight)}"
    )


def _counted(options: Sequence[Option]) -> str:
    return plural(len(options), "route")


def _in_real_time(constraints: Constraints, judged: _Judge) -> Option | None:
    """Return the fastest real-time route that meets the constraints, if a batch was forced."""
    if constraints.strategy not in (Strategy.BATCH, Strategy.HYBRID, Strategy.THRESHOLD):
        return None
    options = judged(evolve(constraints, strategy=Strategy.AUTO))
    return _soonest([option for option in options if not option.batches])


def _strategy_of(option: Option) -> str:
    strategy = Strategy.INDIVIDUAL if option.route is Route.INDIVIDUAL else Strategy.AUTO
    return f"with strategy={strategy.value!r}"


def _with_money(option: Option) -> str:
    cost = "" if option.cost is None else f", {money(option.cost.expected)}"
    return f"{option.route.value}{cost}"


def _soonest(options: Sequence[Option]) -> Option | None:
    feasible = (option for option in options if option.feasible)
    return min(feasible, key=lambda option: option.p95, default=None)


def _infeasible(requests: int, constraints: Constraints, judged: _Judge) -> Infeasible:
    """Return the error with the nearest constraints that can be met.

    In this order: real time with this or a later deadline, if a batch was forced; another deadline; another
    budget.
    """

    def met(eased: Constraints) -> list[Option]:
        return [option for option in judged(eased) if option.feasible]

    def soonest(eased: Constraints) -> Option | None:
        return _soonest(judged(eased))

    deadline, budget = constraints.deadline, constraints.budget
    later = soonest(evolve(constraints, deadline=None))
    dearer = min(met(evolve(constraints, budget=None)), key=price, default=None)
    if later is None and dearer is None:
        later = soonest(evolve(constraints, deadline=None, budget=None))
    near = []
    if deadline is not None and (sooner := _in_real_time(evolve(constraints, deadline=None), judged)):
        when = "that deadline" if sooner.p95 <= deadline else _deadline_of(sooner)
        if later is None or sooner.p95 < later.p95:
            near.append(f"{when} in real time ({_with_money(sooner)}, {_strategy_of(sooner)})")
    if later is not None:
        near.append(f"{_deadline_of(later)} ({_with_money(later)})")
        if dearer is None and budget is not None and later.cost is not None and later.cost.low > budget:
            near[-1] += ", which also exceeds the budget"
    if dearer is not None and dearer.cost is not None:
        near.append(f"a budget of {money(dearer.cost.expected, rounded_up=True)} ({dearer.route.value})")
    wanted = (
        [f"a deadline of {duration(round(deadline) or max(deadline, 0.001))}"] if deadline is not None else []
    )
    wanted += [f"a budget of {money(budget)}"] if budget is not None else []
    asked = " and ".join(wanted) or f"prefer={constraints.prefer!r}"
    forced = "" if constraints.strategy is Strategy.AUTO else f" with strategy={constraints.strategy.value!r}"
    text = f"no route meets {asked} for {plural(requests, 'request')}{forced}; nothing was sent"
    if near:
        text += ". Constraints that can be met: " + ", or ".join(near)
    return Infeasible(text)


def _deadline_of(option: Option) -> str:
    return f"a deadline of {duration(option.p95, rounded_up=True)}"
