"""Random walks through forecasts, throughput, offers, constraints and rescues."""

from __future__ import annotations

import math
import random
from functools import cache

from attrs import evolve

from smartbatch.core.forecast import ForecastAt, Forecaster, Observation, Prior, RunningBatch, remaining
from smartbatch.core.preparation.calibration import OUTPUT_TOKENS, Calibration
from smartbatch.core.routing.choice import break_even, choose
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import Constraints
from smartbatch.core.routing.rescue import (
    PendingShard,
    Speed,
    chance_within,
    first_rescue,
    late_penalty,
    rescue,
)
from smartbatch.core.routing.workload import NEAR_KEYS, AnswerLengths, Cost, Load, Workload
from smartbatch.routing.history import BATCH_PRIOR, CALL_PRIOR, CANCEL_PRIOR
from smartbatch.types import Embedding, Generation, Kind, Prefer, Request, Route, Strategy, Usage
from tests.core.walks.record import Record

NOW = 1.8e9


@cache
def _forecast(prior: Prior, middle: float, count: int) -> ForecastAt:
    rng, forecaster = random.Random(count), Forecaster(prior)
    for place in range(count):
        seconds = middle * math.exp(rng.gauss(0, 0.5))
        forecaster.observe(Observation(rng.choice((1, 50, 1000)), seconds, NOW + 400 * place))
    return forecaster.at(NOW + 400 * count)


def _seen(rng: random.Random, prior: Prior) -> ForecastAt:
    return _forecast(prior, rng.choice((0.5, 2.0, 700.0, 9000.0)), rng.choice((0, 0, 3, 40)))


def forecasts(rng: random.Random, record: Record) -> None:
    prior = rng.choice((CALL_PRIOR, BATCH_PRIOR, CANCEL_PRIOR, Prior.of(2.0, 10.0, growth=0.4)))
    forecaster, now = Forecaster(prior, remember=rng.choice((30, 512))), NOW
    middle, growth, drift = rng.choice((1.0, 900.0)), rng.choice((0.0, 0.5)), rng.choice((1.0, 1.02))
    together = 1
    for place in range(120):
        together = together - 1 if together > 1 else rng.choice((1, 1, 1, 4))
        now += 0.0 if together > 1 else rng.expovariate(1 / rng.choice((60.0, 3000.0, 40_000.0)))
        middle *= drift * (rng.choice((6.0, 1 / 6)) if rng.random() < 0.01 else 1.0)
        size = rng.choice((1, 20, 500))
        seconds = middle * size**growth * math.exp(rng.gauss(0, 0.4))
        seen = Observation(size, seconds, now, ended=rng.random() > 0.1)
        record.note("change", forecaster.observe(seen))
        if place % 4 == 0:
            found = forecaster.at(now + 1000.0)
            for q in (1e-6, 0.01, 0.5, 0.95, 0.9999):
                record.note(f"quantile {q}", found.quantile(q, size))
            record.note(
                "chance",
                chance=found.chance(seconds, 1),
                expected=found.expected(20),
                unsure=found.uncertainty(),
            )
            running = [
                RunningBatch(size, rng.uniform(-5e3, 9e4), rng.choice((None, 0, 1, 400))) for _ in "12"
            ]
            unsent = rng.choice(((), (500,), (500, 20, 20)))
            record.note("left", remaining(running, found, unsent=unsent))
            record.note("left of none", remaining((), found, unsent=unsent))
            with_one = [RunningBatch(1000, 60.0 * place, rng.choice((None, 3, 999)))]
            record.note("left of one", remaining(with_one, found))


def _throughput(rng: random.Random) -> Throughput:
    return Throughput(
        _seen(rng, CALL_PRIOR),
        parallelism=rng.choice((1, 4, 64)),
        per_call=rng.choice((1, 1, 10)),
        ahead=rng.choice((0, 0, 200)),
        tokens=rng.choice((0.0, 800.0)),
        rpm=rng.choice((math.inf, 500.0)),
        tpm=rng.choice((math.inf, 100_000.0)),
    )


def _cost(rng: random.Random, n: int, share: float) -> Cost | None:
    each = n * share * 0.002
    return None if rng.random() < 0.1 else Cost(0.7 * each, each, 1.3 * each)


def _batches(rng: random.Random, n: int) -> BatchOffer:
    return BatchOffer(
        _seen(rng, BATCH_PRIOR),
        _cost(rng, n, 0.5),
        rng.choice((None, _seen(rng, CANCEL_PRIOR))),
        alone=_cost(rng, n, rng.choice((0.7, 1.0))),
        share=rng.choice((0.5, 0.5, 0.6)),
        most=rng.choice((100, 5000)),
        at_a_time=rng.choice((math.inf, 2)),
        seen=rng.random() < 0.7,
    )


def choices(rng: random.Random, record: Record) -> None:
    for _ in range(12):
        n = rng.choice((1, 3, 4, 9, 10, 40, 600, 20_000))
        offers = [Offer(Route.INDIVIDUAL, _throughput(rng), _cost(rng, n, 1.0))]
        if rng.random() < 0.4:
            offers.append(Offer(Route.FLEX, _throughput(rng), _cost(rng, n, 0.5), share=0.5))
        if rng.random() < 0.3:
            packed = evolve(_throughput(rng), per_call=10)
            offers.append(Offer(Route.PACKED, packed, _cost(rng, n, 0.8), share=0.8, open=rng.random() < 0.5))
        batch = None if rng.random() < 0.1 else _batches(rng, n)
        prefer: Prefer = rng.choice(("balanced", "speed", "cost"))
        constraints = Constraints(
            strategy=rng.choice((Strategy.AUTO, Strategy.AUTO, Strategy.AUTO, *Strategy)),
            prefer=prefer,
            deadline=rng.choice((None, 5.0, 600.0, 7200.0, 86_400.0)),
            budget=rng.choice((None, None, 0.0004 * n, 0.0011 * n, 1e3)),
            time_value=rng.choice((0.0, 5.0, 50.0)),
            threshold=rng.choice((10, 10, 40)),
            at_once=rng.choice((0, 3, 3, 20)),
        )
        answers = rng.choice(
            (None, AnswerLengths(0, 450.0), AnswerLengths(0, 450.0, 2), AnswerLengths(7, 90.0))
        )
        repeats = rng.choice((0, 0, n // 4))
        load = Load(n, 500.0 * n, 100.0 * n, rng.choice((0, 3)), answers, rng.choice((0, 2)), repeats)
        decision = record.tried("choice", choose, load, offers, batch, constraints)
        if decision is not None:
            record.note(
                "chosen", decision.chosen.route, piece=decision.piece, late_penalty=decision.late_penalty
            )
        if batch is not None:
            record.tried("break even", break_even, load, offers, batch, constraints)
        throughput = offers[0].throughput
        for q in (0.05, 0.5, 0.95):
            record.note(
                "finish",
                at=throughput.finish(n, q),
                expected=throughput.expected(n),
                quota=throughput.quota(n),
            )
            record.note("within", chance_within(rng.uniform(1, 100), 20.0, 20.0 + 80 * q))
        record.note("penalty", late_penalty(rng.choice((None, 0.4)), rng.choice((0.0, 5.0))))


def rescues(rng: random.Random, record: Record) -> None:
    speed = Speed(_throughput(rng), _seen(rng, CANCEL_PRIOR), _seen(rng, BATCH_PRIOR))
    for _ in range(15):
        shards = [
            PendingShard(
                left=rng.randrange(1, 1000),
                sent=rng.random() < 0.8,
                stuck=rng.random() < 0.2,
                size=rng.choice((20, 1000, 1000)),
                held_up=rng.random() < 0.2,
                age=rng.choice((0.0, 300.0, 8000.0)),
                cancelled=rng.choice((None, None, 30.0)),
            )
            for _ in range(rng.randrange(5))
        ]
        left, penalty = rng.choice((-5.0, 40.0, 900.0, 7000.0, 80_000.0)), rng.choice((1.0, 20.0))
        record.note("rescue", rescue(left, 0.01 * abs(left), rng.randrange(200), shards, speed, penalty))
    for deadline in (100.0, 7200.0, 86_400.0):
        record.note("first", first_rescue(deadline, [400, 600], speed))


class Rates:
    def cost(self, usage: Usage) -> float:
        return 2e-6 * usage.input_tokens + 1e-6 * usage.output_tokens

    expected_cost = cost


def workloads(rng: random.Random, record: Record) -> None:
    learned = Calibration()
    longer = Calibration(learned)
    middle = rng.choice((5, 300))
    for place in range(rng.choice((0, 4, 80, 300))):
        middle = middle * 4 if place == 50 else middle
        made = int(middle * math.exp(rng.gauss(0, 0.6))) + 1
        rng.choice((learned, learned, longer)).observe(100, Usage(rng.randrange(0, 260), made))
        record.note(
            "learned",
            ratio=learned.ratio,
            observed=learned.observed,
            unsaved=learned.unsaved,
        )
        record.note(
            "output",
            any=learned.output(None),
            of_200=learned.output(200),
            of_90=min(90, learned.answers("")[1] or OUTPUT_TOKENS),
        )
        record.note(
            "most", any=learned.most_output(None), of_70=learned.most_output(70), input=learned.input(1000)
        )
    state = learned.state()
    other = Calibration()
    for _ in range(rng.choice((0, 3))):
        other.observe(50, Usage(40, 30))
    other.saved(rng.choice((other.state(), {"seen": 0, "shapes": {}})))
    record.note("restored", taken=other.restore(state), state=other.state(), unsaved=other.unsaved)
    record.note("again", other.restore(state))
    record.note("odd seen", learned.restore({**state, "seen": rng.choice((0, -1, "2"))}))
    odd = {
        "seen": (0, -1, "2", 3, 1e3, None, True),
        "outputs": ([], [0], [1, 2, 300], [-1], [math.inf], "text", [1] * 300),
        "estimated": (0.0, 0.5, -0.5, math.inf, "1"),
    }
    for name, values in odd.items():
        for value in values:
            fresh = Calibration()
            record.note(f"odd {name}", taken=fresh.restore({**state, name: value}), state=fresh.state())
    record.note("no state", Calibration().restore([state]), Calibration().restore(None))
    load = Workload(learned, {"standard": Rates(), "batch": None}, kept=rng.random() < 0.4)
    if rng.random() < 0.4:
        load.add_alike(rng.randrange(4), 70, rng.choice(list(Kind)))
    far, unlimited = [b"%06d" % place for place in range(NEAR_KEYS + 2)], rng.random() < 0.5
    for key in (*far, *far[:3]) if rng.random() < 0.3 else ():
        load.add_request(Request("far", Generation(max_tokens=9)), key)
    for place in range(rng.randrange(40)):
        limit = rng.choice((None, 100)) if unlimited else 100
        request = Request("word " * rng.randrange(1, 30), Generation(max_tokens=limit))
        if rng.random() < 0.1:
            request = Request("word", embedding=Embedding())
        load.add_request(request, rng.choice((None, bytes([place % 7]) * 16)))
    record.note(
        "load",
        load.load,
        standard=load.cost("standard"),
        batch=load.cost("batch"),
        by_job=load.cost("standard", by_job=True),
        tokens_most=load.tokens_most,
    )


WALKS = {
    "forecasts": (forecasts, 16),
    "choices": (choices, 16),
    "rescues": (rescues, 24),
    "workloads": (workloads, 32),
}
