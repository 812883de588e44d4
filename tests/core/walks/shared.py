"""Random walks through limits and budgets shared by processes: the record, leases and failures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial

from attrs import evolve

from smartbatch.core.limits.budget import Budget, BudgetLease, SpendReservation
from smartbatch.core.limits.failures import (
    caused_by_one,
    is_for_all,
    is_network,
    is_page,
    is_unavailable,
    is_unhealthy,
    retry_kind,
)
from smartbatch.core.limits.lease import Amounts, LimitLease, QuotaFacts
from smartbatch.core.limits.quota import Quota, Reservation
from smartbatch.core.limits.shared_limit import (
    NO_BOUND,
    Findings,
    LeaseAsk,
    MemberLimits,
    QuotaKind,
    Remaining,
    SharedRecord,
    Totals,
    exchange,
)
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import LimitReport
from tests.core.walks.limits import Moments, any_moment, at_eighths
from tests.core.walks.record import Record

EPOCH = 95_000_000.0
PASSES = (0.0, 0.0, 0.03125, 0.25, 0.5, 1.0, 2.0, 2.125, 8.0, 8.125, 15.0, 15.125)
NOTHING: Amounts = (0.0, 0.0, 0.0, 0.0)


def drawn(rng: random.Random, generations: list[int], kind: QuotaKind, number: int) -> LeaseAsk:
    limited = rng.choice([(1,), (1, 1), (1, 0, 1, 1), (0,)])
    pattern = [*limited, 0, 0, 0, 0][:4]
    caps = [float(on and rng.choice([100, 594.0, 10.0])) for on in pattern]
    costs = [1.0, 350.0, 200.0, 150.0]
    lacks = rng.random() < 0.5
    ask = LeaseAsk(
        member=rng.choice("abcd"),
        kind=kind,
        generation=rng.choice(generations),
        remaining=Remaining(
            at_most=[rng.choice([NO_BOUND, rng.uniform(-5, 700)]) for _ in pattern],
            at_least=[rng.choice([0.0, rng.uniform(0, 700)]) for _ in pattern],
            then=[rng.uniform(-10, 300) for _ in pattern],
        ),
        kept=[rng.choice([0.0, rng.uniform(0, 5)]) for _ in pattern],
        returned=[rng.choice([0.0, rng.uniform(-3, 5)]) for _ in pattern],
        least=costs if lacks else [0.0] * 4,
        wanted=[cost * rng.choice([1, 3, 20]) for cost in costs] if rng.random() < 0.9 else [0.0] * 4,
        slots=rng.choice([0.0, 1.0, 12.0]),
        urgent=int(rng.random() < 0.2),
        findings=Findings(
            accepted=rng.uniform(0, 20),
            refused=rng.uniform(0, 5),
            cooled=rng.choice([0.0, 0.0, 0.0, rng.uniform(0, 3)]),
            spaced=rng.choice([0.0, 0.0, -1.0, rng.uniform(0.5, 20)]),
            lowered=int(rng.random() < 0.1),
            outage=rng.choice([0, 0, 0, 0, 1, -1]),
        ),
        leaving=int(rng.random() < 0.05),
        totals=Totals(number=number, drawn=rng.uniform(0, 50), given=rng.uniform(0, 50)),
    )
    return evolve(
        ask,
        limits=MemberLimits(
            caps=caps,
            rates=[cap / 60.0 for cap in caps],
            learned_caps=[rng.choice((0.0, 0.0, -1.0, 0.5)) * cap for cap in (100.0, 594.0, 100.0, 10.0)],
            learned_rates=[1.0, 9.9, 1.0, 0.1],
        ),
    )


def _whole(rng: random.Random, generation: int, number: int) -> LeaseAsk:
    wants = float(rng.choice((0, 1, 1, 2, 10, 40)))
    ask = LeaseAsk(
        member=rng.choice("abc"),
        generation=generation,
        limits=MemberLimits(
            caps=[rng.choice((0.0, 1.0, 8.0, 8.0, 64.0)), 0.0, 0.0, 0.0],
            rates=[rng.choice((0.0, 1.0, 1.0)), 0.0, 0.0, 0.0],
            learned_rates=[1.0, 0.0, 0.0, 0.0],
        ),
        kept=[float(rng.choice((0, 0, 1, 4))), 0.0, 0.0, 0.0],
        returned=[float(rng.choice((0, 0, 0, 1, -1))), 0.0, 0.0, 0.0],
        least=[min(wants, float(rng.choice((0, 1, 2, 9)))), 0.0, 0.0, 0.0],
        wanted=[wants, 0.0, 0.0, 0.0],
        slots=rng.choice((0.0, 0.0, 1.0, 4.0)),
        urgent=int(rng.random() < 0.3),
        findings=Findings(
            accepted=rng.choice((0.0, 2.0)),
            refused=rng.choice((0.0, 1.0)),
            cooled=rng.choice((0.0,) * 9 + (0.5,)),
            spaced=rng.choice((0.0, 0.0, 0.0, -1.0, 4.0, 8.0)),
            lowered=int(rng.random() < 0.1),
            outage=rng.choice((0, 0, 0, 0, 0, 1, -1)),
        ),
        leaving=int(rng.random() < 0.03),
        totals=Totals(number=number),
    )
    learned = [rng.choice((0.0, 0.0, 0.0, -1.0, 8.0)), 0.0, 0.0, 0.0]
    return evolve(ask, limits=evolve(ask.limits, learned_caps=learned))


def exchanges(rng: random.Random, record: Record) -> None:
    quota, kind = QuotaKind.BUDGET if rng.random() < 0.25 else QuotaKind.RATE, rng.random()
    shared, now, record.epoch = SharedRecord(), EPOCH, EPOCH
    record.note("by default", LeaseAsk("a"), shared)
    for step in range(150):
        now += -rng.choice((1.0, 2.0, 2.125, 60.0)) if rng.random() < 0.03 else rng.choice(PASSES)
        generation = shared.generation - (rng.random() < 0.2)
        number = step - rng.choice((0, 0, 0, 0, 2, 5))
        ask = drawn(rng, [generation], quota, number) if kind < 0.5 else _whole(rng, generation, number)
        record.tried("granted", exchange, shared, ask, now)
        record.note(
            "record",
            levels=shared.levels,
            granted=shared.granted,
            at=shared.at,
            next_slot=shared.next_slot,
            accounts=shared.accounts,
            members=sorted(shared.members),
            held=[one.held for one in shared.members.values()],
            since=[one.since for one in shared.members.values()],
        )


def _each(limits: Amounts, number: Callable[[float], float]) -> Amounts:
    first, second, third, fourth = map(number, limits)
    return first, second, third, fourth


def _facts(
    rng: random.Random, now: float, limits: Amounts, cooled: float, accepted: int, *, spaced: bool
) -> QuotaFacts:
    return QuotaFacts(
        caps=limits,
        rates=_each(limits, lambda limit: limit / 64.0),
        at_most=_each(limits, lambda limit: rng.choice((NO_BOUND, NO_BOUND, 0.5 * limit))),
        remaining=_each(limits, lambda limit: rng.choice((0.0, 0.9 * limit))),
        admitted=now - rng.choice((0.0, 0.5, 4.0)),
        accepted=accepted,
        cool_until=cooled,
        spaced=rng.choice((0.0, 0.0, 2.0, 8.0)) if spaced else 0.0,
    )


def leases(rng: random.Random, record: Record) -> None:
    shared, now, woken = SharedRecord(), 0.0, list[int]()
    record.epoch = EPOCH
    count = rng.choice((1, 2, 3))
    lost = rng.choice(("share", "stop", "local"))
    ones = [LimitLease(f"process {n}", partial(woken.append, n), lost) for n in range(count)]
    limits: Amounts = rng.choice(
        ((64.0, 0.0, 0.0, 0.0), (640.0, 6400.0, 0.0, 0.0), (6400.0, 0.0, 640.0, 64.0))
    )
    told, away, accepted, cooled = rng.random() < 0.7, False, [0] * count, [-1.0] * count
    spacing = rng.random() < 0.4
    for _ in range(250):
        now += rng.choice((0.0, 0.0, 0.015625, 0.0625, 0.125, 0.5, rng.choice((0.25, 1.0, 5.0, 5.125))))
        away = not away if rng.random() < 0.04 else away
        told = told or rng.random() < 0.02
        n = rng.randrange(count)
        one = ones[n]
        one.urgent = rng.random() < 0.2
        _, *more = _each(limits, lambda limit: rng.choice((0.0, 4.0, 0.125 * limit)))
        costs: Amounts = (1.0, more[0], more[1], more[2])
        at = one.look(now, costs)
        record.note("look", wait=at - now, woken=len(woken))
        if at <= now and rng.random() < 0.8:
            one.take(now, costs)
            if rng.random() < 0.7:
                one.return_surplus(now, _each(costs, lambda cost: rng.choice((0.0, -8.0, 0.5 * cost))))
                accepted[n] += 1
        event = rng.random()
        if event < 0.03:
            one.report_outage(begins=rng.random() < 0.5)
        elif event < 0.05:
            one.hurry()
        elif event < 0.08:
            cooled[n] = now + rng.choice((0.0, 0.5, 3.0))
        record.note(
            "told",
            used=one.is_used,
            holds=one.holds,
            members=one.members,
            others=one.others,
            due=one.due(now) - now,
        )
        if one.due(now) > now and rng.random() < 0.9:
            continue
        facts = _facts(rng, now, limits if told else NOTHING, cooled[n], accepted[n], spaced=spacing)
        ask = one.ask(now, facts, leaving=rng.random() < 0.01)
        record.note("ask", ask)
        later = now + rng.choice((0.0, 0.0, 0.03125))
        if away:
            record.note("lost", told=one.lose(later), due=one.due(later) - later)
        else:
            one.adopt(exchange(shared, ask, EPOCH + now), later)
            record.note("adopted", due=one.due(later) - later, wait=one.look(later, costs) - later)
            record.note("cooldown", one.cooldown(later, rng.choice((0.0, later + 0.5))))
            record.note("spacing", one.spacing(rng.choice((0.0, facts.spaced, 4.0))))
        record.note("outage", on=one.outage, outages=one.outages, lost=one.lost, joined=one.joined)
        now = later


def together(rng: random.Random, record: Record, moment: Moments = any_moment) -> None:
    shared, now, level, record.epoch = SharedRecord(), 0.0, 10.0, EPOCH
    rate, cap = rng.choice((4.0, 40.0, 1e9)), rng.choice((3, 12, 1000))
    refusing, limit, calls_a_second = (
        rng.choice((0.0, 0.0, 0.05)),
        rng.choice((None, None, 600)),
        rng.choice((5.0, 60.0)),
    )
    ones = [Quota() for _ in range(rng.choice((1, 2, 2, 3)))]
    going: list[tuple[Quota, Reservation, bool]] = []
    first = rng.random() < 0.5
    for n, one in enumerate(ones):
        one.lease = LimitLease(f"process {n}", int)
        one.configure(rng.choice((None, None, 600)), rng.choice((None, 100_000)), now)
        if first:
            one.approach()
    for _ in range(500):
        passed = moment(rng.expovariate(calls_a_second) * (100.0 if rng.random() < 0.01 else 1.0))
        now, level = now + passed, min(10.0, level + passed * rate)
        one = rng.choice(ones)
        if one.lease is not None and one.lease.due(now) <= now:
            if rng.random() < 0.02:
                record.note("lost", one.lease.lose(now))
            else:
                one.lease.adopt(exchange(shared, one.lease.ask(now, one.facts(now)), EPOCH + now), now)
                one.follow(now)
        at = one.look(now, 100.0, 40.0)
        record.note(
            "look",
            wait=at - now,
            in_flight=one.in_flight,
            spaced=one.spaced_rate,
            limits=one.reported_limits,
        )
        if at <= now and rng.random() < 0.8:
            level -= 1.0
            bad = level < 0.0 or len(going) >= cap or rng.random() < refusing
            going.append((one, one.take(now, 100.0, 40.0), bad))
        elif going:
            one, call, bad = going.pop(rng.randrange(len(going)))
            left = None if limit is None else max(0, int(10 * level))
            report = LimitReport(
                requests_limit=limit, requests_remaining=left, requests_reset=rng.choice((None, 6.0))
            )
            if bad:
                asked = rng.choice((None, None, None, 1.5))
                refusal = one.refused(call, now, asked, rng, report if limit else None)
                record.note("refused", until=refusal)
            elif rng.random() < 0.95:
                one.succeeded(call, now, rng.choice((None, 80.0)), None)
                if limit is not None:
                    one.learn(report, call, now)
            else:
                rng.choice((one.failed, one.dropped))(call, now)


def budget_leases(rng: random.Random, record: Record) -> None:
    shared, now, away, woken = SharedRecord(), 0.0, False, list[int]()
    record.epoch = EPOCH
    held, reserved = [0.0] * 3, [0.0] * 3

    def widen(n: int, usd: float) -> None:
        held[n] += usd

    ones = [
        BudgetLease(
            4.0,
            f"client {n}",
            partial(woken.append, n),
            held=partial(held.__getitem__, n),
            reserved=partial(reserved.__getitem__, n),
            widen=partial(widen, n),
        )
        for n in range(rng.choice((1, 3)))
    ]
    for _ in range(150):
        now += rng.choice((0.0, 0.0625, 0.125, 0.25, 0.5, 0.5, 1.0, rng.choice((5.0, 30.0))))
        away = not away if rng.random() < 0.03 else away
        n = rng.randrange(len(ones))
        one, cost = ones[n], rng.choice((0.0, 0.03125, 0.125, 0.5, 3.0))
        if held[n] - reserved[n] < cost or not cost:
            record.note("hopeless", one.is_hopeless(cost))
            if rng.random() < 0.7:
                one.lack(cost)
        elif rng.random() < 0.5:
            reserved[n] += cost
        else:
            held[n] -= cost
        if reserved[n] and rng.random() < 0.3:
            held[n], reserved[n] = held[n] - 0.5 * reserved[n], 0.0
        record.note("due", waits=one.waits(), after=one.due(now) - now, woken=len(woken))
        if one.due(now) > now and rng.random() < 0.9:
            continue
        ask = one.ask(now, leaving=rng.random() < 0.02)
        record.note("ask", ask)
        grant = record.tried("granted", exchange, shared, ask, EPOCH + now) if rng.random() > 0.05 else None
        if away or grant is None or rng.random() < 0.05:  # granted, but the answer is lost
            record.note("lost", one.lose(now))
        else:
            one.adopt(grant, now + rng.choice((0.0, 0.0625)))
        record.note("accounts", shared.accounts, unleased=one.unleased)
        hopeless = [one.is_hopeless(x) for x in (0.0, 0.5, 9.0)]
        record.note("told", lost=one.lost, held=held[n], due=one.due(now) - now, hopeless=hopeless)


def spending(rng: random.Random, record: Record) -> None:
    shared, now, record.epoch = SharedRecord(), EPOCH, EPOCH
    ones = [Budget(outer=Budget(rng.choice((None, 3.0)))) for _ in range(rng.choice((1, 2)))]
    for n, one in enumerate(ones):
        one.share(4.0, f"client {n}", int)
    held: list[tuple[Budget, SpendReservation]] = []
    for _ in range(120):
        now += rng.choice((0.0, 0.125, 0.5, 1.0, rng.choice((5.0, 31.0))))
        one = rng.choice(ones)
        assert one.lease is not None
        cost = rng.choice((0.0, 0.25, 0.5, 3.0))
        record.note(
            "call",
            fits=one.fits(cost),
            short=one.short(cost) is one,
            obtainable=one.obtainable(cost),
            room=one.room,
            left=one.left,
        )
        if one.fits(cost) and rng.random() < 0.7:
            held.append((one, one.reserve(cost, lasting=rng.random() < 0.3)))
        elif held:
            budget, reservation = held.pop(rng.randrange(len(held)))
            budget.reconcile(reservation, reservation.usd * rng.choice((0.0, 0.5, 1.0, 1.25)))
        record.note("due", after=one.lease.due(now) - now)
        if one.lease.due(now) <= now:
            ask = one.lease.ask(now)
            if rng.random() < 0.05:
                record.note("lost", one.lease.lose(now))
            else:
                one.lease.adopt(exchange(shared, ask, now), now)
        record.note(
            "told",
            spent=one.spent,
            reserved=one.reserved,
            unleased=one.lease.unleased,
            lost=one.lease.lost,
            accounts=shared.accounts,
        )


def failures(rng: random.Random, record: Record) -> None:
    statuses, codes = (
        (None, 400, 404, 410, 429, 500, 502, 503, 504, 529),
        (None, "html", "model_not_found", "x"),
    )
    for kind, status, code in itertools.product(ErrorKind, statuses, codes):
        error = ProviderError("no", kind=kind, status=status, code=code)
        record.note(
            f"{kind.value}",
            network=is_network(error),
            page=is_page(error),
            for_all=is_for_all(error),
            retried_as=retry_kind(error),
            unhealthy=is_unhealthy(error),
            of_one=caused_by_one([error] * 2) is error,
        )
        for answered, passed in itertools.product((False, True), repeat=2):
            record.note(f"{kind.value}", away=is_unavailable(error, answered=answered, passed=passed))
        another = ProviderError("no", kind=kind)
        for outcomes in ([error], [error, another], [error, "text"], ["text", error], ["text", "text"]):
            record.note("one", caused_by_one(outcomes) is None)
        record.note("of many", caused_by_one([error] * rng.randrange(1, 4)) is None)


WALKS = {
    "exchanges": (exchanges, 40),
    "leases": (leases, 48),
    "together": (together, 160),
    "shared budgets": (budget_leases, 24),
    "spending": (spending, 24),
    "failures": (failures, 1),
    "together at eighths": (partial(together, moment=at_eighths), 24),
}
