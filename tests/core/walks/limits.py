"""Random walks through quotas, throttles, breakers, budgets, pauses and retries."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

from core.limits.limit_server import bucket, constant, fixed_windows, lognormal, run, spaced
from core.limits.metered_server import Client, Server, capped_high, capped_low, fill, steady

from smartbatch.core.limits.budget import Budget, SpendReservation
from smartbatch.core.limits.budget_reservations import JobReservations, NewReservation
from smartbatch.core.limits.circuit_breaker import CircuitBreaker, Outcome
from smartbatch.core.limits.cooldown import FlexHealth, PackingHealth, backoff
from smartbatch.core.limits.quota import Quota, Reservation
from smartbatch.core.limits.retry import Circumstances, RetryCount, RetryPolicy, decide
from smartbatch.core.limits.throttle import AdaptiveThrottle
from smartbatch.errors import ErrorKind
from smartbatch.types import LimitReport
from tests.core.walks.record import Record

SERVERS = (
    ("openai", {"requests": 1200, "tokens": 1_000_000}),
    ("openai", {"requests": 6000, "tokens": 250_000}),
    ("anthropic", {"requests": 4000, "input": 250_000, "output": 80_000}),
    ("gemini", {"requests": 1300, "input": 1_000_000}),
)
# by name: calls per moment and per second, calls per window and its seconds, or seconds between calls
LIMITS = {
    "bucket 60 10": lambda: bucket(60, 10.0),
    "bucket 5 0.5": lambda: bucket(5, 0.5),
    "windows 10 1": lambda: fixed_windows(10, 1.0),
    "spaced 0.1": lambda: spaced(0.1),
    "spaced 3": lambda: spaced(3.0),
}


def filling(rng: random.Random, record: Record) -> None:
    style, minute = rng.choice(SERVERS)
    server = Server(
        style,
        {name: limit * rng.uniform(0.2, 1.0) for name, limit in minute.items()},
        hints=rng.random() < 0.7,
        resets=rng.random() < 0.7,
        late=rng.random() < 0.3,
        sizes={"requests": 30.0} if rng.random() < 0.3 else None,
    )
    latency = rng.choice((constant(0.05), constant(0.5), lognormal(0.4), lognormal(2.0)))
    client = Client(Quota(), latency, rng.choice((steady, capped_high, capped_low)), workers=24)
    if rng.random() < 0.3:
        client.quota.configure(rng.choice((None, 900, 6000)), rng.choice((None, 200_000)), 0.0)
    change = (20.0, {"requests": rng.choice((300.0, 2400.0))}) if rng.random() < 0.4 else None
    fill(server, client, seconds=40.0, seed=rng.randrange(100), jitter=0.005, change=change)
    record.name = style
    record.note(
        "run",
        calls=client.counts.calls,
        refused=client.counts.refused,
        refused_at=client.counts.refusals,
        limits=client.quota.reported_limits,
        spaced=client.quota.spaced_rate,
        called_at=[at for at, _ in server.meters["requests"].spent],
        spent={name: sum(amount for _, amount in meter.spent) for name, meter in server.meters.items()},
    )


def unknown(rng: random.Random, record: Record) -> None:
    limit = rng.choice(list(LIMITS))
    one = Quota()
    one.configure(rng.choice((None, None, 600, 6000)), None, 0.0)
    latency = rng.choice((constant(0.05), constant(0.5), lognormal(0.4), constant(4.0)))
    asked = rng.choice((None, 1.0))
    workers = rng.choice((4, 32, 64))
    found = run(
        one,
        LIMITS[limit](),
        250,
        latency=latency,
        workers=workers,
        retry_after=None if asked is None else lambda _: asked,
        quick_refusals=rng.random() < 0.5,
    )
    record.name = f"{limit} of {workers}"
    record.note(
        "run",
        seconds=found.seconds,
        refused=found.refused,
        early=found.early,
        rate=one.spaced_rate,
        ended_at=found.ends,
        refused_at=found.refusals,
    )


def _report(rng: random.Random) -> LimitReport | None:
    if rng.random() < 0.4:
        return None
    kind = rng.choice(("requests", "tokens", "input", "output"))
    limit = rng.choice((None, 60, 600, 600, 50_000))
    left = rng.choice((None, 0, 1, 7, 37, 54, 400, 540, 1000, 29_500))
    reset = rng.choice((None, 0.0, 0.5, 6.0, 30.0, 50.5, 59.0, 65.0, 90.0, 4000.0, 100_000.0))
    named = {"limit": limit, "remaining": left, "reset": reset}
    return LimitReport(**{f"{kind}_{name}": value for name, value in named.items()})  # type: ignore[arg-type]


def _same_limits(rng: random.Random) -> Callable[[], LimitReport]:
    kinds = ("requests", "tokens", "input", "output")
    limits = {kind: rng.choice((60, 600, 50_000)) for kind in kinds if rng.random() < 0.5}
    rounded_to = rng.choice((0.0, 1.0))

    def told() -> LimitReport:
        figures: dict[str, float | None] = {}
        for kind, limit in limits.items():
            left = rng.choice((0, 1, limit // 8, limit // 2, limit - 1, limit))
            figures[f"{kind}_limit"] = rng.choice((None, limit, limit))
            figures[f"{kind}_remaining"] = rng.choice((None, left, left))
            figures[f"{kind}_reset"] = rng.choice((None, 1.0, 60.0 * (limit - left) / limit))
        return LimitReport(**figures, resets_rounded_to=rounded_to)  # type: ignore[arg-type]

    return told


Moments = Callable[[float], float]  # returns the next time at which something may happen


def any_moment(at: float) -> float:
    return at


def at_eighths(at: float) -> float:
    return round(8.0 * at) / 8.0


def quota(
    rng: random.Random, record: Record, moment: Moments = any_moment, *, same_limits: bool = False
) -> None:
    told = _same_limits(rng) if same_limits else partial(_report, rng)
    one, now, going = Quota(), 0.0, list[tuple[Reservation, bool]]()
    refusing, reporting = rng.choice((0.0, 0.02, 0.3, 0.9)), rng.choice((0.0, 0.0, 0.3))
    cap, rate = rng.choice((5, 12, 1000)), rng.choice((4.0, 1e9, 1e9))
    calls_a_second = rng.choice((2.0, 30.0))
    if rng.random() < 0.5:
        one.configure(rng.choice((None, 60, 600)), rng.choice((None, 6000, 100_000)), now)
    if rng.random() < 0.3:
        one.approach()
    level = 10.0
    for step in range(500):
        passed = moment(rng.expovariate(calls_a_second) * (100.0 if rng.random() < 0.01 else 1.0))
        now, level = now + passed, min(10.0, level + passed * rate)
        tokens = rng.choice((10.0, 150.0, 900.0))
        at = one.look(now, tokens, 0.4 * tokens)
        record.note("look", wait=at - now)
        if at <= now and rng.random() < 0.7:
            level -= 1.0
            bad = level < 0.0 or len(going) >= cap or rng.random() < refusing
            going.append((one.take(now, tokens, 0.4 * tokens), bad))
        elif going:
            call, bad = going.pop(rng.randrange(len(going)))
            report = told() if rng.random() < reporting else None
            if bad:
                asked = rng.choice((None, None, 0.0, 1.5, 30.0))
                record.note("refused", until=one.refused(call, now, asked, rng, report))
            elif rng.random() < 0.9:
                used = rng.choice((None, 0.8, 1.3))
                one.succeeded(call, now, None if used is None else used * call.tokens, rng.choice((None, 50)))
                if report is not None:
                    one.learn(report, call, now)
            else:
                rng.choice((one.failed, one.dropped))(call, now)
        if step % 20 == 0:
            record.note(
                "told",
                in_flight=one.in_flight,
                spaced=one.spaced_rate,
                limits=one.reported_limits,
            )
        if rng.random() < 0.005:
            one.configure(rng.choice((None, 60, 600)), None, now)


def throttle(rng: random.Random, record: Record, moment: Moments = any_moment) -> None:
    one, now, level = AdaptiveThrottle(), 0.0, 0.0
    failing, rate = rng.choice(((0.02, 1e9), (0.4, 1e9), (0.95, 1e9), (0.0, 60.0), (0.05, 20.0), (0.0, 0.3)))
    going: list[tuple[float, float, bool | None]] = []
    workers, latency = rng.choice((8, 32)), rng.choice((0.05, 0.4, 4.0, 20.0))
    failure = rng.choice((0.004, 0.004, latency))
    at_once = rng.choice((1, 3, 1000, 1000))
    for step in range(4000):
        at_once *= 4 if step == 3000 else 1
        at = one.look(now)
        if len(going) < workers and at <= now:
            one.take(now)
            level += 1.0
            ok: bool | None = level < rate / 4 and len(going) < at_once and rng.random() >= failing
            ok = None if rng.random() < 0.02 else ok
            ends = moment(now + (latency * rng.uniform(0.5, 2.0) if ok else failure))
            going.append((ends, now, ok))
        else:
            due = min([end for end, _, _ in going] + [at] * (len(going) < workers))
            level, now = max(0.0, level - (max(due, now) - now) * rate), max(due, now)
            for each in [each for each in going if each[0] <= now]:
                going.remove(each)
                one.end(each[1], now, accepted=each[2])
            record.note("rate", rate=one.rate, latency=one.latency)
        if step % 400 == 399 and rng.random() < 0.3:
            one.restart()
    record.note("end", seconds=now)


def breaker(rng: random.Random, record: Record, moment: Moments = any_moment) -> None:
    one = CircuitBreaker(rng.choice((1, 5)), probes=rng.choice((1, 4)))
    now, going, down = 0.0, list[tuple[object, bool]](), False
    usual = rng.choice((0.0, 0.05, 0.5, 0.9))
    for _ in range(600):
        now += moment(rng.expovariate(rng.choice((1.0, 30.0))))
        down = not down if rng.random() < 0.01 else down
        at = one.look(now)
        record.note("look", wait=at - now, state=one.state, failing=one.failure_share)
        if at <= now and rng.random() < 0.6:
            going.append((one.take(now), rng.random() < 0.8))
        elif going:
            permit, first = going.pop(rng.randrange(len(going)))
            failed = down or rng.random() < usual
            outcome = Outcome.FAILURE if failed else rng.choice((Outcome.SUCCESS, Outcome.IGNORED))
            more = rng.choice((0, 0, 1, 4))
            change = one.end(permit, now, outcome, rng, first=first, failures=more)  # type: ignore[arg-type]
            record.note("change", change)
        if rng.random() < 0.004:
            record.note("stop", one.stop(ValueError("no money"), now, now + 20.0))
        if rng.random() < 0.02:
            record.note("followed", one.follow(now, rng, outage=rng.random() < 0.3))
        record.note(
            "told",
            change=one.changes(),
            stopped=one.stopped(now) is not None,
            passed=one.passed,
            usual=one.run_is_usual,
        )


def pauses(rng: random.Random, record: Record) -> None:
    flex, packing, now = FlexHealth(), PackingHealth(), 0.0
    for _ in range(300):
        now += rng.expovariate(0.05)
        if rng.random() < 0.5:
            flex.answered()
        else:
            told = flex.refused(now, "no", in_flight=rng.randrange(12), permanent=rng.random() < 0.02)
            record.note("flex refused", told)
        record.note("flex", open=flex.is_open(now), resumed=flex.resume(now))
        asked = rng.randrange(1, 30)
        missing = rng.choice((0, 0, asked // 5, asked // 5 + 1, asked))
        record.note("packs", told=packing.observe(now, asked, missing), off=packing.off_until(now) - now)
        record.note("packs resumed", packing.resume(now))


def _given(
    rng: random.Random, record: Record, jobs: JobReservations, name: str, reservation: NewReservation
) -> None:
    if rng.random() < 0.4:
        record.note("enlarged", jobs.enlarge(reservation, rng.choice((0.0, 0.2, 1.5, 9.0))))
    if rng.random() < 0.7:
        if rng.random() < 0.2 and not jobs.has("other"):
            jobs.assign("other", reservation, 0.2)
        jobs.assign(name, reservation, 0.1)


def budget(rng: random.Random, record: Record) -> None:
    outer = Budget(rng.choice((None, 8.0)))
    one = Budget(rng.choice((None, 5.0, 20.0)), outer)
    jobs = JobReservations(Budget(4.0), lambda work: work(), "account")
    held: list[SpendReservation] = []
    for step in range(200):
        cost = rng.choice((0.0, 1e-10, 0.3, 1.0, 2.5))
        record.note(
            "call", fits=one.fits(cost), short_outside=one.short(cost) is outer, short=one.short(cost) is one
        )
        if rng.random() < 0.5:
            made = record.tried("reserve", one.reserve, cost, lasting=rng.random() < 0.4)
            held += [] if made is None else [made]
        elif held:
            act = rng.choice((one.reconcile, one.spend, one.resize))
            chosen = rng.choice(held)
            record.tried("act", act, chosen, 0.4 * cost)
            if act == one.reconcile:
                held.remove(chosen)
        if step % 40 == 0:
            one.widen(0.5)
        record.note("inner", left=one.left, spent=one.spent, reserved=one.reserved, room=one.room)
        record.note("outer", left=outer.left, spent=outer.spent)
        record.note("obtainable", one=one.obtainable(cost), any=one.obtainable(math.inf))
        name = str(rng.randrange(4))
        if jobs.has(name):
            jobs.charge(name, rng.uniform(0.0, 1.0), ended=rng.random() < 0.3, still=rng.choice((None, 0.2)))
        else:
            jobs.reserve(rng.choice((None, 0.5, 1.0)), partial(_given, rng, record, jobs, name))
        record.note("jobs", jobs=jobs.jobs, left=jobs.budget.left, spent=jobs.budget.spent)


def retries(rng: random.Random, record: Record) -> None:
    policy = RetryPolicy(
        retries=rng.choice((0, 1, 3)),
        initial=rng.choice((0.0, 0.5, 1.0)),
        multiplier=rng.choice((1.0, 2.0, 3.0)),
        max_delay=rng.choice((1.5, 10.0)),
        jitter=rng.random() < 0.7,
        limit_retries=rng.choice((0, 2, 30)),
    )
    for kind in ErrorKind:
        count = RetryCount()
        for _ in range(rng.choice((3, 40))):
            seen = Circumstances(
                unavailable=rng.random() < 0.5,
                maybe_billed=rng.random() < 0.2,
                outage=rng.random() < 0.1,
                passing=rng.random() < 0.5,
                failure_share=rng.choice((0.0, 0.1, 0.5)),
                latency=rng.choice((0.0, 0.2, 30.0)),
            )
            asked = rng.choice((None, None, 0.0, 2.0, 40.0))
            retry = decide(policy, kind, count, asked, rng, seen)
            record.note(f"{kind.value}", retried=retry is not None, retry=retry, count=count)
            pause = backoff(rng.randrange(1, 9), rng, first=0.5, longest=20.0, asked=asked)
            record.note("backoff", seconds=pause)
            if retry is None:
                break
    assert math.isfinite(policy.delay(10_000, rng))


WALKS = {
    "filling": (filling, 16),
    "unknown": (unknown, 48),
    "quota": (quota, 200),
    "throttle": (throttle, 48),
    "breaker": (breaker, 24),
    "pauses": (pauses, 8),
    "budget": (budget, 24),
    "retries": (retries, 48),
    "quota at eighths": (partial(quota, moment=at_eighths, same_limits=True), 80),
    "throttle at eighths": (partial(throttle, moment=at_eighths), 16),
    "breaker at eighths": (partial(breaker, moment=at_eighths), 24),
}
