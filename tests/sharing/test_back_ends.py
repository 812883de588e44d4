"""Every back end stores the whole record: random exchanges give the same as the sharing rule in memory."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from urllib.parse import quote
from uuid import uuid4

import pytest
from attrs import asdict
from sharing.servers import KINDS, address_of, timed

from smartbatch._clock import RealClock
from smartbatch.core.limits.shared_limit import (
    Findings,
    LeaseAsk,
    MemberLimits,
    QuotaKind,
    SharedRecord,
    Totals,
    exchange,
)
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import BackEndUnavailable, hidden
from tests.core.walks.shared import drawn
from tests.levels import sampled


class Time:
    now = 95_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time():
    return Time()


@pytest.fixture(params=KINDS)
def back_end(request, tmp_path, time, monkeypatch):
    """A back end on a real server, with a controlled clock."""
    made = timed(address_of(request.param, request, tmp_path), time, monkeypatch)
    made.prepare()
    yield made
    made.close()


@pytest.mark.full
@pytest.mark.parametrize("seed", sampled(range(3)))
def test_random_exchanges_give_what_the_rules_say(back_end, time, seed):
    rng = random.Random(seed)
    salt = back_end.prepare()
    for kind in QuotaKind:
        key, record = hidden(salt, f"{seed} {kind} {uuid4()}"), SharedRecord()
        for step in range(60):
            time.now += rng.choice([0.0, 0.001, 0.1, 1.0, 3.0, 20.0, 90.0, -0.5, -5.0])
            asked = drawn(rng, [0, record.generation, record.generation], kind, step)
            expected = asdict(exchange(record, asked, time.now))
            got = asdict(back_end.exchange(key, asked))
            for name, value in expected.items():
                assert got[name] == value, f"{name} at step {step} of a {kind.value}, seed {seed}: {asked}"


def test_an_outage_is_known_as_long_as_a_process_is_there(back_end, time):
    key = hidden(back_end.prepare(), f"outage {uuid4()}")
    for end in ("leaves", "is killed"):
        back_end.exchange(key, LeaseAsk(f"one {end}"))
        known = back_end.exchange(key, LeaseAsk(f"other {end}")).generation
        back_end.exchange(key, LeaseAsk(f"one {end}", generation=known, findings=Findings(outage=1)))
        assert back_end.exchange(key, LeaseAsk(f"one {end}", leaving=1)).outage == 1
        assert back_end.exchange(key, LeaseAsk(f"third {end}", leaving=1)).outage == 1
        if end == "leaves":
            back_end.exchange(key, LeaseAsk(f"other {end}", leaving=1))
        else:
            time.now += 16.0
        assert back_end.exchange(key, LeaseAsk(f"next {end}", leaving=1)).outage == 0


def test_a_late_or_repeated_exchange_of_money_is_refused(back_end):
    key = hidden(back_end.prepare(), f"budget {uuid4()}")
    limit, half = [1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]
    asks = partial(LeaseAsk, "one", limits=MemberLimits(caps=limit), kind=QuotaKind.BUDGET)
    assert back_end.exchange(key, asks(totals=Totals(number=2), least=half, wanted=half)).left[0] == 0.5
    for number in (1, 2):
        with pytest.raises(BackEndUnavailable, match=r"cannot be used"):
            back_end.exchange(key, asks(totals=Totals(number=number), least=half, wanted=half))
    assert back_end.exchange(key, asks(totals=Totals(number=3, drawn=0.5), kept=half)).left[0] == 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_find_the_same_salt_and_the_same_record(kind, request, tmp_path):
    address = address_of(kind, request, tmp_path)
    one, other = (open_back_end(address, lambda: 100.0) for _ in range(2))
    assert one.prepare() == other.prepare()
    key = hidden(one.prepare(), str(uuid4()))
    limit = {"limits": MemberLimits([100.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])}
    wants = {"least": [1.0, 0.0, 0.0, 0.0], "wanted": [100.0, 0.0, 0.0, 0.0]}
    first = one.exchange(key, LeaseAsk("one", **limit, **wants))
    second = other.exchange(key, LeaseAsk("other", **limit, **wants))
    assert (first.members, second.members) == (1, 2)
    assert first.granted[0] == 25.0
    assert second.granted[0] == 12.0
    assert second.left[0] == pytest.approx(63.0, abs=2.0)
    one.close()
    other.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_change_is_lost_where_many_exchange_at_once(kind, request, tmp_path):
    """Six clients take a dollar from a common budget 20 times each."""
    address, key = address_of(kind, request, tmp_path), str(uuid4())
    limit, one = [1000.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]
    with closing(open_back_end(address, RealClock.now)) as first:
        first.prepare()

    def take(member: str) -> float:
        with closing(open_back_end(address, RealClock.now)) as back_end:
            back_end.prepare()
            for number in range(20):
                ask = LeaseAsk(
                    member,
                    limits=MemberLimits(caps=limit),
                    kind=QuotaKind.BUDGET,
                    totals=Totals(number=number + 1, drawn=number),
                    least=one,
                    wanted=one,
                )
                grant = back_end.exchange(key, ask)
                assert grant.granted[0] == 1.0
        return grant.left[0]

    with ThreadPoolExecutor(6) as threads:
        assert min(threads.map(take, "abcdef")) == 1000.0 - 6 * 20


@pytest.mark.full
def test_a_schema_that_was_made_for_a_user_is_all_that_user_needs(postgres_address):
    psycopg = pytest.importorskip("psycopg")
    parts = psycopg.conninfo.conninfo_to_dict(postgres_address)
    with psycopg.connect(postgres_address, autocommit=True) as session:
        session.execute("CREATE ROLE clerk LOGIN PASSWORD 'x'")
        session.execute("CREATE SCHEMA of_clerk AUTHORIZATION clerk")
    place = f"{quote(str(parts['host']), safe='')}:{parts.get('port', 5432)}/{parts['dbname']}"
    back_end = open_back_end(f"postgresql://clerk:x@{place}?schema=of_clerk", lambda: 0.0)
    assert back_end.prepare() == back_end.prepare()
    back_end.close()
