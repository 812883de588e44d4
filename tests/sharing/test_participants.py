"""What processes that share limits publish about themselves: their current state, and growing sums."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from observe.sample_events import submitted
from realtime.scenes import InTime, Scripted
from sharing.servers import KINDS, address_of

import smartbatch
from smartbatch import BatchingClient, Participant, RealtimeStatus
from smartbatch._clock import RealClock, VirtualClock
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.observe.participants import participant_of
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import BackEnd
from smartbatch.sharing.publication import Publication
from smartbatch.types import Answer, Usage

ClientOf = Callable[..., BatchingClient]


@pytest.fixture(params=KINDS)
def back_end(request, tmp_path):
    """A back end on a real server, by the server's clock."""
    made = open_back_end(address_of(request.param, request, tmp_path), lambda: 100.0)
    made.prepare()
    yield made
    made.close()


def told(**sums: float) -> str:
    return json.dumps({"version": 1, "sums": sums})


def risen(back_end: BackEnd, before: dict[str, float]) -> dict[str, float]:
    """The sums minus the earlier ones: other tests use the same Redis."""
    sums = back_end.published().sums
    return {name: value - before.get(name, 0.0) for name, value in sums.items() if value != before.get(name)}


@pytest.mark.full
def test_total_sums_add_up_those_of_each_process(back_end):
    before = back_end.published().sums
    back_end.publish("one", told(calls=3, cost=0.25), {})
    back_end.publish("other", told(calls=10), {})
    for _ in range(2):
        back_end.publish("one", told(calls=5, cost=0.25), {})
    assert risen(back_end, before) == {"calls": 15.0, "cost": 0.25}
    ages = {text: age for age, text in back_end.published().records}
    texts = [text for text in ages if json.loads(text) == json.loads(told(calls=5, cost=0.25))]
    assert len(texts) == 1
    assert 0.0 <= ages[texts[0]] <= 10.0


def test_sums_outlive_the_record_of_a_process(back_end, monkeypatch):
    before = back_end.published().sums
    back_end.publish("gone", told(rows=7), {})
    with monkeypatch.context() as later:
        later.setattr(f"{type(back_end).__module__}.RETENTION_SECONDS", -1.0)
        back_end.publish("other", told(rows=1), {})
        assert back_end.published().records == []
    assert risen(back_end, before) == {"rows": 8.0}
    back_end.publish("gone", told(rows=9), {"rows": 7.0})
    assert risen(back_end, before) == {"rows": 10.0}


def test_the_records_of_before_a_machine_was_started_again_are_gone(address):
    now = [90_000.0]
    made = open_back_end(address, lambda: now[0])
    made.prepare()
    made.publish("before", told(calls=3), {})
    now[0] = 20.0
    assert made.published().records == []
    made.publish("after", told(calls=1), {})
    assert [text for _, text in made.published().records] == [told(calls=1)]
    assert made.published().sums == {"calls": 4.0}
    made.close()


def test_a_collected_client_leaves_its_counts():
    publication = Publication("one", VirtualClock())
    metrics = BatchMetrics()
    publication.add(metrics, lambda hide: RealtimeStatus(waiting=1))
    metrics(submitted())
    first = publication.record({}, str)
    assert (first.realtime.waiting, first.ended) == (1, False)
    del metrics
    assert publication.due() < math.inf
    last = publication.record({}, str)
    assert (last.sums, last.realtime, last.ended) == (first.sums, RealtimeStatus(), True)
    assert publication.due() == math.inf


def looked(address: str, clock: VirtualClock) -> tuple[list[Participant], dict[str, float]]:
    """What is published now, once the threads have published it."""
    clock.sleep(0.001)
    back_end = open_back_end(address, clock.now)
    back_end.prepare()
    found = back_end.published()
    back_end.close()
    read = [participant_of(text, age) for age, text in found.records]
    return [one for one in read if one is not None], found.sums


def test_a_process_publishes_its_state_every_few_seconds(clock, client_of, address):
    provider = Scripted(clock, lambda prompt, attempt: "yes", latency=4.0)
    client = client_of(provider, parallelism=2, max_rpm=600, shared=address)
    for number in range(9):
        client.submit(str(number), priority="high" if number < 3 else "low")
    clock.sleep(5.5)
    [one], sums = looked(address, clock)
    now = one.realtime
    assert (now.waiting, now.in_flight, now.workers) == (5, 2, 2)
    assert now.pending == {"high": 1, "low": 6}
    assert now.waits == {"slot": 5}
    assert now.oldest_wait == pytest.approx(5.0, abs=0.5)
    assert now.oldest_waits == {"low": now.oldest_wait}
    [lane] = now.lanes
    assert (lane.requests_used, now.sent) == (4, 4)
    assert sum(minute.calls for minute in now.minutes) == 4
    assert (lane.model, lane.waits_for, lane.answered) == ("scripted:default", "slot", 2)
    assert lane.requests_per_minute == pytest.approx(597.0, abs=4.0)
    assert sums["requests_submitted:low"] == 6
    assert sums["requests_ended:succeeded"] == 2
    assert one.is_alive


def test_it_says_which_gate_holds_requests_up(clock, client_of, address):
    down = ProviderError("no", kind=ErrorKind.SERVER_ERROR, status=503)
    limited = Scripted(clock, lambda prompt, attempt: "yes", latency=0.01, name="limited")
    broken = Scripted(clock, lambda prompt, attempt: down, latency=0.01, name="broken")
    clients = [
        client_of(limited, parallelism=2, max_rpm=6, shared=address),
        client_of(broken, parallelism=2, shared=address, retries=0, breaker_pause=60, breaker_max_pause=60),
    ]
    for client in clients:
        for number in range(20):
            client.submit(str(number))
    clock.sleep(5.5)
    [one], sums = looked(address, clock)
    causes = {lane.model: lane.waits_for for lane in one.realtime.lanes}
    assert causes == {"limited:default": "limit", "broken:default": "breaker"}
    assert set(one.realtime.waits) == {"limit", "breaker"}
    assert one.errors["server_error"] <= 6.0
    assert sums["call_failures:server_error"] >= 1


def test_it_says_how_many_requests_wait_for_the_money_of_their_list(clock, client_of, address):
    provider = Scripted(clock, lambda *_: Answer("yes", usage=Usage(1, 1)), latency=20.0, priced=True)
    prices = {"scripted:default": {"input": 0.0, "output": 1_000_000.0}}
    client = client_of(provider, parallelism=2, prices=prices, shared=address)
    questions = (f"question {number}" for number in range(10))
    listed = InTime(clock, lambda: client.generate(questions, max_tokens=3, budget="5 USD"))
    clock.sleep(1.0)
    client.submit("other")
    clock.sleep(4.5)
    [one], _ = looked(address, clock)
    assert (one.realtime.waiting, one.realtime.in_flight, one.realtime.waits) == (9, 2, {"budget": 9})
    [lane] = one.realtime.lanes
    assert (lane.waiting, lane.waits_for) == (9, "budget")
    assert listed.result().succeeded == 3


def test_sums_survive_the_end_of_clients_and_resets(clock, client_of, address):
    for count in (3, 4):
        provider = Scripted(clock, lambda prompt, attempt: "yes", latency=0.01)
        client = client_of(provider, shared=address)
        assert client.generate(map(str, range(count))).failed == 0
        client.stop()
    client.start()
    clock.sleep(6.0)
    for prompt in "abcde":
        future = client.submit(prompt)
        client.metrics.reset()
        assert future.result(10).ok
    client.stop()
    [one], sums = looked(address, clock)
    assert one.ended
    assert not one.is_alive
    assert one.sums["requests_ended:succeeded"] == sums["requests_ended:succeeded"] == 12
    assert sums["requests_submitted:normal"] == sums["batches"] == 12
    assert sums["response_seconds:sum"] == pytest.approx(0.12, abs=0.05)


def test_an_unavailable_back_end_gets_everything_later(clock, client_of, address, provider, unreadable):
    client = client_of(provider, shared=address)
    assert client.generate(map(str, range(5))).failed == 0
    clock.sleep(6.0)
    unreadable.unlink()
    clock.sleep(12.0)
    _, sums = looked(address, clock)
    assert sums["requests_ended:succeeded"] == 5


def test_a_process_that_only_has_jobs_is_seen(address, tmp_path):
    settings = {"shared": address, "store": str(tmp_path / "jobs.db"), "batch_poll_interval": 0.05}
    client = BatchingClient("sim:small?latency=0&batch_seconds=0.05", **settings)
    client.submit_batch(["one", "two", "three"]).wait()
    client.stop()
    found = smartbatch.participants(address)
    assert (found.sums["jobs_finished"], found.sums["requests_ended:succeeded"]) == (1, 3)


@pytest.fixture
def asked(address):
    """What a real client of this process published."""
    with BatchingClient("sim:small?latency=0", shared=address, system="a secret") as client:
        assert client.generate(["a secret question", "another"]).failed == 0
    return smartbatch.participants(address)


def test_any_process_can_read_what_all_published(asked, tmp_path):
    [one] = asked.processes
    assert asked.place == str(tmp_path / "limits.db")
    assert asked.sums["requests_ended:succeeded"] == 2
    assert asked.sums["shared_operations:publish"] == one.sums["shared_operations:publish"] >= 1
    assert (one.library, one.ended, asked.living, asked.lost) == (smartbatch.__version__, True, (), ())


def test_a_record_of_a_later_version_is_counted_and_not_read(address):
    made = open_back_end(address, RealClock.now)
    made.prepare()
    made.publish("later", json.dumps({"version": 99, "sums": {"calls": 2.0}, "of": "another form"}), {})
    made.close()
    found = smartbatch.participants(address)
    assert (found.processes, found.unreadable, found.sums) == ((), 1, {"calls": 2.0})


def test_damaged_records_are_counted_and_hide_no_other(asked, address, tmp_path):
    deep = "[" * 100_000
    damaged = [deep, '{"version": 3', "[]", '{"version": "x"}', '{"version": 3, "realtime": []}', ""]
    with closing(sqlite3.connect(tmp_path / "limits.db")) as connection, connection:
        for number, record in enumerate(damaged):
            row = "INSERT INTO participants SELECT ?, seen, ? FROM participants LIMIT 1"
            connection.execute(row, (f"damaged {number}", record))
    found = smartbatch.participants(address)
    assert (len(found.processes), found.unreadable, found.sums) == (1, len(damaged), asked.sums)


def test_a_file_that_is_being_written_is_read(asked, address, tmp_path):
    with closing(sqlite3.connect(tmp_path / "limits.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert smartbatch.participants(address).sums == asked.sums


def test_no_prompt_is_published(asked, tmp_path):
    assert asked.processes
    with closing(sqlite3.connect(tmp_path / "limits.db")) as reading:
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()  # no file goes while this is open
        written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"requests_submitted:normal" in written
    assert b"secret" not in written


def test_a_process_that_shares_nothing_publishes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with BatchingClient("sim:small?latency=0", shared="off") as client:
        assert client.generate(["one"]).failed == 0
    assert list(tmp_path.rglob("limits*")) == []
    with pytest.raises(ConfigError, match="share nothing publish nothing"):
        smartbatch.participants("off")
