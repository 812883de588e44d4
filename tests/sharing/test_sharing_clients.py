"""A client stays within its share of a limit: other processes are members of the same record."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from inside import inside
from realtime.scenes import PATIENCE, InTime, Scripted, eventually, submit_all, unavailable
from sharing.servers import KINDS, address_of

from smartbatch import BatchingClient
from smartbatch._clock import RealClock, VirtualClock
from smartbatch._database import Address
from smartbatch.core.limits.shared_limit import Findings, LeaseAsk, LeaseGrant, MemberLimits
from smartbatch.errors import BudgetExceeded, ConfigError, ProviderUnavailable
from smartbatch.events import BreakerChanged, Event, SharedLimitsLost, SharedLimitsRestored
from smartbatch.observe.participants import participant_of
from smartbatch.prices import Price
from smartbatch.realtime.shared_quota import forget_all
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import Incompatible, hidden
from smartbatch.sharing.limit_leases import record_with
from smartbatch.sharing.sqlite_back_end import SqliteBackEnd
from smartbatch.types import Answer, Usage
from tests.levels import sampled

ClientOf, Patch = Callable[..., BatchingClient], pytest.MonkeyPatch


class Neighbour:
    """Another process of the same account, which limits requests to 600 per minute."""

    def __init__(self, address: str, provider: Scripted, clock: VirtualClock) -> None:
        self._back_end = open_back_end(address, clock.now)
        self._key = hidden(self._back_end.prepare(), f"{provider.scope}\ndefault")

    def exchange(self, **ask: Any) -> LeaseGrant:
        limits = MemberLimits([594.0, 0.0, 0.0, 0.0], [9.95, 0.0, 0.0, 0.0])
        return self._back_end.exchange(self._key, LeaseAsk("neighbour", limits=limits, **ask))

    def lease(self, requests: float) -> float:
        asked = [requests, 0.0, 0.0, 0.0]
        return self.exchange(least=asked, wanted=asked).granted[0]

    def tells(self, outage: int) -> None:
        self.exchange(generation=self.exchange().generation, findings=Findings(outage=outage))

    def counts(self) -> int:
        members = self.exchange().members
        self._back_end.close()
        return members


@pytest.fixture
def neighbour(address, provider, clock):
    return Neighbour(address, provider, clock)


def lost(seen: list[Event]) -> list[SharedLimitsLost]:
    return [event for event in seen if isinstance(event, SharedLimitsLost)]


def test_what_others_leased_is_not_there(clock, client_of, address, provider, neighbour):
    """600 per minute, of which another process took 590: 40 requests take 3.6 s instead of none."""
    assert neighbour.lease(590.0) == 590.0
    client = client_of(provider, parallelism=8, max_rpm=600, shared=address)
    assert client.generate(map(str, range(40))).failed == 0
    assert 3.0 <= clock.now() <= 4.5


def test_a_client_that_ends_gives_back_what_it_leased(client_of, address, provider, neighbour):
    client = client_of(provider, parallelism=1, max_rpm=600, shared=address)
    assert client.generate(["one"]).failed == 0
    client.stop()
    assert neighbour.exchange().left[0] == pytest.approx(593.0, abs=1.0)


def test_a_client_shares_while_the_last_one_still_leaves(clock, client_of, address, provider, monkeypatch):
    exchange = SqliteBackEnd.exchange

    def slow(self: SqliteBackEnd, key: str, ask: LeaseAsk) -> LeaseGrant:
        clock.sleep(2.0 if ask.leaving else 0.0)
        return exchange(self, key, ask)

    monkeypatch.setattr(SqliteBackEnd, "exchange", slow)
    first, second = (client_of(provider, max_rpm=600, shared=address) for _ in range(2))
    assert first.generate(["one"]).failed == 0
    first.stop()
    assert second.generate(["two"]).failed == 0
    clock.sleep(10.0)
    assert second.generate(["three"]).failed == 0
    assert Neighbour(address, provider, clock).counts() == 2


def test_limits_are_shared_again_after_a_slow_leave(clock, client_of, address, provider, monkeypatch):
    exchange = SqliteBackEnd.exchange

    def slow(self: SqliteBackEnd, key: str, ask: LeaseAsk) -> LeaseGrant:
        grant = exchange(self, key, ask)
        clock.sleep(2.0 if ask.leaving and self.place.endswith("limits.db") else 0.0)
        return grant

    monkeypatch.setattr(SqliteBackEnd, "exchange", slow)
    for place in (address, f"{address}.other", address):
        client = client_of(provider, max_rpm=600, shared=place)
        assert client.submit("anything").result(PATIENCE).text == "yes"
        client.stop()


def test_an_unusable_back_end_is_reported_once(clock, client_of, address, provider, unreadable):
    seen: list[Event] = []
    client = client_of(provider, max_rpm=600, shared=address, observers=[seen.append])
    assert client.generate(map(str, range(20))).failed == 0
    [event] = lost(seen)
    assert event.place == str(unreadable)
    assert "cannot be used" in event.reason
    assert "1 not shared: their store is unavailable" in client.status_summary()
    unreadable.unlink()
    clock.sleep(30.0)
    assert client.generate(map(str, range(20))).failed == 0
    client.stop()
    assert any(isinstance(event, SharedLimitsRestored) for event in seen)


def lose_all(kind: str, used: bool, request: pytest.FixtureRequest, address: str, folder: Path) -> None:
    """Make a back end lose its data: the file is deleted, the server restarted or, if it is not ``used``,
    emptied, the schema dropped."""
    if kind == "sqlite":
        for path in folder.glob("limits.db*"):
            path.unlink(missing_ok=True)  # SQLite removes its logs as the last client leaves
    elif kind == "redis" and not used:
        redis.Redis.from_url(address).flushdb()
    elif kind == "redis":
        server = request.getfixturevalue("redis_server")
        server.kill()
        server.start()
    else:
        place = Address.of(address, "shared")
        with psycopg.connect(**place.parameters, autocommit=True) as session:
            session.execute(f"DROP SCHEMA {place.schema} CASCADE".encode())


@pytest.mark.parametrize(("stopped", "kind"), sampled(itertools.product([False, True], KINDS), keep=3))
def test_a_back_end_that_lost_its_data_is_used_as_before(
    kind, stopped, clock, client_of, provider, request, tmp_path
):
    address = address_of(kind, request, tmp_path)
    client = client_of(provider, max_rpm=600, shared=address)
    assert client.generate(map(str, range(5))).failed == 0
    if stopped:
        client.stop()
    lose_all(kind, not stopped, request, address, tmp_path)
    clock.sleep(10.0)
    if stopped:
        client = client_of(provider, max_rpm=600, shared=address)
    assert client.generate(map(str, range(5, 10))).failed == 0
    assert Neighbour(address, provider, clock).counts() == 2


def test_a_redis_that_is_emptied_while_it_is_used_is_shared_as_before(clock, client_of, provider, request):
    address = address_of("redis", request, Path())
    client = client_of(provider, max_rpm=600, shared=address)
    assert client.generate(map(str, range(5))).failed == 0
    redis.Redis.from_url(address).flushdb()
    later = Neighbour(address, provider, clock)
    clock.sleep(10.0)
    assert client.generate(map(str, range(5, 10))).failed == 0
    assert later.counts() == 2


@pytest.mark.parametrize("kind", KINDS[1:])
def test_limits_that_were_never_met_are_shared(clock, client_of, kind, request, tmp_path):
    seen: list[Event] = []
    provider = Scripted(clock, latency=2.0, priced=True)
    address = address_of(kind, request, tmp_path)
    client = client_of(provider, parallelism=100, shared=address, observers=[seen.append])
    assert client.generate(map(str, range(190))).failed == 0
    assert lost(seen) == []


@pytest.mark.full
def test_a_configured_limit_ends_with_its_processes(clock, client_of, address):
    provider = Scripted(clock, latency=0.01, scope="an account")

    def took(**settings: Any) -> float:
        """The seconds that 90 rows take in a new process."""
        client = client_of(provider, parallelism=16, shared=address, **settings)
        assert client.generate(map(str, range(90))).failed == 0
        client.stop()
        forget_all()
        return provider.starts[-1].at - provider.starts[-90].at

    assert took(max_rpm=60) >= 25.0
    assert took() <= 1.0
    assert took(max_rpm=60) >= 80.0


# -- places that are not shared ------------------------------------------------------------------------------


@pytest.fixture
def of_a_later_version(address, clock, monkeypatch):
    """The address of a file that a process with version 99 of the records has prepared."""
    with monkeypatch.context() as later:
        for module in ("back_end", "sqlite_back_end"):
            later.setattr(f"smartbatch.sharing.{module}.RECORD_VERSION", 99)
        open_back_end(address, clock.now).prepare()
    return address


def test_a_file_of_another_version_is_not_shared(client_of, provider, of_a_later_version):
    seen: list[Event] = []
    client = client_of(provider, shared=of_a_later_version, observers=[seen.append])
    assert client.generate(["one"]).failed == 0
    client.stop()
    [event] = lost(seen)
    assert "stored in version 99" in event.reason
    assert "install the same smartbatch" in event.reason


def test_with_stop_a_file_of_another_version_fails_requests(client_of, provider, of_a_later_version):
    client = client_of(provider, shared=of_a_later_version, shared_lost="stop")
    error = client.submit("one").exception()
    assert isinstance(error, ConfigError)
    assert "stored in version 99" in str(error)
    assert "shared_lost = stop" in str(error)
    assert provider.starts == []


def test_money_of_another_version_is_not_waited_for(clock, client_of, of_a_later_version):
    client = spender(clock, client_of, of_a_later_version, 1.0)
    error = client.submit("one").exception(120.0)
    assert isinstance(error, BudgetExceeded)
    assert "stored in version 99" in str(error)
    assert clock.now() <= 1.0


def test_a_file_is_one_machines_at_a_time(clock, address, provider, neighbour, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with pytest.raises(Incompatible, match="and this is elsewhere: machines cannot share"):
        Neighbour(address, provider, clock)
    monkeypatch.setattr("smartbatch.sharing.sqlite_back_end.HOST_SECONDS", 0.0)
    assert Neighbour(address, provider, clock).lease(1.0) == 1.0


def test_a_machine_whose_clock_was_ahead_has_left_after_ten_minutes(clock, address, provider, monkeypatch):
    wall = RealClock.wall()
    monkeypatch.setattr(RealClock, "wall", lambda: wall + 86_400.0)
    first = Neighbour(address, provider, clock)
    monkeypatch.setattr(RealClock, "wall", lambda: wall)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "elsewhere")
        assert Neighbour(address, provider, clock).lease(1.0) == 1.0
    monkeypatch.setattr(RealClock, "wall", lambda: wall + 601.0)
    assert first.lease(1.0) == 1.0
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with pytest.raises(Incompatible, match="machines cannot share"):
        Neighbour(address, provider, clock)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("mysql://host/db", "sqlite:///FILE, redis://HOST"),
        ("postgresql://user:secret@[host/db", "shared: the address of the PostgreSQL server"),
        ("redis://user:secret@host:notaport", "shared: the address of the Redis server"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"budget": 1.0, "budget_scope": "shared:team"}], ids=["", "budget"])
def test_an_address_that_cannot_be_read_is_refused_without_its_password(
    client_of, provider, address, said, more
):
    with pytest.raises(ConfigError) as told:
        client_of(provider, shared=address, **more).submit("one")
    assert said in str(told.value)
    assert "secret" not in str(told.value)


# -- outages -------------------------------------------------------------------------------------------------


def test_an_outage_that_another_process_found_opens_the_breaker(
    clock, client_of, address, provider, neighbour
):
    assert neighbour.lease(1.0) == 1.0
    seen: list[Event] = []
    settings = {"observers": [seen.append], "breaker_pause": 60.0, "breaker_max_pause": 60.0}
    client = client_of(provider, shared=address, **settings)
    assert client.generate(["one"]).failed == 0
    neighbour.tells(outage=1)
    clock.sleep(6.0)
    future = client.submit("two")
    clock.sleep(1.0)
    assert [event.reason for event in seen if isinstance(event, BreakerChanged)] == [
        "another process found it failing"
    ]
    assert len(provider.starts) == 1
    neighbour.tells(outage=-1)
    clock.sleep(6.0)
    assert future.result(1.0).text == "yes"


@pytest.mark.parametrize(
    "shared",
    [{"max_rpm": 600}, {"budget": 5.0, "budget_scope": "shared:team", "max_tokens": 100}],
    ids=["a limit", "a budget"],
)
@pytest.mark.parametrize("instead", [{}, {"fallback_model": "sim:spare"}], ids=["fail", "fallback"])
def test_an_outage_ends_for_a_rarely_used_client(clock, client_of, address, instead, shared):
    provider = Scripted(clock, lambda *_: unavailable() if clock.now() < 20.0 else "yes", priced=True)
    instead = {"on_breaker_open": "fallback" if instead else "fail", **instead}
    prices = {"scripted:default": Price(input=0.0, output=100.0)}
    client = client_of(provider, shared=address, prices=prices, **instead, **shared)
    with clock.held():
        futures = submit_all(client, map(str, range(20)))
    for number in range(8):
        clock.sleep(5.0)
        futures.append(client.submit(f"later {number}"))
    assert futures[-1].result(PATIENCE).text == "yes"


@pytest.mark.parametrize("instead", ["fail", "fallback"])
@pytest.mark.parametrize("lasts", [False, True], ids=["is over", "lasts"])
def test_a_reported_outage_is_probed_before_requests_fail(clock, client_of, address, instead, lasts):
    provider = Scripted(clock, lambda *_: unavailable() if lasts else "yes", latency=0.01)
    Neighbour(address, provider, clock).tells(outage=1)
    more = {"fallback_model": "sim:spare"} if instead == "fallback" else {}
    client = client_of(provider, on_breaker_open=instead, shared=address, **more)
    with clock.held():
        futures = submit_all(client, map(str, range(20)))
    errors = [future.exception(PATIENCE) for future in futures]
    if lasts and instead == "fail":
        assert {type(error) for error in errors} == {ProviderUnavailable}
    else:
        assert errors == [None] * 20
    if instead == "fallback":
        models = {future.result(0).model for future in futures}
        assert models == ({"sim:spare"} if lasts else {"scripted:default"})
    assert len(provider.starts) <= 4 if lasts else len(provider.starts) == 20


# -- budgets -------------------------------------------------------------------------------------------------


def spender(clock: VirtualClock, client_of: ClientOf, address: str, budget: float) -> BatchingClient:
    """A client whose calls reserve and cost one cent each."""
    answer = Answer("yes", usage=Usage(0, 100))
    provider = Scripted(clock, lambda prompt, attempt: answer, latency=0.01, priced=True)
    prices = {"scripted:default": Price(input=0.0, output=100.0)}
    shared = {"budget": budget, "budget_scope": "shared:team", "shared": address}
    return client_of(provider, prices=prices, parallelism=4, max_tokens=100, **shared)


def test_clients_spend_one_budget_together_and_never_more(clock, client_of, address):
    """A dollar for three clients of 60 calls of a cent each: at least 95 are sent, and never 101."""
    clients = [spender(clock, client_of, address, 1.0) for _ in range(3)]
    futures = [client.submit(str(n)) for n in range(60) for client in clients]
    failures = [future.exception(60.0) for future in futures]
    assert 0.95 <= sum(client.spent for client in clients) <= 1.0
    assert {type(error) for error in failures if error is not None} == {BudgetExceeded}


def test_money_that_is_not_spent_goes_back(clock, client_of, address):
    first, other = (spender(clock, client_of, address, 0.5) for _ in range(2))
    assert first.generate(map(str, range(10))).failed == 0
    first.stop()
    assert other.generate(map(str, range(60))).succeeded == 40
    assert (first.spent, other.spent) == pytest.approx((0.1, 0.4))


def test_money_is_leased_for_what_waits_at_a_stop(clock, client_of, address):
    client = spender(clock, client_of, address, 1.0)
    with clock.held():
        futures = [client.submit(str(number)) for number in range(3)]
        stopping = InTime(clock, client.stop)
        eventually(lambda: client.counts.submitted == 3 and inside(client).realtime.state == "stopped")
    stopping.result()
    assert [future.exception(0) for future in futures] == [None] * 3


def test_a_client_is_published_until_its_last_run_ends(clock, client_of, address):
    provider = Scripted(clock, latency=lambda prompt: 100.0 if prompt == "old" else 1.0)
    client = client_of(provider, parallelism=1, shared=address)
    with clock.held():
        client.submit("old")
        provider.wait_for(1)
        stopping = InTime(clock, client.stop)
        eventually(lambda: inside(client).realtime.state == "stopped")
        client.start()
        client.submit("new")
    client.stop()
    told = record_with(client.metrics)
    assert told is not None
    assert (told.is_alive, told.realtime.in_flight) == (True, 1)
    stopping.result()
    told = record_with(client.metrics)  # the last one may be on its way still
    assert told is None or told.ended


def test_a_budget_shared_within_a_process_is_published_once(clock, client_of, address):
    clients = [spender(clock, client_of, address, 1.0) for _ in range(2)]
    for client in clients:
        assert client.generate(map(str, range(10))).failed == 0
    for seconds in (11.0, 0.001):  # what was not spent has gone back, and both have heard of it
        clock.sleep(seconds)
    assert [client.status.budget for client in clients] == pytest.approx([0.9, 0.9])
    made = open_back_end(address, clock.now)
    made.prepare()
    [(_, text)] = made.published().records
    made.close()
    told = participant_of(text, 0.0)
    assert told is not None
    assert (told.realtime.spent, told.realtime.budget) == pytest.approx((0.2, 1.0))


def test_no_money_is_leased_from_a_place_that_is_unavailable(clock, client_of, address, unreadable):
    client = spender(clock, client_of, address, 1.0)
    assert isinstance(client.submit("one").exception(120.0), BudgetExceeded)
    assert client.spent == 0.0
    assert 30.0 <= clock.now() <= 60.0


def test_a_budget_without_a_leasing_thread_starts_no_client(clock, client_of, address, monkeypatch):
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "smartbatch-limits":
            raise RuntimeError("can't start new thread")
        start(thread)

    client = spender(clock, client_of, address, 1.0)
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            client.submit("one")
    assert client.submit("one").result(30.0).ok
