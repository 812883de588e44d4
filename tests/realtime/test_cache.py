"""The response cache saves repeated calls, and a damaged file never gives a wrong answer (A17)."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import time
from array import array
from contextlib import closing
from pathlib import Path

import pytest
from attrs import frozen
from frameworks.run_script import run_script
from jobs.remote import Remote
from scenes import PATIENCE, InTime, Scripted, blocked, eventually, submit_all

from smartbatch import BatchingClient, ConfigError, Route
from smartbatch._clock import VirtualClock
from smartbatch.errors import AllRequestsFailed, AnswerUnread, ErrorKind, ProviderError, SmartbatchError
from smartbatch.events import CacheUnavailable, Event, RequestFinished
from smartbatch.providers import MockProvider
from smartbatch.realtime.cache import WRITES_PER_TRIM, ResponseCache
from smartbatch.types import Answer

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "answers.db")


def opened(path, *, wall=lambda: 1000.0, **limits):
    return ResponseCache(path, **{"ttl": 60.0, "max_bytes": 10**6, "wall": wall, **limits})


def same_account(**settings):
    provider = MockProvider(**settings)
    provider.scope = "mock:one account"
    return provider


def test_a_request_that_was_answered_in_an_earlier_run_is_not_asked_again(path, client_of):
    first, second = same_account(), same_account()
    paid = client_of(first, cache=path).submit("a question").result(30)
    other = client_of(second, cache=path)
    kept = other.submit("a question", context="mine").result(30)
    assert (kept.text, kept.route, kept.cost, kept.attempts) == (paid.text, Route.CACHED, 0.0, 0)
    assert kept.context == "mine"
    other.stop()
    figures = other.metrics.snapshot()
    assert (figures.submitted, figures.succeeded) == (1, 1)
    assert (len(first.calls), len(second.calls)) == (1, 0)


def test_an_equal_request_that_waited_for_room_is_not_paid_for_again(path, clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, cache=path, parallelism=1, queue_capacity=100)
    with clock.held():
        client.submit("in flight")
        provider.wait_for(1)
        submit_all(client, [f"waiting {i}" for i in range(100)])
        late = InTime(clock, lambda: client.submit("a question"))
        eventually(lambda: blocked(client) == 1)
        paid = client.submit("a question", priority="high")
    assert paid.result(PATIENCE).route is Route.INDIVIDUAL
    kept = late.result().result(PATIENCE)
    assert (kept.text, kept.route, kept.cost, kept.attempts) == ("re: a question", Route.CACHED, 0.0, 0)
    assert provider.prompts.count("a question") == 1


def test_another_account_has_answers_of_its_own(path, client_of):
    first, second = MockProvider(), MockProvider()
    client_of(first, cache=path).submit("a question").result(30)
    client_of(second, cache=path).submit("a question").result(30)
    assert len(second.calls) == 1


@pytest.mark.parametrize(
    "change", [{"system": "Be brief."}, {"temperature": 0.5}, {"isolation_key": "tenant"}]
)
def test_what_reaches_the_wire_or_keeps_tenants_apart_is_part_of_the_key(change, path, client_of):
    provider = MockProvider()
    client = client_of(provider, cache=path)
    client.submit("a question").result(30)
    assert client.submit("a question", **change).result(30).route is Route.INDIVIDUAL
    assert len(provider.calls) == 2


def test_a_request_may_keep_out_of_it(path, client_of):
    provider = MockProvider()
    client = client_of(provider, cache=path)
    for _ in range(2):
        client.submit("a question", deduplicate=False).result(30)
    assert client.submit("a question").result(30).route is Route.INDIVIDUAL


def test_only_whole_answers_are_kept(path):
    cache = opened(path)
    for answer in (
        Answer("cut", finish_reason="length"),
        Answer("no", finish_reason="refusal"),
        Answer(value=1),
    ):
        assert not cache.put(b"key", answer)
    assert cache.get(b"key") is None


def test_a_vector_comes_back_exactly(path):
    cache = opened(path)
    vector = array("f", [0.1, -1e-30, 3.5])
    cache.put(b"key", Answer(embedding=vector))
    found = cache.get(b"key")
    assert found is not None
    assert found.embedding == vector


def test_an_equal_schema_of_another_class_uses_the_cached_answer(path, client_of):
    kinds = [frozen(type("City", (), {"__annotations__": {"name": str}})) for _ in range(2)]
    first, second = same_account(answers=['{"name": "Lima"}']), same_account()
    client_of(first, cache=path).submit("Where?", schema=kinds[0]).result(30)
    kept = client_of(second, cache=path).submit("Where?", schema=kinds[1]).result(30)
    assert (kept.parsed, kept.route) == (kinds[1]("Lima"), Route.CACHED)


def test_an_answer_counts_for_its_time_and_not_longer(path):
    clock = VirtualClock(wall=1000.0)
    cache = opened(path, wall=clock.wall)
    cache.put(b"key", Answer("kept"))
    clock.sleep(59.0)
    assert cache.get(b"key") == Answer("kept")
    clock.sleep(1.0)
    assert cache.get(b"key") is None
    assert opened(path, wall=lambda: 0.0).get(b"key") is None


@pytest.mark.parametrize("ahead", [-HOUR, 10 * DAY], ids=["back", "ahead"])
def test_a_clock_that_is_set_has_nothing_paid_again(ahead, path, clock, client_of):
    provider = Scripted(clock)
    client = client_of(provider, cache=path)
    assert client.submit("a question").result(PATIENCE).ok
    clock.set_wall(ahead)
    assert client.submit("a question").result(PATIENCE).route is Route.CACHED
    assert len(provider.starts) == 1


def test_a_log_of_another_user_is_not_taken_for_the_caches(path, monkeypatch):
    opened(path)
    made = os.lstat

    def lstat(name):
        planted = name == f"{path}-wal"
        found = made(path if planted else name)
        return os.stat_result((*found[:4], found.st_uid + planted, *found[5:]))

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(ConfigError, match=r"answers.db-wal belongs to another user"):
        opened(path)


@pytest.mark.parametrize("ahead", [50.0, 10 * DAY], ids=["a little", "days"])
def test_answers_dated_in_the_future_are_trimmed_first(ahead, path):
    early = opened(path, wall=lambda: 1000.0 + ahead, max_bytes=20_000)
    for number in range(WRITES_PER_TRIM):
        early.put(b"ahead %d" % number, Answer("x" * 150))
    cache = opened(path, wall=lambda: 1000.0, max_bytes=20_000)
    for number in range(WRITES_PER_TRIM + 1):
        cache.put(b"%d" % number, Answer("x" * 50))
    assert cache.get(b"0") == cache.get(b"%d" % WRITES_PER_TRIM) == Answer("x" * 50)
    with closing(sqlite3.connect(path)) as file:
        kept = file.execute("SELECT count(*) FROM answers WHERE created > 1000").fetchone()[0]
    assert kept < (WRITES_PER_TRIM if ahead < DAY else 1)


def test_the_oldest_answers_go_when_the_size_is_reached(path):
    now = [1000.0]
    cache = opened(path, wall=lambda: now[0], max_bytes=20_000)
    for number in range(2 * WRITES_PER_TRIM + 1):
        now[0] += 0.01
        cache.put(b"%d" % number, Answer("x" * 500))
    assert cache.get(b"0") is None
    assert cache.get(b"%d" % (2 * WRITES_PER_TRIM)) is not None
    total = sqlite3.connect(path).execute("SELECT sum(size) FROM answers").fetchone()[0]
    assert total <= 20_000


def test_the_size_holds_for_runs_of_a_few_requests_each(path):
    now = [1000.0]

    def kept(run, **limits):
        cache = opened(path, wall=lambda: now[0], **limits)
        now[0] += 1.0
        for number in range(10):
            cache.put(b"%d-%d" % (run, number), Answer("x" * 500))
        return [key for (key,) in sqlite3.connect(path).execute("SELECT key FROM answers ORDER BY created")]

    filled = [kept(run, max_bytes=10_000) for run in range(10)]
    assert max(map(len, filled)) < 30
    assert kept(10, ttl=0.5) == [b"10-%d" % number for number in range(10)]


FORKS_OF_FEW_WRITES = """
import sqlite3, time
from smartbatch.realtime.cache import ResponseCache
from smartbatch.types import Answer

cache = ResponseCache("answers.db", ttl=60.0, max_bytes=10_000, wall=time.time)
cache.put(b"parent", Answer("kept"))
for child in range(10):
    if os.fork() == 0:
        for number in range(10):
            assert cache.put(b"%d-%d" % (child, number), Answer("x" * 500))
        os._exit(0)
    assert os.wait()[1] == 0
print(sqlite3.connect("answers.db").execute("SELECT count(*) < 30 FROM answers").fetchone())
"""


@pytest.mark.full
def test_the_size_holds_for_children_that_write_a_few_answers_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run_script(FORKS_OF_FEW_WRITES)
    assert (ended.err, ended.out.strip()) == ("", "(1,)")


@pytest.mark.parametrize("damage", ["digest", "body", "not JSON", "not an answer"])
def test_a_damaged_entry_is_a_miss_and_told_once(damage, path):
    events = list[Event]()
    cache = opened(path, publish_event=events.append)
    for key in (b"key", b"other"):
        cache.put(key, Answer("kept"))
    connection = sqlite3.connect(path)
    if damage in ("digest", "body"):
        connection.execute(f"UPDATE answers SET {damage} = x'00' || substr({damage}, 2)")
    else:
        body = b"{" if damage == "not JSON" else b"[]"
        for key in (b"key", b"other"):
            row = (body, hashlib.sha256(key + body).digest(), key)
            connection.execute("UPDATE answers SET body = ?, digest = ? WHERE key = ?", row)
    connection.commit()
    connection.close()
    assert (cache.get(b"key"), cache.get(b"other")) == (None, None)
    (told,) = events
    assert isinstance(told, CacheUnavailable)
    assert "an entry cannot be read" in told.reason
    assert "kept" not in told.reason


def broken(*_):
    raise ImportError("half made")


class PassesOn:
    shareable = True

    def __call__(self, spec, proceed):
        return proceed(spec)


@pytest.mark.parametrize("middleware", [[], [PassesOn()]], ids=["plain", "middleware"])
@pytest.mark.parametrize("place", ["entry", "schema"])
def test_an_internal_error_in_the_cache_sends_nothing(place, middleware, path, client_of, monkeypatch):
    first, second = same_account(answers=['{"name": "Lima"}']), same_account()
    asked = {"schema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    client_of(first, cache=path).submit("Where?", **asked).result(30)
    client = client_of(second, cache=path, middleware=middleware)
    with monkeypatch.context() as patch:
        if place == "entry":
            patch.setattr("smartbatch.realtime.cache.Answer", broken)
        else:
            patch.setattr("smartbatch.core.preparation.structured.recover_json", broken)
        error = client.submit("Where?", **asked).exception(30)
        assert isinstance(error, SmartbatchError)
        assert "smartbatch itself failed" in str(error)
        assert isinstance(error, AnswerUnread) or (middleware and place == "entry")
        with pytest.raises(AllRequestsFailed):
            client.generate(["Where?"], **asked)
    assert client.submit("Where?", **asked).result(30).parsed == {"name": "Lima"}
    assert second.calls == []


def test_an_answer_that_smartbatch_failed_to_read_is_kept(path, client_of, monkeypatch):
    provider = same_account(answers=['{"name": "Lima"}'])
    client = client_of(provider, cache=path)
    asked = {"schema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    with monkeypatch.context() as patch:
        patch.setattr("smartbatch.core.preparation.structured.recover_json", broken)
        assert isinstance(client.submit("Where?", **asked).exception(30), AnswerUnread)
    assert client.submit("Where?", **asked).result(30).parsed == {"name": "Lima"}
    assert len(provider.calls) == 1


def test_an_entry_moved_to_another_key_is_a_miss(path):
    cache = opened(path)
    cache.put(b"key", Answer("kept"))
    connection = sqlite3.connect(path)
    connection.execute("UPDATE answers SET key = ?", (b"other",))
    connection.commit()
    connection.close()
    assert cache.get(b"other") is None


@pytest.mark.parametrize("content", [b"not a database, and long enough to be read as one" * 40, None])
def test_a_file_that_is_no_cache_is_refused_and_left_alone(content, path):
    if content is None:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE somebody (x)")
        connection.close()
    else:
        Path(path).write_bytes(content)
    before = Path(path).read_bytes()
    client = BatchingClient("sim:demo", cache=path)
    with pytest.raises(ConfigError, match="cache"):
        client.submit("before anything is sent")
    assert Path(path).read_bytes() == before


def test_a_folder_that_is_not_there_is_told_before_anything_is_sent(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        BatchingClient("sim:demo", cache=str(tmp_path / "nowhere" / "answers.db")).submit("prompt")


def test_only_the_owner_may_read_the_file_whatever_the_umask_says(path):
    old = os.umask(0)
    try:
        opened(path).put(b"key", Answer("kept"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_hook_that_fails_on_a_kept_answer_fails_its_request_only(path, client_of):
    def hook(result):
        if result.text == "re: bad" and result.route is Route.CACHED:
            raise ValueError("no")
        return result

    ended = []

    def heard(event):
        if isinstance(event, RequestFinished) and event.route is Route.CACHED:
            ended.append((event.ok, event.error))

    provider = same_account(answers=lambda request: f"re: {request.prompt}")
    client = client_of(provider, cache=path, post_process=hook, observers=[heard])
    prompts = ["good", "bad", "better"]
    assert [result.ok for result in client.generate(prompts)] == [True] * 3
    again = client.generate(prompts)
    assert [result.ok for result in again] == [True, False, True]
    assert ended == [(True, None), (False, "unknown"), (True, None)]
    with pytest.raises(SmartbatchError, match="post_process raised ValueError"):
        client.submit("bad").result(30)


def test_two_own_functions_of_one_name_do_not_get_each_others_answers(path, client_of):
    for said in ("one", "other"):
        result = client_of(lambda request, attempt, said=said: said, cache=path).submit("q").result(30)
        assert (result.text, result.route) == (said, Route.INDIVIDUAL)


def refused(_):
    raise ProviderError("no such key", kind=ErrorKind.AUTH_ERROR, status=401)


@pytest.mark.parametrize("route", ["submit", "hybrid"])
def test_a_fallback_answer_is_cached_for_the_fallback_model(route, path, tmp_path, clock, client_of):
    spare = "sim:spare?latency=0"
    settings = {"cache": path, "on_breaker_open": "fallback", "fallback_model": spare}
    if route == "hybrid":
        down = Remote(clock, scope="mock:one account", name="mock", reply=refused)
        client = client_of(down, store=str(tmp_path / "jobs.db"), **settings)
        results = client.generate([f"q{n}" for n in range(20)], strategy="hybrid")
        assert {result.model for result in results if result.route is not Route.BATCH} == {"sim:spare"}
    else:
        client = client_of(same_account(answers=refused), **settings)
        assert client.submit("q0").result(30).model == "sim:spare"
    client.stop()
    later = (
        client_of(same_account(answers=lambda _: "of the first model"), cache=path).submit("q0").result(30)
    )
    assert (later.text, later.model, later.route) == ("of the first model", "mock:default", Route.INDIVIDUAL)
    of_the_other = client_of(spare, cache=path).submit("q0").result(30)
    assert of_the_other.route is Route.CACHED


FORKS = """
import threading, time
from smartbatch.realtime.cache import ResponseCache
from smartbatch.types import Answer

cache = ResponseCache("answers.db", ttl=60.0, max_bytes=10**6, wall=time.time)
ended = threading.Event()

def work(name):
    while not ended.is_set():
        cache.put(name, Answer("kept"))
        cache.get(name)

threads = [threading.Thread(target=work, args=(name,)) for name in (b"a", b"b", b"c")]
for thread in threads:
    thread.start()
codes = set()
for n in range(30):
    child = os.fork()
    if child == 0:
        for _ in range(5):  # a write waits 5 s at most; three threads of the parent write without a pause
            if cache.put(b"child", Answer("kept")) and cache.get(b"child"):
                os._exit(0)
        os._exit(1)
    until = time.monotonic() + 30
    while not (gone := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.001)
    if not gone[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
        codes.add("hung")
        break
    codes.add(os.waitstatus_to_exitcode(gone[1]))
ended.set()
for thread in threads:
    thread.join()
print(codes)
"""


@pytest.mark.full
def test_children_forked_while_it_is_in_use_can_use_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run_script(FORKS)
    assert ended.err == ""
    assert ended.lines == ["{0}"]


@pytest.mark.full
def test_a_cache_that_cannot_be_written_is_left_alone_and_told_once(path, client_of, clock):
    events = list[CacheUnavailable]()
    client = client_of(MockProvider(), cache=path, observers=[of_the_cache(events)])
    client.submit("a first question").result(30)
    locking = sqlite3.connect(path, isolation_level=None)
    locking.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    assert all(client.submit(f"question {n}").result(30).ok for n in range(20))
    assert time.monotonic() - began < 10.0  # twenty waits would take 40 s
    assert [event.path for event in events] == [path]
    assert "locked" in events[0].reason
    locking.close()
    clock.sleep(31.0)
    client.submit("asked again").result(30)
    assert client.submit("asked again").result(30).route is Route.CACHED


def of_the_cache(events):
    return lambda event: events.append(event) if isinstance(event, CacheUnavailable) else None
