"""The choice of a route: each rule, and properties of every choice."""

from __future__ import annotations

import math
import re

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from smartbatch._words import duration, plural, seconds_of, share
from smartbatch.core.forecast import Forecaster, Observation, Prior, Times
from smartbatch.core.routing.choice import Decision, Infeasible, choose
from smartbatch.core.routing.explanation import explain
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import MAX_PIECES, Constraints, Option, open_routes
from smartbatch.core.routing.rescue import PendingShard, Speed, rescue
from smartbatch.core.routing.workload import Cost, Load
from smartbatch.routing.history import BATCH_PRIOR, CANCEL_PRIOR
from smartbatch.types import Route, Strategy
from tests.levels import sampled

EACH = 0.001  # USD of a request in real time


def steady(seconds: float, spread: float = 1.1) -> Times:
    forecaster = Forecaster(Prior.of(seconds, spread * seconds))
    for place in range(100):
        forecaster.observe(Observation(1, seconds * spread ** math.sin(place), 0.0))
    return forecaster.at(0.0)


def cold(prior: Prior) -> Times:
    return Forecaster(prior).at(0.0)


def price(n: int, share: float = 1.0) -> Cost:
    return Cost(0.8 * n * EACH * share, n * EACH * share, 1.2 * n * EACH * share)


def individually(n: int, call: Times | None = None, parallelism: int = 4) -> Offer:
    return Offer(Route.INDIVIDUAL, Throughput(call or steady(2.0), parallelism), price(n))


def by_batch(n: int, times: Times | None = None, cancelling: float = 60.0) -> BatchOffer:
    return BatchOffer(times or steady(1800.0), price(n, 0.5), steady(cancelling))


def chosen(
    n: int, constraints: Constraints, *more: Offer, batch: Times | None = None, priced: bool = True
) -> Decision:
    offers = [individually(n), *more]
    there = by_batch(n, batch)
    if not priced:
        offers = [evolve(offer, cost=None) for offer in offers]
        there = evolve(there, cost=None)
    return choose(Load(n, 1000.0 * n, 100.0 * n), offers, there, constraints)


# -- number of requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [1, 3, 9, 10, 5000])
def test_short_lists_never_wait_for_a_batch(requests):
    for constraints in (Constraints(deadline=86_400.0), Constraints(prefer="speed"), Constraints()):
        decision = chosen(requests, constraints, batch=steady(1.0))
        waiting = {Route.HYBRID, Route.BATCH} if requests >= 10 else set()
        assert {option.route for option in decision.options} == {Route.INDIVIDUAL} | waiting


@pytest.mark.parametrize("requests", [1, 9, 10, 11, 5000])
def test_the_plain_threshold_goes_by_number_alone(requests):
    decision = chosen(requests, Constraints(strategy=Strategy.THRESHOLD))
    assert decision.chosen.route is (Route.BATCH if requests >= 10 else Route.INDIVIDUAL)
    assert decision.reason == f"the list has {plural(requests, 'request')}, and the threshold is 10"


# -- what a caller forces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [Strategy.INDIVIDUAL, Strategy.BATCH, Strategy.HYBRID])
@pytest.mark.parametrize("requests", sampled([4, 9, 100, 20_000], keep=2))
def test_a_forced_strategy_leaves_one_route(strategy, requests):
    decision = chosen(requests, Constraints(strategy=strategy))
    assert len(decision.options) == 1
    assert decision.chosen.route.value == strategy.value
    assert strategy.value in decision.reason


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_forced_hybrid_of_up_to_three_goes_in_real_time(requests):
    decision = chosen(requests, Constraints(strategy=Strategy.HYBRID))
    assert [option.route for option in decision.options] == [Route.INDIVIDUAL]
    assert "lists of up to 3 requests are sent entirely in real time" in decision.reason


def test_a_batch_that_is_not_to_be_had_is_not_forced():
    decision = choose(Load(20), [individually(20)], None, Constraints(strategy=Strategy.BATCH))
    assert decision.chosen.route is Route.INDIVIDUAL
    assert "not available here" in decision.reason
    assert decision.batch is None


# -- deadlines -----------------------------------------------------------------------------------------------


def test_with_time_to_spare_a_list_goes_by_batch():
    option = chosen(200, Constraints(deadline=4 * 3600.0)).chosen
    assert option.route is Route.BATCH
    assert option.cost is not None
    assert option.cost.expected == pytest.approx(200 * EACH / 2, rel=0.01)


def test_a_rescue_leaves_time_for_its_cancel_and_for_all_in_real_time():
    option = chosen(1000, Constraints(deadline=3600.0), batch=steady(2400.0, 2.0)).chosen
    assert option.rescue_at is not None
    assert option.rescue_at + option.rescue_needs == pytest.approx(3600.0)
    assert option.rescue_needs > 60 + 500 + 36  # a cancel, 1,000 calls of 2 s by four workers, and the margin
    assert 0 < option.chance < 1
    assert option.p95 <= 3600.0


def test_rescued_batches_meet_their_deadlines_as_promised():
    def rescued(turnaround: float) -> Option:
        there = evolve(by_batch(1000, steady(turnaround, 2.0)), cancelling=cold(CANCEL_PRIOR))
        constraints = Constraints(deadline=3600.0, strategy=Strategy.BATCH)
        return choose(Load(1000), [individually(1000)], there, constraints).chosen

    often, seldom = rescued(2700.0), rescued(900.0)
    assert often.rescue_at is not None
    assert 0.95 <= often.odds < 0.99 < seldom.odds


@pytest.mark.parametrize(("deadline", "percent"), [(1060.0, 2), (990.0, 20), (780.0, 60), (600.0, 90)])
def test_the_less_time_there_is_the_more_goes_in_real_time_at_once(deadline, percent):
    """A list that takes 500 s in real time, with batches of 30 minutes to two hours."""
    offers, there = [individually(1000)], by_batch(1000, steady(1800.0, 4.0))
    routes = open_routes(Load(1000), offers, there, Constraints(deadline=deadline))
    hybrid = next(option for option in routes if option.route is Route.HYBRID)
    assert hybrid.first == 10 * percent
    assert hybrid.p95 == deadline


def test_no_deadline_is_risked_for_less_than_a_miss_counts():
    """The same forecasts for a list that costs a fifth of a cent and for one that costs ten dollars."""

    def judged(usd: float) -> Decision:
        cost = Cost(usd, usd, usd)
        offer = Offer(Route.INDIVIDUAL, Throughput(steady(2.0), 4), cost)
        there = BatchOffer(steady(900.0, 2.0), cost.of(0.5), cold(CANCEL_PRIOR))
        return choose(Load(100), [offer], there, Constraints(deadline=1100.0))

    dear, cheap = judged(10.0), judged(0.002)
    assert dear.late_penalty < cheap.late_penalty
    assert dear.chosen.route is Route.BATCH
    assert cheap.chosen.route is Route.INDIVIDUAL
    batch = next(option for option in cheap.options if option.route is Route.BATCH)
    assert batch.feasible
    assert batch.ruled_out == "saves nothing if the risk of being late is included"
    assert all(option.ruled_out for option in cheap.options if option.batches)
    assert "the cheapest of 1 route that meets" in cheap.reason
    assert batch.cost is not None
    assert batch.cost.expected < 0.99 * 0.002 < batch.cost.expected + batch.late_cost
    assert batch.late_cost == pytest.approx((1 - batch.odds) * cheap.late_penalty * 0.002)


@pytest.mark.parametrize("hours", sampled([1, 6, 24], first=1))
def test_a_rescue_is_said_to_begin_when_a_job_will_begin_it(hours):
    deadline = 3600.0 * hours
    times, cancels = steady(900.0, 2.0), cold(CANCEL_PRIOR)
    # so cheap that the late penalty is several times the price of the list
    there = BatchOffer(times, price(400, 0.02), cancels)
    alone = evolve(individually(400), cost=price(400, 0.04))
    decision = choose(Load(400), [alone], there, Constraints(deadline=deadline))
    option = decision.chosen
    assert option.rescue_at is not None
    speed = Speed(individually(400).throughput, cancels, times)
    pieces = [400 // option.batches] * option.batches

    def begins(now: float) -> bool:
        shards = [PendingShard(size, sent=True, size=size, age=now) for size in pieces]
        return bool(rescue(deadline - now, 18.0 * hours, 0, shards, speed, decision.late_penalty).take_back)

    assert begins(option.rescue_at)
    assert not any(begins(option.rescue_at - seconds) for seconds in (30 * hours, 300, 1200))
    assert f"begins is {share(there.chance(option.rescue_at, 400))}" in decision.reason


def test_a_rescue_that_no_moment_is_right_for_is_not_announced():
    decision = chosen(14_915, Constraints(deadline=7774.0), batch=cold(Prior.of(472.0, 2279.0)))
    option = decision.chosen
    assert option.route is Route.BATCH
    assert option.rescue_at is None
    assert option.chance > 0.99
    assert "rescue" not in explain(decision)


@pytest.mark.parametrize("requests", sampled([1000, 6000, 7000], first=1))
def test_a_nearly_certain_batch_costs_half_however_slow_real_time_is(requests):
    decision = chosen(requests, Constraints(deadline=3600.0), batch=steady(1500.0, 1.2))
    option = decision.chosen
    assert option.route is Route.BATCH
    assert option.cost is not None
    assert option.cost.expected == pytest.approx(requests * EACH / 2, rel=0.001)
    assert option.odds > 0.99
    assert option.rescue_at is None or option.rescue_at > 1500.0


def test_routes_over_budget_are_ruled_out_if_another_fits():
    range_of = Cost(0.01, 0.1, 0.3)
    offer = Offer(Route.INDIVIDUAL, Throughput(steady(2.0), 4), range_of)
    there = BatchOffer(steady(900.0, 2.0), range_of.of(0.5))

    def judged(budget: float) -> Decision:
        return choose(Load(100), [offer], there, Constraints(budget=budget, time_value=0))

    some, none = judged(0.06), judged(0.04)
    why = {option.route: option.ruled_out for option in some.options}
    assert why[Route.INDIVIDUAL] == "is expected to cost more than the budget"
    assert some.chosen.route is none.chosen.route is Route.BATCH
    assert not why[Route.BATCH]
    assert "the cheapest of 3 routes, none of which is expected to stay within the budget" in none.reason


@pytest.mark.parametrize(
    ("requests", "why"), [(3, "lists of up to 3 requests"), (5, "the threshold of 10"), (10, None)]
)
def test_a_route_that_is_not_open_is_named_with_the_reason(requests, why):
    closed = dict(chosen(requests, Constraints()).closed)
    assert why is None if not closed else why is not None and why in closed[Route.BATCH]
    assert Route.BATCH in dict(choose(Load(20), [individually(20)], None, Constraints()).closed)


def test_a_batch_is_cut_where_its_pieces_can_be_taken_back_one_by_one():
    decision = chosen(
        8000, Constraints(deadline=3 * 3600.0, strategy=Strategy.BATCH), batch=steady(6000.0, 2.0)
    )
    assert decision.chosen.pieces == decision.chosen.batches == MAX_PIECES
    assert decision.piece == math.ceil(8000 / MAX_PIECES)
    whole = chosen(8000, Constraints(strategy=Strategy.BATCH), batch=steady(6000.0, 2.0))
    assert whole.piece is None


def test_what_saves_next_to_nothing_is_not_worth_the_wait():
    flex = Offer(Route.FLEX, Throughput(steady(6.0), 4), price(100, 0.501))
    assert chosen(100, Constraints(deadline=86_400.0), flex).chosen.route is Route.FLEX
    dear = evolve(flex, cost=price(100, 0.51))
    assert chosen(100, Constraints(deadline=86_400.0), dear).chosen.route is Route.BATCH


def test_what_is_more_likely_in_time_than_not_is_tried_and_said():
    needs = chosen(1000, Constraints()).alone
    decision = chosen(1000, Constraints(deadline=(needs.p50 + needs.p95) / 2, strategy=Strategy.INDIVIDUAL))
    assert not decision.chosen.feasible
    assert 0.5 < decision.chosen.odds < 0.95
    assert f"the best chance, {share(decision.chosen.odds)}" in decision.reason


def deadlines_named(error: Infeasible) -> list[float]:
    named = re.findall(r"a deadline of ([\d.]+ \w+) \(|a deadline of ([\d.]+ \w+) in", str(error))
    return [seconds_of("deadline", one or other) for one, other in named]


def test_a_probably_missed_deadline_is_refused_with_the_nearest_possible():
    with pytest.raises(
        Infeasible, match=r"no route meets a deadline of 100 s .* a deadline of [\d.]+ min"
    ) as raised:
        chosen(1000, Constraints(deadline=100.0))
    (nearest,) = deadlines_named(raised.value)
    assert chosen(1000, Constraints(deadline=nearest)).chosen.feasible


@pytest.mark.parametrize("strategy", sampled([Strategy.BATCH, Strategy.HYBRID, Strategy.THRESHOLD]))
def test_a_late_forced_batch_is_refused_with_the_time_of_real_time(strategy):
    forced = Constraints(strategy=strategy, deadline=0.5)
    with pytest.raises(Infeasible, match=r"in real time \(individual, .* strategy='individual'") as raised:
        chosen(20, forced)
    nearest, by_batch = deadlines_named(raised.value)
    assert nearest < by_batch
    assert f"for 20 requests with strategy={strategy.value!r}" in str(raised.value)
    assert chosen(20, evolve(forced, strategy=Strategy.INDIVIDUAL, deadline=nearest)).chosen.feasible
    with pytest.raises(Infeasible, match=r"met: that deadline in real time \(individual"):
        chosen(20, evolve(forced, deadline=50.0))


def test_a_forced_batch_that_may_be_late_names_real_time_that_is_not():
    forced = Constraints(strategy=Strategy.BATCH, deadline=65.0)
    decision = chosen(20, forced, batch=steady(60.0, 2.0))
    assert decision.chosen.route is Route.BATCH
    assert 0.5 < decision.chosen.odds < 0.95
    assert "real time meets it (individual, " in decision.reason


def test_a_budget_that_will_not_do_is_refused_with_the_one_that_would():
    with pytest.raises(Infeasible, match=r"a budget of \$0\.05"):
        chosen(100, Constraints(budget=0.039))
    assert chosen(100, Constraints(budget=0.05)).chosen.route is Route.BATCH


def test_incompatible_deadline_and_budget_are_both_named():
    with pytest.raises(Infeasible) as raised:
        chosen(1000, Constraints(deadline=600.0, budget=0.6))
    text = str(raised.value)
    assert "a deadline of" in text.split("Constraints that can be met")[1]
    assert "a budget of" in text.split("Constraints that can be met")[1]


# -- without a deadline --------------------------------------------------------------------------------------


def test_without_a_deadline_money_is_weighed_against_the_wait():
    decision = chosen(1000, Constraints(time_value=0.1))
    for option in decision.options:
        assert option.cost is not None
        assert option.weight == pytest.approx(option.cost.expected + 0.1 * option.expected / 3600)
    assert decision.chosen.weight == min(option.weight for option in decision.options)


def cold_choice(n: int, *, seen: bool) -> Decision:
    there = evolve(by_batch(n, cold(BATCH_PRIOR)), seen=seen)
    return choose(Load(n), [individually(n)], there, Constraints(time_value=100.0))


def test_a_batch_is_tried_until_one_was_observed():
    decision = cold_choice(4000, seen=False)
    assert decision.chosen.route is Route.BATCH
    assert decision.chosen.p50 < decision.alone.p50
    sooner, later = duration(decision.chosen.p50), duration(decision.alone.p50)
    assert f"finish within {sooner} (individual: {later})" in decision.reason
    assert cold_choice(4000, seen=True).chosen.route is Route.INDIVIDUAL
    assert cold_choice(2000, seen=False).chosen.route is Route.INDIVIDUAL  # 17 minutes in real time


def test_preferences_leave_out_the_wait_or_the_money():
    assert chosen(1000, Constraints(prefer="cost", time_value=100.0)).chosen.route is Route.BATCH
    assert chosen(1000, Constraints(prefer="speed", time_value=0.0)).chosen.route is Route.INDIVIDUAL


def test_where_prices_are_unknown_their_usual_shares_are_compared():
    decision = chosen(200, Constraints(deadline=4 * 3600.0), priced=False)
    assert decision.chosen.route is Route.BATCH
    assert decision.chosen.cost is None


def test_nothing_to_ask_takes_no_time_and_costs_nothing():
    option = chosen(0, Constraints(deadline=1.0)).chosen
    assert (option.p95, option.calls) == (0, 0)


# -- of every choice -----------------------------------------------------------------------------------------

MINUTES = st.floats(1.0, 1500.0)
SIZES = st.integers(1, 20_000)


def tried(n: int, constraints: Constraints, turnaround: float, spread: float) -> Option | None:
    try:
        return chosen(n, constraints, batch=cold(Prior.of(turnaround, spread * turnaround))).chosen
    except Infeasible:
        return None


@pytest.mark.full
@given(
    n=SIZES,
    minutes=MINUTES,
    factor=st.floats(1.0, 20.0),
    turnaround=st.floats(60, 20_000),
    spread=st.floats(1.2, 8),
)
@example(n=78, minutes=1.5, factor=2.0, turnaround=65.0, spread=1.25)
def test_a_longer_deadline_costs_no_more(n, minutes, factor, turnaround, spread):
    short = tried(n, Constraints(deadline=60 * minutes), turnaround, spread)
    long = tried(n, Constraints(deadline=60 * minutes * factor), turnaround, spread)
    if short is None or not short.feasible:
        return
    assert long is not None
    assert short.cost is not None
    assert long.cost is not None
    assert long.cost.expected + long.late_cost <= (short.cost.expected + short.late_cost) * 1.06


@pytest.mark.full
@given(n=SIZES, value=st.floats(0.0, 50.0), more=st.floats(0.0, 50.0), turnaround=st.floats(60, 20_000))
def test_who_values_time_more_never_waits_longer(n, value, more, turnaround):
    may_wait = tried(n, Constraints(time_value=value), turnaround, 3.0)
    urgent = tried(n, Constraints(time_value=value + more), turnaround, 3.0)
    assert may_wait is not None
    assert urgent is not None
    assert urgent.expected <= may_wait.expected * (1 + 1e-9)


@pytest.mark.full
@given(n=SIZES, minutes=MINUTES, turnaround=st.floats(60, 20_000), spread=st.floats(1.2, 8))
@example(n=6963, minutes=60.0, turnaround=60.0, spread=1.2)
def test_a_choice_is_sound_and_can_be_explained(n, minutes, turnaround, spread):
    constraints = Constraints(deadline=60 * minutes)
    times = cold(Prior.of(turnaround, spread * turnaround))
    try:
        decision = choose(Load(n), [individually(n)], by_batch(n, times), constraints)
    except Infeasible as error:
        assert all(seconds > 60 * minutes for seconds in deadlines_named(error))
        return
    option = decision.chosen
    assert option in decision.options
    assert option.odds >= 0.5
    assert 0 <= option.first <= n
    assert option.p50 <= option.p95
    assert n * EACH / 2 * 0.99 <= (option.cost or price(n)).expected <= n * EACH * 1.01
    if option.feasible:
        cheapest = min(each.cost.expected for each in decision.options if each.feasible and each.cost)
        assert (option.cost or price(n)).expected <= 1.02 * cheapest + 1e-12
    if option.rescue_at is not None:
        assert 0 < option.rescue_at < 60 * minutes
    assert decision.reason in explain(decision, details=True)


def test_a_forced_hybrid_sends_at_once_what_fits_a_tenth_of_the_batch():
    calls = Throughput(Forecaster(Prior.of(1.0, 1.01)).at(0.0), parallelism=1)
    there = BatchOffer(Forecaster(Prior.of(55.0, 55.1)).at(0.0), None)
    forced = Constraints(strategy=Strategy.HYBRID)
    assert choose(Load(4), [Offer(Route.INDIVIDUAL, calls, None)], there, forced).chosen.first == 3
    decision = choose(Load(60), [Offer(Route.INDIVIDUAL, calls, None)], there, forced)
    assert decision.chosen.first == 5
    assert decision.chosen.batches == 1


@given(
    st.lists(
        st.tuples(st.floats(1.0, 1e5), st.floats(1.0, 1e5), st.floats(1.0, 30.0)), min_size=1, max_size=4
    ),
    st.integers(1, 2_000),
)
def test_for_speed_no_route_is_chosen_that_is_worse_in_mean_and_tail(calls, n):
    offers = [
        Offer(route, Throughput(cold(Prior.of(median, median * spread)), 4), price(n))
        for route, (median, _, spread) in zip(
            (Route.INDIVIDUAL, Route.SHARED, Route.PACKED, Route.FLEX), calls, strict=False
        )
    ]
    batch = BatchOffer(cold(Prior.of(calls[0][1], calls[0][1] * calls[0][2])), price(n, 0.5), steady(60.0))
    found = choose(Load(n), offers, batch, Constraints(prefer="speed"))
    taken = found.chosen
    for other in found.options:
        if other.feasible and not other.ruled_out:
            assert not (other.expected < taken.expected and other.p95 < taken.p95)
