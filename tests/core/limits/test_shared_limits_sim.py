"""Processes that share a limit by leases use it fully and keep it: simulated servers, in virtual time.

Four processes of 16 workers with endless calls. What counts is the used share of the limit after the first
burst, and the share of refused calls.
"""

from __future__ import annotations

import math
import random

import pytest
from attrs import define, field
from core.limits.limit_server import constant, lognormal
from core.limits.metered_server import Client, SecondMeter, Server, fill

from smartbatch.core.limits.lease import LimitLease, QuotaFacts
from smartbatch.core.limits.quota import Quota
from smartbatch.core.limits.shared_limit import (
    GONE_SECONDS,
    NO_BOUND,
    LeaseAsk,
    LeaseGrant,
    MemberLimits,
    QuotaKind,
    SharedRecord,
    Totals,
    exchange,
    first,
)
from tests.levels import sampled

LATENCIES = {"50 ms": constant(0.05), "400 ms": constant(0.4), "around 2 s": lognormal(2.0)}
LIMITS = {
    "openai, requests": ("openai", {"requests": 600, "tokens": 1_000_000}),
    "openai, tokens": ("openai", {"requests": 6000, "tokens": 250_000}),
    "anthropic, output": ("anthropic", {"requests": 4000, "input": 1_000_000, "output": 80_000}),
}


ROUND_TRIP = 0.001
EPOCH = 1_795_000_000.0  # of the back end's clock


@define
class Process:
    """One process: its quota, and when it is frozen or the back end is unavailable to it."""

    quota: Quota
    name: str
    frozen: tuple[float, float] = (math.inf, math.inf)
    away: tuple[float, float] = (math.inf, math.inf)
    exchanges: int = 0
    lost_at: list[float] = field(factory=list)
    _arrives: float = math.inf
    _grant: LeaseGrant | None = None

    def __attrs_post_init__(self) -> None:
        self.quota.lease = LimitLease(self.name, lambda: None)


@define
class Sharing:
    """Makes the exchanges of all processes with one record."""

    processes: list[Process]
    record: SharedRecord = field(factory=SharedRecord)

    def __call__(self, now: float) -> float:
        return min((self._of(one, now) for one in self.processes), default=math.inf)

    def _of(self, one: Process, now: float) -> float:
        lease = one.quota.lease
        assert lease is not None
        if one.frozen[0] <= now < one.frozen[1]:
            return one.frozen[1]
        if one._grant is not None and now >= one._arrives:
            lease.adopt(one._grant, now)
            one.quota.follow(now)
            one._grant, one._arrives = None, math.inf
            return math.nextafter(now, math.inf)  # its clients look at once
        if one._grant is not None:
            return one._arrives
        due = lease.due(now)
        if due > now:
            return due
        asked = lease.ask(now, one.quota.facts(now))
        one.exchanges += 1
        if one.away[0] <= now < one.away[1]:
            if lease.lose(now):
                one.lost_at.append(now)
            return max(lease.due(now), now + 1.0)
        one._grant = exchange(self.record, asked, EPOCH + now + ROUND_TRIP / 2)
        one._arrives = now + ROUND_TRIP
        return one._arrives


class Run:
    """Some processes at one server."""

    def __init__(
        self, server: Server, count: int, *, told: int | None = None, latency: str = "50 ms"
    ) -> None:
        self.server = server
        self.quotas = [Quota() for _ in range(count)]
        for quota in self.quotas:
            quota.configure(told, None, 0.0)
            quota.approach()
        self.clients = [Client(quota, LATENCIES[latency], workers=16) for quota in self.quotas]
        self.processes = [Process(quota, f"process {n}") for n, quota in enumerate(self.quotas)]
        self.sharing = Sharing(self.processes)

    def fill(self, seconds: float) -> Run:
        fill(self.server, *self.clients, seconds=seconds, jitter=0.005, exchanges=self.sharing)
        return self

    def used(self, begin: float, end: float) -> float:
        return max(meter.used(begin, end) for meter in self.server.meters.values())

    @property
    def refused(self) -> float:
        calls = sum(client.counts.calls for client in self.clients)
        return sum(client.counts.refused for client in self.clients) / calls


@pytest.mark.parametrize(
    ("count", "latency"),
    sampled([(1, "50 ms"), (4, "50 ms"), (1, "400 ms"), (4, "400 ms"), (4, "around 2 s")], first=1),
)
def test_processes_use_a_configured_limit_together(count, latency):
    """600 per minute, of a server that reports nothing: 99 % is used, and nothing is refused."""
    run = Run(Server("gemini", {"requests": 600}), count, told=600, latency=latency).fill(90.0)
    assert run.used(40.0, 90.0) >= 0.99
    assert run.refused == 0.0
    answered = [client.counts.answered for client in run.clients]
    assert min(answered) >= 0.85 * max(answered)


@pytest.mark.full
@pytest.mark.parametrize("latency", sampled(LATENCIES, first=1))
@pytest.mark.parametrize("limits", sampled(LIMITS, first=2))
def test_processes_fill_a_limit_they_learn_together(limits, latency):
    """98 % is used, and at most 0.5 % refused. Output is charged when it is generated, so less is left
    than answers say, by what is in flight in all processes."""
    style, minute = LIMITS[limits]
    run = Run(Server(style, minute), 4, latency=latency).fill(120.0)
    assert run.used(30.0, 120.0) >= 0.98
    assert run.refused <= 0.005


@pytest.mark.full
def test_exchanges_are_few():
    held = Run(Server("gemini", {"requests": 600}), 4, told=600).fill(30.0)
    free = Run(Server("gemini", {"requests": 600_000}), 4, told=600_000).fill(30.0)
    assert max(process.exchanges for process in held.processes) <= 10 * 30
    assert max(process.exchanges for process in free.processes) <= 4 * 30


@pytest.mark.full
def test_a_process_with_little_to_do_holds_nothing_that_others_need():
    run = Run(Server("gemini", {"requests": 600}), 4, told=600)
    run.clients[0].workers = 1
    run.clients[0].latency = constant(1.0)
    run.fill(120.0)
    assert run.used(20.0, 120.0) >= 0.98
    assert run.clients[0].counts.answered >= 90


@pytest.mark.full
@pytest.mark.parametrize("event", ["killed", "frozen"])
def test_the_lease_of_a_dead_process_is_returned(event):
    """One of four is killed, or frozen for 20 s, at full speed: the others use the whole limit."""
    run = Run(Server("gemini", {"requests": 600}), 4, told=600)
    until = 90.0 if event == "frozen" else math.inf
    run.processes[0].frozen = (70.0, until)
    run.clients[0].end = 70.0
    run.fill(120.0)
    assert run.used(70.0, 70.0 + GONE_SECONDS) >= 0.95
    assert run.used(70.0 + GONE_SECONDS, 120.0) >= 0.99
    assert run.refused == 0.0


def test_a_cooldown_of_one_process_is_a_cooldown_of_all():
    run = Run(Server("gemini", {"requests": 600_000}), 2)
    for hundredth in range(401):
        run.sharing(hundredth / 100)
    first, other = run.quotas
    for _ in range(4):
        first.refused(first.take(4.0, 1.0), 4.0, 4.0, random.Random(1))
    pause = first.look(4.0, 1.0)
    assert pause > 7.0
    for hundredth in range(401, 652):  # an idle process is heard every five seconds
        run.sharing(hundredth / 100)
    assert other.look(6.51, 1.0) == pytest.approx(pause, abs=0.2)
    assert run.sharing.record.generation == 1


@pytest.mark.full
def test_a_rate_that_one_process_proves_is_spaced_by_all():
    """600 per minute, configured, of which only ten are honoured at once: 95 % used, 3 % refused."""
    server = Server("gemini", {"requests": 600}, sizes={"requests": 10})
    run = Run(server, 4, told=600).fill(120.0)
    assert run.used(20.0, 120.0) >= 0.95
    assert run.refused <= 0.03


class Silent(Server):
    """A server whose answers and refusals do not name the limit."""

    def report(self, now: float, *, refused: str | None) -> None:
        """Report nothing."""


@pytest.mark.full
@pytest.mark.parametrize("seed", sampled(range(6)))
def test_a_rate_that_was_measured_far_too_low_grows_for_all(seed):
    """At most 5 % of the first minute are refused beyond the 64 of first contact; at most 3 % after 5 s."""
    run = Run(Silent("gemini", {"requests": 600}), 4)
    for client in run.clients:
        client.latency = lambda rng: 0.05 * math.exp(rng.gauss(0.0, 0.3))
    fill(run.server, *run.clients, seconds=60.0, seed=seed, jitter=0.005, exchanges=run.sharing)
    refusals = [at for client in run.clients for at in client.counts.refusals]
    calls = sum(client.counts.calls for client in run.clients)
    assert run.used(20.0, 60.0) >= 0.98
    assert len(refusals) <= 64 + 0.05 * calls
    assert sum(at > 5.0 for at in refusals) <= 0.03 * calls


def test_processes_share_the_slow_start():
    run = Run(Silent("gemini", {"requests": 600}), 16, latency="400 ms").fill(0.002)
    sent = [client.counts.calls for client in run.clients]
    assert sent == [10, 5, 3, 2, 2] + [1] * 11


@pytest.mark.full
@pytest.mark.parametrize(
    ("idle", "seed"), sampled([(idle, seed) for seed in range(8) for idle in (0.0, 30.0)], keep=2)
)
def test_new_processes_keep_a_rate_that_others_found(idle, seed):
    """Processes that take over follow the discovered rate, and at most 4 % is refused. After a pause they
    discover it again, as it may be gone: a tenth is refused."""
    run, begin = Run(Silent("gemini", {"requests": 600}), 8), 45.0 + idle
    for client, process in zip(run.clients[:4], run.processes, strict=False):
        client.end, process.frozen = 45.0, (45.0, math.inf)
    for client, process in zip(run.clients[4:], run.processes[4:], strict=True):
        client.begin, process.frozen = begin, (0.0, begin)
    fill(run.server, *run.clients, seconds=begin + 90.0, seed=seed, jitter=0.005, exchanges=run.sharing)
    counts = [client.counts for client in run.clients[4:]]
    assert run.used(begin, begin + 90.0) >= 0.95
    most = 0.1 if idle else 0.04
    assert sum(one.refused for one in counts) <= most * sum(one.calls for one in counts)


@pytest.mark.full
@pytest.mark.parametrize("style", sampled(["openai", "gemini"]))
def test_a_limit_that_is_counted_each_second_is_spaced_by_all(style):
    """Ten per second: 98 % is used, and only the very first calls are refused."""
    server = Server(style, {"requests": 600})
    server.meters = {"requests": SecondMeter(600)}
    run = Run(server, 4, told=600).fill(95.0)
    assert run.used(20.0, 95.0) >= 0.98
    late = [at for client in run.clients for at in client.counts.refusals if at > 5.0]
    assert len(late) <= 1
    if style == "openai":
        assert run.refused <= 0.005


@pytest.mark.parametrize(("size", "latency"), sampled([(2, "50 ms"), (20, "50 ms"), (1200, "400 ms")]))
def test_one_process_fills_a_limit_that_only_refusals_name(size, latency):
    for seed in range(2):
        server = Server("gemini", {"requests": 1200}, sizes={"requests": size})
        run = Run(server, 1, latency=latency)
        run.clients[0].workers = 64
        fill(server, *run.clients, seconds=60.0, seed=seed, jitter=0.005, exchanges=run.sharing)
        assert run.used(20.0, 60.0) >= 0.98, f"seed={seed}"


@pytest.mark.full
@pytest.mark.parametrize("on_lost", sampled(["share", "stop", "local"], keep=1))
def test_a_back_end_that_is_unavailable_leaves_each_process_its_share(on_lost):
    """For 40 s: at most the whole limit, nothing, or as if it were not shared; then as before."""
    run = Run(Server("gemini", {"requests": 600}), 4, told=600)
    for process in run.processes:
        process.away = (70.0, 110.0)
        process.quota.lease = LimitLease(process.name, lambda: None, on_lost)
    run.fill(150.0)
    used = run.used(76.0, 110.0)
    if on_lost == "share":
        assert 0.9 <= used <= 1.0
        assert run.refused <= 0.001
    elif on_lost == "stop":
        assert used <= 0.01
    assert all(len(process.lost_at) == 1 for process in run.processes)
    if on_lost != "local":
        assert run.used(115.0, 150.0) >= 0.98


def test_an_urgent_call_of_one_process_goes_before_what_others_want():
    record = SharedRecord()
    costs = (1.0, 0.0, 0.0, 0.0)
    limit, rate, nothing = (10.0, 0.0, 0.0, 0.0), (1.0 / 6.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)
    facts = QuotaFacts(limit, rate, (NO_BOUND, NO_BOUND, NO_BOUND, NO_BOUND), nothing, 0.0, 0, 0.0, 0.0)
    leases = [LimitLease(f"process {n}", lambda: None) for n in range(3)]

    def exchanged(lease: LimitLease, now: float) -> bool:
        lease.adopt(exchange(record, lease.ask(now, facts), EPOCH + now), now)
        return lease.look(now, costs) <= now

    for lease in leases:
        exchanged(lease, 0.0)
    record.levels[0] = 0.0
    for lease in leases[:2]:
        lease.look(0.0, costs)
        assert not exchanged(lease, 1.0)
    leases[2].urgent = True
    leases[2].look(2.0, costs)
    assert not exchanged(leases[2], 2.0)
    for second in range(3, 10):  # each asks again every second, the urgent one last
        got = [exchanged(lease, second + n / 10) for n, lease in enumerate(leases)]
        if any(got):
            break
    assert got == [False, False, True]


def test_calls_waiting_for_the_first_exchange_all_leave_with_it():
    quota, costs = Quota(), (1.0, 0.0, 0.0, 0.0)
    quota.configure(6_000.0, None, 0.0)
    sharing = Sharing([Process(quota, "new")])
    now = sharing(0.0)
    sharing(now)
    lease = quota.lease
    assert lease is not None
    assert lease.look(now, costs) == math.inf
    lease.waiting = 16
    sharing(now)
    now += ROUND_TRIP
    sharing(now)
    gone = 0
    while lease.look(now, costs) <= now:
        lease.take(now, costs)
        gone += 1
    assert gone == 16


# -- quotas that do not refill -------------------------------------------------------------------------------

DAY = 86_400.0


def enqueued(
    record: SharedRecord, member: str, kept: float, at: float, *, wants: float = 0.0, limit: float = 10.0
) -> LeaseGrant:
    """Report what a store has enqueued at the provider, and ask for more."""
    asked = LeaseAsk(
        member,
        limits=MemberLimits(caps=first(limit)),
        kept=first(kept),
        least=first(wants),
        wanted=first(wants),
        kind=QuotaKind.ENQUEUED,
    )
    return exchange(record, asked, EPOCH + at)


def test_what_is_not_held_is_left_of_a_quota_without_refill():
    record = SharedRecord()
    assert enqueued(record, "one", 4.0, 0.0).left == first(6.0)
    assert enqueued(record, "other", 3.0, 1.0).left == first(3.0)
    assert enqueued(record, "one", 1.0, 2.0).left == first(6.0)
    assert enqueued(record, "one", 1.0, 3.0, limit=0.0).left == first(6.0)  # what was known before holds
    assert enqueued(record, "one", 1.0, 4.0, limit=5.0).left == first(1.0)


def test_enqueued_tokens_are_granted_once_others_return_them():
    record = SharedRecord()
    enqueued(record, "one", 9.0, 0.0)
    refused = enqueued(record, "other", 0.0, 1.0, wants=2.0)
    assert (refused.granted, refused.wait) == (first(0.0), 15.0)
    enqueued(record, "one", 8.0, 2.0)
    granted = enqueued(record, "other", 0.0, 3.0, wants=2.0)
    assert (granted.granted, granted.wait, granted.left) == (first(2.0), 0.0, first(0.0))


@pytest.mark.parametrize(("silent", "left"), [(3600.0, 6.0), (3601.0, 9.0)])
def test_what_a_silent_process_has_enqueued_counts_for_an_hour(silent, left):
    record = SharedRecord()
    enqueued(record, "other", 3.0, 0.0)
    assert enqueued(record, "one", 1.0, silent).left == first(left)


@pytest.mark.parametrize(
    ("held", "silent", "known"),
    [(2.0, 7 * DAY, True), (2.0, 7 * DAY + 1.0, False), (0.0, 60.0, True), (0.0, 61.0, False)],
)
def test_accounts_of_silent_clients_expire(held, silent, known):
    record = SharedRecord()
    for member, at, kept in (("other", 0.0, held), ("one", silent, 0.0)):
        asked = LeaseAsk(
            member,
            limits=MemberLimits(caps=first(8.0)),
            kept=first(kept),
            totals=Totals(drawn=kept, number=1),
            kind=QuotaKind.BUDGET,
        )
        exchange(record, asked, EPOCH + at)
    assert ("other" in record.accounts) is known
    assert record.accounts["one"].number == 1
