"""Which route a list takes: every route is forecast in time and money, and the cheapest that will do wins.

The rules, in order:

1. A forced strategy leaves one route; ``threshold`` goes by the number of requests alone.
2. Up to ``at_once`` requests (3) go in real time. From there to ``threshold`` (10) a batch is considered only
   beside the first few, that is as a hybrid. From ``threshold`` on everything is considered.
3. With a deadline: the cheapest route that meets it in 95 of 100 cases. A batch meets every deadline that
   leaves time to cancel it and to do all of its requests in real time; what that is expected to cost is in
   its cost. Where there is too little time for all of them, the first few go in real time at once (hybrid).
4. Without one: the least ``weight``, which is the cost plus what the expected wait is worth. ``prefer``
   ``"cost"`` leaves the wait out, ``"speed"`` the cost.
5. A budget rules out what is expected to cost more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attrs import evolve, field, frozen

from smartbatch.core.offers import BatchOffer, Cost, Load, Offer
from smartbatch.core.wishes import Wishes
from smartbatch.models import Route, Strategy

__all__ = ["Decision", "Infeasible", "Option", "choose"]

PROMISE = 86_400.0
"""Seconds in which batches end, as their providers aim at; ``prefer="cost"`` waits no longer."""
SURE = 0.99
"""How sure it must be that what a late batch leaves over can still be done in real time."""
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Splits of a hybrid that are compared; the best is found well enough, in little time."""
EARLY = 0.1
"""A forced hybrid asks at most this share individually, so that it costs at most a tenth more than a batch
where those cost half."""


@frozen
class Option:
    """A route with its forecast.

    Attributes:
        route: see :class:`~smartbatch.Route`.
        first: requests that go individually at once.
        p50, p95, expected: seconds until the last answer.
        cost: USD; ``None`` where the price is unknown.
        calls, batches: how many it takes.
        weight: USD, the cost with what the expected wait is worth; what is compared where no deadline is set.
        rescue_at: seconds from now at which a batch that has not ended is cancelled; ``None`` for never.
        rescue_needs: seconds that are kept free for what it leaves over, the cancelling included.
        chance: how likely it ends before that; without a rescue, before the deadline.
        quota: share of the provider's limits it uses while it runs; ``None`` where no limit is known.
        problem: why it will not do; empty when it will.
    """

    route: Route
    p50: float
    p95: float
    expected: float
    cost: Cost | None
    calls: int
    batches: int = 0
    first: int = 0
    weight: float = 0.0
    rescue_at: float | None = None
    rescue_needs: float = 0.0
    chance: float = 1.0
    share: float = 1.0
    quota: float | None = None
    problem: str = ""

    @property
    def feasible(self) -> bool:
        """Whether it meets deadline and budget."""
        return not self.problem


@frozen
class Decision:
    """What was chosen, from what, and why.

    Attributes:
        load, wishes: what it was for.
        options: every route that was open, the chosen one included.
        chosen: the route to take.
        reason: in words, with the figures that decided.
    """

    load: Load
    wishes: Wishes
    options: tuple[Option, ...] = field(repr=False)
    chosen: Option
    reason: str
    alone: Option = field(repr=False)
    """What always-individual would be."""
    batch: Option | None = field(repr=False)
    """What always-batch would be; ``None`` where there is no Batch API for it."""


class Infeasible(ValueError):
    """No route meets the wishes.

    Attributes:
        nearest: options that meet some of them: the soonest within the budget, and the cheapest in time.
    """

    def __init__(self, text: str, nearest: Sequence[Option]) -> None:
        super().__init__(text)
        self.nearest = tuple(nearest)


def choose(load: Load, offers: Sequence[Offer], batch: BatchOffer | None, wishes: Wishes) -> Decision:
    """Return the decision for a list.

    Args:
        load: what is asked for.
        offers: routes in real time; first the one that requests take without a choice, which a rescue uses.
        batch: the Batch API; ``None`` where there is none for this.
        wishes: what it has to meet.

    Raises:
        Infeasible: nothing does.
    """
    options = tuple(_judged(option, wishes) for option in _options(load, offers, batch, wishes))
    feasible = [option for option in options if option.feasible]
    if not feasible:
        raise _infeasible(load, offers, batch, wishes)
    chosen, reason = _best(feasible, load, wishes)
    return Decision(load, wishes, options, chosen, reason, *_plain(load, offers, batch, wishes, options))


def _plain(
    load: Load, offers: Sequence[Offer], batch: BatchOffer | None, wishes: Wishes, options: Sequence[Option]
) -> tuple[Option, Option | None]:
    """Return what always-individual and always-batch would be, to compare with."""
    found = {option.route: option for option in options}
    alone = found.get(Route.INDIVIDUAL) or _judged(_real_time(_individual(offers), load.requests), wishes)
    if batch is None or not load.requests:
        return alone, None
    endless = evolve(wishes, deadline=None)
    return alone, found.get(Route.BATCH) or _judged(
        _batch(load.requests, 0, offers[0], batch, endless), endless
    )


def _individual(offers: Sequence[Offer]) -> Offer:
    """Return the offer of one request a call."""
    return next((offer for offer in offers if offer.route is Route.INDIVIDUAL), offers[0])


# -- what there is to choose from ----------------------------------------------------------------------------


def _options(
    load: Load, offers: Sequence[Offer], batch: BatchOffer | None, wishes: Wishes
) -> Iterator[Option]:
    n, strategy = load.requests, wishes.strategy
    if strategy is Strategy.THRESHOLD:
        strategy = Strategy.BATCH if n >= wishes.threshold else Strategy.INDIVIDUAL
    standard = offers[0]
    if strategy is Strategy.INDIVIDUAL:
        yield _real_time(_individual(offers), n)
        return
    if strategy is Strategy.AUTO or batch is None:
        yield from (_real_time(offer, n) for offer in offers if offer.open)
    if batch is None or n == 0 or (strategy is Strategy.AUTO and n <= wishes.at_once):
        return
    if strategy is Strategy.BATCH or (strategy is Strategy.AUTO and n >= wishes.threshold):
        yield _batch(n, 0, standard, batch, wishes)
    if strategy is Strategy.HYBRID:
        yield _batch(n, _early(n, standard, batch, wishes), standard, batch, wishes)
    elif strategy is Strategy.AUTO:
        yield _best_split(n, standard, batch, wishes)


def _real_time(offer: Offer, n: int) -> Option:
    pace = offer.pace
    return Option(
        route=offer.route,
        p50=pace.finish(n, 0.5),
        p95=pace.finish(n, 0.95),
        expected=pace.expected(n),
        cost=offer.cost,
        calls=pace.calls(n),
        share=offer.share,
        quota=pace.quota(n),
    )


def _batch(n: int, first: int, standard: Offer, batch: BatchOffer, wishes: Wishes) -> Option:
    """Return the forecast of a list whose ``first`` requests go individually and all others in a batch."""
    rest = n - first
    at_once = standard.pace.finish(first, 0.95)
    needs, rescue_at, chance = _rescue(rest, at_once, standard, batch, wishes)
    p50 = max(standard.pace.finish(first, 0.5), batch.finish(rest, 0.5))
    p95 = max(at_once, batch.finish(rest, 0.95))
    expected = max(standard.pace.expected(first), batch.expected(rest))
    if rescue_at is not None and wishes.deadline is not None:
        p50, p95, expected = (min(each, wishes.deadline) for each in (p50, p95, expected))
    return Option(
        route=Route.HYBRID if first else Route.BATCH,
        p50=p50,
        p95=p95,
        expected=expected,
        cost=_mixed_cost(n, first, chance, standard, batch),
        calls=standard.pace.calls(first) if first else 0,
        batches=batch.batches(rest),
        first=first,
        rescue_at=rescue_at,
        rescue_needs=needs,
        chance=chance,
        share=(first + rest * (chance * batch.share + 1 - chance)) / n,
    )


def _rescue(
    rest: int, busy: float, standard: Offer, batch: BatchOffer, wishes: Wishes
) -> tuple[float, float | None, float]:
    """Return the seconds a rescue needs, when it begins at the latest, and the chance to end before.

    The requests that went individually first are answered by then, or the rescue waits for them.
    """
    if wishes.deadline is None:
        return 0.0, None, 1.0
    needs = batch.cancelling + standard.pace.finish(rest, SURE)
    at = wishes.deadline - needs
    if at <= busy:
        return needs, None, batch.chance(wishes.deadline, rest)
    return needs, at, batch.chance(at, rest)


def _mixed_cost(n: int, first: int, chance: float, standard: Offer, batch: BatchOffer) -> Cost | None:
    """Return what it costs: a batch that is rescued is taken as one of which nothing was done."""
    if standard.cost is None or batch.cost is None:
        return None
    individually, rest = standard.cost.of(first / n), (n - first) / n
    early, late = batch.cost.of(rest), standard.cost.of(rest)
    expected = chance * early.expected + (1 - chance) * late.expected
    mixed = Cost(early.low, expected, late.high if chance < SURE else early.high)
    return individually.plus(mixed)


def _early(n: int, standard: Offer, batch: BatchOffer, wishes: Wishes) -> int:
    """Return how many a forced hybrid asks at once: what real time answers in a tenth of the batch's time."""
    tenth = EARLY * batch.finish(n, 0.5)
    most = max(wishes.at_once, math.floor(EARLY * n))
    if standard.pace.finish(most, 0.5) <= tenth:
        return min(most, n - 1) if n > 1 else 0
    low, high = min(wishes.at_once, n - 1), most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if standard.pace.finish(middle, 0.5) <= tenth else (low, middle - 1)
    return max(0, low)


def _best_split(n: int, standard: Offer, batch: BatchOffer, wishes: Wishes) -> Option:
    """Return the cheapest hybrid that meets the deadline, else the one of the fewest at once."""
    fewest = min(wishes.at_once, n - 1)
    if wishes.deadline is None:
        return _batch(n, fewest, standard, batch, wishes)
    splits = sorted({fewest, *(max(fewest, math.ceil(share * n)) for share in SHARES)} - {n})
    candidates = [_batch(n, first, standard, batch, wishes) for first in splits]
    met = [each for each in candidates if each.p95 <= wishes.deadline]
    return min(met or candidates[:1], key=_price)


# -- which of them -------------------------------------------------------------------------------------------


def _judged(option: Option, wishes: Wishes) -> Option:
    """Return the option with its weight, and with why it will not do."""
    worth = wishes.time_value * option.expected / 3600
    weight = worth + (0.0 if option.cost is None else option.cost.expected)
    problems = []
    if wishes.deadline is not None and option.p95 > wishes.deadline:
        problems.append("misses the deadline")
    elif wishes.deadline is not None and option.rescue_at is None and option.chance < SURE:
        problems.append("could be late, and leaves no time for a rescue")
    if wishes.budget is not None and option.cost is not None and option.cost.expected > wishes.budget:
        problems.append("costs more than the budget")
    if wishes.prefer == "cost" and wishes.deadline is None and option.p95 > 2 * PROMISE:
        problems.append("takes more than two days")
    return evolve(option, weight=weight, problem=" and ".join(problems))


def _price(option: Option) -> tuple[float, float]:
    return (option.share if option.cost is None else option.cost.expected, option.expected)


def _best(feasible: Sequence[Option], load: Load, wishes: Wishes) -> tuple[Option, str]:
    if wishes.strategy is not Strategy.AUTO:
        return feasible[0], _forced(feasible[0], load, wishes)
    if wishes.prefer == "speed":
        chosen = min(feasible, key=lambda option: (option.p50, *_price(option)))
        reason = f"the soonest of {_counted(feasible)}, as prefer='speed' asks"
    elif wishes.deadline is not None:
        chosen = min(feasible, key=_price)
        reason = f"the cheapest of {_counted(feasible)} that meet the deadline"
        if chosen.rescue_at is not None:
            reason += (
                f"; ends by itself in time with a chance of {chosen.chance:.0%}, else what is left over goes "
                f"in real time from {chosen.rescue_at:.0f} s on, with {chosen.rescue_needs:.0f} s for it"
            )
    elif wishes.prefer == "cost":
        chosen = min(feasible, key=_price)
        reason = f"the cheapest of {_counted(feasible)}, as prefer='cost' asks"
    else:
        chosen = min(feasible, key=lambda option: (option.weight, option.expected))
        reason = _weighed(chosen, feasible, load, wishes)
    return chosen, reason


def _forced(option: Option, load: Load, wishes: Wishes) -> str:
    if wishes.strategy is Strategy.THRESHOLD:
        sign = "at least" if load.requests >= wishes.threshold else "fewer than"
        return f"{load.requests} requests are {sign} the threshold of {wishes.threshold}"
    if option.route.value != wishes.strategy.value:
        return f"strategy={wishes.strategy.value!r} was asked for, which is not to be had here"
    return f"strategy={wishes.strategy.value!r} was asked for"


def _weighed(chosen: Option, feasible: Sequence[Option], load: Load, wishes: Wishes) -> str:
    if len(feasible) == 1:
        few = "so few requests" if load.requests <= wishes.at_once else "this"
        return f"the only route for {few}"
    second = min((o for o in feasible if o is not chosen), key=lambda option: option.weight)
    return (
        f"with {wishes.time_value:g} USD for an hour of waiting it comes to {chosen.weight:.6f} USD, "
        f"{second.route.value} to {second.weight:.6f} USD"
    )


def _counted(options: Sequence[Option]) -> str:
    return f"{len(options)} route{'s' if len(options) > 1 else ''}"


def _infeasible(load: Load, offers: Sequence[Offer], batch: BatchOffer | None, wishes: Wishes) -> Infeasible:
    """Return the error with the nearest wishes that are met: another deadline, or another budget."""

    def met(eased: Wishes) -> list[Option]:
        judged = (_judged(option, eased) for option in _options(load, offers, batch, eased))
        return [option for option in judged if option.feasible]

    later = min(met(evolve(wishes, deadline=None)), key=lambda option: option.p95, default=None)
    dearer = min(met(evolve(wishes, budget=None)), key=_price, default=None)
    if later is None and dearer is None:
        later = min(
            met(evolve(wishes, deadline=None, budget=None)), key=lambda option: option.p95, default=None
        )
    near = []
    if later is not None and wishes.deadline is not None:
        money = "" if later.cost is None else f", {later.cost.expected:.6f} USD"
        near.append(f"a deadline of {math.ceil(later.p95)} s ({later.route.value}{money})")
    if dearer is None and later is not None and wishes.deadline is not None and wishes.budget is not None:
        if later.cost is not None and later.cost.expected > wishes.budget:
            near[0] += ", which is above the budget as well"
    elif dearer is not None and dearer.cost is not None and wishes.budget is not None:
        near.append(f"a budget of {dearer.cost.expected:.6f} USD ({dearer.route.value})")
    elif later is not None and later.cost is not None and wishes.deadline is None:
        near.append(f"a budget of {later.cost.expected:.6f} USD ({later.route.value})")
    wanted = [f"a deadline of {wishes.deadline:.0f} s"] if wishes.deadline is not None else []
    wanted += [f"a budget of {wishes.budget:g} USD"] if wishes.budget is not None else []
    asked = " and ".join(wanted) or f"prefer={wishes.prefer!r}"
    text = f"no route meets {asked} for {load.requests} requests; nothing was sent"
    if near:
        text += ". What would be met: " + ", or ".join(near)
    return Infeasible(text, [option for option in (later, dearer) if option is not None])
