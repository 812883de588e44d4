"""Submission of jobs by a client: accepted and refused requests, and overlapping stops."""

from __future__ import annotations

import threading
import weakref
from functools import partial

import pytest
from forked import exit_code_of_child
from inside import inside
from jobs.remote import LONG, Remote
from realtime.scenes import InTime, eventually

from smartbatch.errors import (
    ClientClosed,
    ConfigError,
    InvalidRequest,
    JobConflict,
    RequestTimeout,
    StoreError,
    WrongProcess,
)
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.types import Answer, Embedding, Kind, Priority, Request, Route, Usage, evolve

PATIENCE = 30.0  # real seconds


def slow_upload(client, remote):
    api = remote.api
    api.slow = 20.0
    job = client.submit_batch(["a", "b"])
    eventually(lambda: "upload" in api.calls)
    return job


def test_of_two_stops_neither_closes_the_store_while_the_other_needs_it(client, remote, clock):
    with clock.held():
        job = slow_upload(client, remote)
        stops = [InTime(clock, client.stop) for _ in range(2)]
    for stop in stops:
        stop.result()
    assert client.job(job.id).is_unowned()


def test_a_stop_without_time_leaves_the_store_to_an_earlier_stop(client, remote, clock):
    with clock.held():
        job = slow_upload(client, remote)
        first = InTime(clock, client.stop)
        eventually(lambda: not inside(client).jobs.engine.is_working)
        client.start()
        store = inside(client).jobs.engine.store
        client.submit_batch(["c", "d"])

        def stop_and_look():
            client.stop(0)
            return inside(client).jobs.engine.is_working, store.jobs.get(job.id) is not None

        second = InTime(clock, stop_and_look)  # it looks in time, too: 20 s later the first closes the store
    assert second.result() == (False, True)
    first.result()
    assert client.job(job.id).is_unowned()


def test_a_stop_ends_what_started_while_another_one_closes_the_store(client, clock, monkeypatch):
    """The store hangs during the first stop, and the second has no time to wait for it."""
    client.submit_batch(["a"])
    store = inside(client).jobs.engine.store
    closing, answers = threading.Event(), clock.monitor()
    close = store.close

    def hang():
        closing.set()
        with answers:
            answers.wait(20.0)
        close()

    monkeypatch.setattr(store, "close", hang)
    with clock.held():
        first = InTime(clock, client.stop)
        assert closing.wait(PATIENCE)
        client.start()
        job = client.submit_batch(["b"])
        second = InTime(clock, partial(client.stop, 0))
    second.result()
    assert not inside(client).jobs.engine.is_working
    first.result()
    assert client.start().job(job.id).wait(LONG).state == "done"


def test_a_start_during_a_stop_keeps_the_store_open_until_the_next_stop(client, remote, clock):
    with clock.held():
        first = slow_upload(client, remote)
        stop = InTime(clock, client.stop)
        eventually(lambda: not inside(client).jobs.engine.is_working)
        store = inside(client.start()).jobs.engine.store
        second = client.submit_batch(["c", "d"])
    stop.result()
    assert [job.wait(3_600.0).state for job in (first, second)] == ["done", "done"]
    client.stop()
    with pytest.raises(StoreError, match="closed"):
        store.jobs.get(first.id)


def test_a_stop_leaves_the_store_to_a_later_one_that_awaits_answers(client_of, clock, store):
    remote = Remote(clock, latency=60.0)
    client = client_of(remote, store=store)
    with clock.held():
        slow_upload(client, remote)
        first = InTime(clock, client.stop)
        eventually(lambda: not inside(client).jobs.engine.is_working)
        client.start()
        job = client.submit_batch(["c", "d"], strategy="individual", batch_fallback="individual")
        eventually(lambda: len(remote.asked) == 2)
        second = InTime(clock, client.stop)
    first.result()
    second.result()
    assert client.job(job.id).status().completed == 2


def test_a_job_goes_by_batch_and_its_answers_come_in_order(client, remote):
    requests = [Request(f"p{n}", id=f"row-{n}", context={"n": n}) for n in range(30)]
    job = client.submit_batch(requests, metadata={"team": "blue"})
    results = list(job.results(timeout=LONG))
    assert [result.text for result in results] == [f"by batch: p{n}" for n in range(30)]
    assert [result.request_id for result in results] == [f"row-{n}" for n in range(30)]
    assert [result.context for result in results] == [{"n": n} for n in range(30)]
    assert {result.route for result in results} == {Route.BATCH}
    assert job.metadata == {"team": "blue"}
    assert remote.asked == []
    assert len(remote.api.made) == 1


@pytest.mark.full
def test_nothing_is_sent_before_the_job_is_on_disk(client, remote):
    def rows():
        yield from (f"p{n}" for n in range(12_000))
        yield "   "

    with pytest.raises(InvalidRequest, match=r"row 12000 .*prompt is blank"):
        client.submit_batch(rows())
    assert client.jobs() == []
    assert remote.api.calls == []


@pytest.mark.parametrize(
    "submit",
    [
        lambda client, rows: client.submit_batch(rows),
        lambda client, rows: client.submit_batch(rows, deadline="6h", strategy="auto"),
        lambda client, rows: client.submit_and_wait(rows),
    ],
)
def test_a_time_out_is_refused_as_a_job_goes_on_for_as_long_as_it_takes(submit, client_of, remote, store):
    client = client_of(remote, store=store, request_timeout=60.0)
    with pytest.raises(
        InvalidRequest, match=r"row 1 .*timeout is counted from submission.*deadline="
    ) as raised:
        submit(client, ["a", Request("b", timeout=60.0), "c"])
    assert (raised.value.field, raised.value.row) == ("timeout", 1)
    assert client.jobs() == []
    assert remote.asked == []


def test_a_run_in_real_time_keeps_to_the_time_outs_of_its_requests(client_of, clock, store):
    client = client_of(Remote(clock, latency=50.0), store=store, parallelism=1)
    plan = client.forecast(["a"], strategy="individual")
    job = client.submit_run(["a", Request("b", timeout=5.0)], plan)
    assert [result.ok for result in job.results(timeout=LONG)] == [True, False]
    assert isinstance(list(job.results())[1].error, RequestTimeout)


def test_a_priority_that_a_batch_cannot_keep_is_told_once(client, caplog):
    plan = client.forecast(["a"], strategy="individual")
    client.submit_run([Request("a", priority=Priority.URGENT)], plan).wait(LONG)
    assert caplog.messages == []
    for _ in range(2):
        client.submit_batch([Request(f"p{n}", priority=Priority.HIGH) for n in range(5)]).wait(LONG)
    assert [message.partition(",")[0] for message in caplog.messages if "left out" in message] == [
        "parameter priority is left out: a batch has no order"
    ]


def test_the_same_key_is_the_same_job(client_of, remote, store):
    first = client_of(remote, store=store)
    prompts = [f"p{n}" for n in range(20)]
    job = first.submit_batch(prompts, key="nightly")
    again = first.submit_batch(iter(prompts), key="nightly")
    second = client_of(remote, store=store, seed_of_rng=2).submit_batch(prompts, key="nightly")
    assert job.id == again.id == second.id
    job.wait(LONG)
    assert len(remote.api.made) == 1


@pytest.mark.parametrize(
    "change", [{"requests": ["other"]}, {"temperature": 0.5}, {"requests": ["p0", "p2", "p1"]}]
)
def test_a_key_with_other_requests_is_a_conflict(change, client):
    job = client.submit_batch(["p0", "p1", "p2"], key="nightly")
    requests = change.pop("requests", ["p0", "p1", "p2"])
    with pytest.raises(JobConflict, match=job.id):
        client.submit_batch(requests, key="nightly", **change)


def test_seeded_rng_on_a_used_store_draw_another_id(client_of, remote, store):
    one = client_of(remote, store=store).submit_batch(["a"])
    other = client_of(remote, store=store).submit_batch(["b"])
    assert one.id != other.id


def test_an_empty_job_is_done(client):
    job = client.submit_batch([])
    assert job.wait(0.0).done
    assert list(job.results()) == []


def test_hooks_run_when_a_job_is_submitted(client_of, remote, store):
    client = client_of(remote, store=store, preprocess=[lambda request: evolve(request, prompt="changed")])
    job = client.submit_batch(["a"])
    assert [result.text for result in job.results(timeout=LONG)] == ["by batch: changed"]


def test_results_are_post_processed_when_they_are_read(client_of, store, clock):
    remote = Remote(clock)
    client = client_of(
        remote, store=store, post_process=lambda result: evolve(result, text=f"<{result.text}>")
    )
    by_batch = client.submit_batch(["a"])
    alone = client.submit_and_wait(["b"])
    assert [result.text for result in by_batch.results(timeout=LONG)] == ["<by batch: a>"]
    assert alone.texts == ["<re: b>"]


@pytest.mark.parametrize("durable", [False, True], ids=["of a job", "durable"])
def test_a_fork_during_post_processing_copies_no_future(durable, client_of, store, clock):
    futures = []
    codes = []

    def forking(result):
        codes.append(exit_code_of_child(lambda: isinstance(futures[0].exception(0), WrongProcess)))
        return result

    client = client_of(Remote(clock), store=store, post_process=forking)
    with clock.held():
        job = [] if durable else client.submit_batch(["p"]).futures()
        futures += job or [client.submit("p", durable=True)]
    assert futures[0].result(LONG).ok
    assert codes == [0]


@pytest.mark.full
def test_a_job_of_any_length_is_read_row_by_row(client):
    alive = most = 0

    def rows():
        nonlocal alive, most
        for number in range(12_000):
            request = Request(f"prompt {number}")
            alive += 1
            weakref.finalize(request, forgotten)
            yield request
            most = max(most, alive)

    def forgotten():
        nonlocal alive
        alive -= 1

    assert client.submit_batch(rows()).total == 12_000
    assert most < 10


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (["fine", Request(call=lambda request, attempt: "x")], r"row 1 .*call is a callable"),
        (["fine", Request("x", context=object())], r"row 1 .*context of a job must be JSON"),
        (["fine", Request("x", embedding=Embedding())], r"row 1 .*texts or embeddings"),
        (["fine", "local"], r"row 1 .*answered by a preprocess hook"),
        ("fine", "list of prompts"),
    ],
)
def test_what_a_job_cannot_take_is_refused_by_row(rows, text, client_of, remote, store):
    def local(request):
        return Answer("known") if request.prompt == "local" else None

    client = client_of(remote, store=store, preprocess=[local])
    with pytest.raises(InvalidRequest, match=text):
        client.submit_batch(rows)
    assert client.jobs() == []


@pytest.mark.parametrize("key", ["", "  ", "x" * 513, "job-1", "a\nb", 7])
def test_a_key_is_a_short_printable_name(key, client):
    with pytest.raises(InvalidRequest, match="key must"):
        client.submit_batch(["a"], key=key)


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": "x" * 513}, {f"{n}": "" for n in range(65)}])
def test_labels_are_texts(metadata, client):
    with pytest.raises(InvalidRequest, match="metadata"):
        client.submit_batch(["a"], metadata=metadata)


def test_a_provider_without_batches_says_so(client_of, clock, store):
    remote = Remote(clock, batches=False)
    client = client_of(remote, store=store)
    with pytest.raises(ConfigError, match=r"remote has no Batch API.*batch_fallback='individual'"):
        client.submit_batch(["a"])
    job = client.submit_batch(["a", "b"], batch_fallback="individual")
    assert [result.text for result in job.results(timeout=LONG)] == ["re: a", "re: b"]
    assert {result.route for result in job.results()} == {Route.INDIVIDUAL}


def test_vectors_need_a_batch_api_that_has_them(client, remote):
    with pytest.raises(ConfigError, match="no Batch API for embeddings"):
        client.submit_batch(["a"], embedding=Embedding())
    assert remote.api.abilities.kinds == {Kind.GENERATE}


def test_batches_can_be_switched_off(client_of, remote, store):
    client = client_of(remote, store=store, batch_enabled=False, batch_threshold=2)
    with pytest.raises(ConfigError, match="switched off: set batch_enabled"):
        client.submit_batch(["a"])
    assert client.submit_and_wait(["a", "b", "c"]).texts == ["re: a", "re: b", "re: c"]
    assert remote.api.calls == []


def test_a_stopped_client_takes_no_job(client):
    client.stop()
    with pytest.raises(ClientClosed):
        client.submit_batch(["a"])
    client.start()
    assert client.submit_batch(["a"]).wait(LONG).completed == 1


@pytest.mark.catches("StoreError")
def test_a_store_that_cannot_be_used_is_named_before_anything_is_sent(client_of, remote, tmp_path):
    place = tmp_path / "no-database"
    place.write_bytes(b"something else" * 1000)
    client = client_of(remote, store=str(place))
    with pytest.raises(StoreError, match="no-database"):
        client.submit_batch(["a"])
    assert remote.api.calls == []
    assert client.submit("a").result(PATIENCE).text == "re: a"


def test_a_reported_cost_counts_as_the_real_time_cost_without_a_price(client, remote, monkeypatch):
    read_line = remote.api.read_line
    told = Answer("ran", Usage(), cost=0.25)
    monkeypatch.setattr(remote.api, "read_line", lambda *line: evolve(read_line(*line), answer=told))
    job = client.submit_batch(["a", "b"])
    assert job.wait(LONG).completed == 2
    row = inside(client).jobs.engine.store.jobs.get(job.id)
    assert (row.cost, row.realtime_cost) == (0.5, 0.5)


def test_a_client_stopped_before_its_first_job_takes_none_until_started(client):
    client.stop()
    with pytest.raises(ClientClosed):
        client.submit_batch(["a"])
    client.start()
    (result,) = client.submit_batch(["a"]).results(timeout=LONG)
    assert result.ok


def test_without_a_job_no_store_is_opened(client_of, remote):
    client = client_of(remote, store=None)
    assert client.submit("a").result(LONG).ok
    assert (client.uses_store, inside(client)._jobs) == (False, None)
    client.stop()
    assert client.spent == 0.0


def test_a_signal_handler_that_needs_jobs_while_they_are_made_makes_them(client, monkeypatch):
    """The handler runs on the thread that makes them."""
    made = []
    really = JobsEngine.__init__

    def interrupted(self, *args, **options):
        really(self, *args, **options)
        made.append(self)
        if len(made) == 1:
            inside(client).jobs  # noqa: B018  # as a handler would

    monkeypatch.setattr(JobsEngine, "__init__", interrupted)
    (result,) = client.submit_batch(["a"]).results(timeout=LONG)
    assert result.ok
    assert len(made) == 2
    assert inside(client).jobs.engine is made[1]


def test_what_fails_to_be_made_is_made_by_the_next_who_needs_it(client, monkeypatch):
    def fails(*_, **__):
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(JobsEngine, "__init__", fails)
        with pytest.raises(OSError, match="no space"):
            client.submit_batch(["a"])
    (result,) = client.submit_batch(["a"]).results(timeout=LONG)
    assert result.ok
