"""Jobs at the front door: what is accepted, what is refused before anything is sent, and what comes back."""

from __future__ import annotations

import gc
import importlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hosts.run_script import run_script
from inside import inside
from jobs.remote import Remote

import smartbatch
from smartbatch import Interrupted, shortcuts
from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import (
    AllRequestsFailed,
    ClientClosed,
    ConfigError,
    ErrorKind,
    InvalidRequest,
    JobConflict,
    JobNotFound,
    JobTimeout,
    ProviderError,
    RequestTimeout,
    StoreError,
)
from smartbatch.events import Event, JobAccepted, JobFinished, JobProgress, RouteScored
from smartbatch.jobs.job import Job
from smartbatch.jobs.watcher import ChangeNotifier
from smartbatch.providers.batch_api import RemoteBatch
from smartbatch.routing import lists
from smartbatch.types import Answer, Embedding, Kind, Priority, Request, Route, evolve
from tests.levels import sampled

ClientOf = Callable[..., BatchingClient]
PATIENCE = 30.0
LONG = 1e6
"""Virtual seconds that no test needs."""


@pytest.fixture
def client(client_of: ClientOf, remote: Remote, store: str) -> BatchingClient:
    return client_of(remote, store=store)


def test_the_steps_of_a_job_leave_the_garbage_collector_alone(
    client: BatchingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would go through what a preloading server froze, and move all young objects to the oldest."""
    list(client.submit_batch(["a", "b"]).results(timeout=LONG))  # imports what steps need
    pauses: list[None] = []
    monkeypatch.setattr(gc, "disable", lambda: pauses.append(None))
    list(client.submit_batch(["c", "d"]).results(timeout=LONG))
    assert pauses == []


# -- what is accepted ----------------------------------------------------------------------------------------


def test_a_job_goes_by_batch_and_its_answers_come_in_order(client: BatchingClient, remote: Remote) -> None:
    """Order, ids and context are those of the requests; the route says how they went."""
    requests = [Request(f"p{n}", id=f"row-{n}", context={"n": n}) for n in range(30)]
    job = client.submit_batch(requests, metadata={"team": "blue"})
    results = list(job.results(timeout=LONG))
    assert [result.text for result in results] == [f"by batch: p{n}" for n in range(30)]
    assert [result.request_id for result in results] == [f"row-{n}" for n in range(30)]
    assert [result.context for result in results] == [{"n": n} for n in range(30)]
    assert {result.route for result in results} == {Route.BATCH}
    assert job.metadata == {"team": "blue"}
    assert remote.asked == []
    assert remote.api is not None
    assert len(remote.api.made) == 1


def test_nothing_is_sent_before_the_job_is_on_disk(client: BatchingClient, remote: Remote) -> None:
    """A row that is refused after thousands of good ones leaves no job and no call behind."""

    def rows() -> Iterator[Any]:
        yield from (f"p{n}" for n in range(12_000))
        yield "   "

    with pytest.raises(InvalidRequest, match=r"row 12000 .*prompt is blank"):
        client.submit_batch(rows())
    assert client.jobs() == []
    assert remote.api is not None
    assert remote.api.calls == []


@pytest.mark.parametrize(
    "submit",
    [
        lambda client, rows: client.submit_batch(rows),
        lambda client, rows: client.submit_batch(rows, deadline="6h", strategy="auto"),
        lambda client, rows: client.submit_and_wait(rows),
    ],
)
def test_a_time_out_is_refused_as_a_job_goes_on_for_as_long_as_it_takes(
    submit: Callable[..., Any], client_of: ClientOf, remote: Remote, store: str
) -> None:
    """It was left out in silence. The time-out that a client sets for all of its calls is no reason."""
    client = client_of(remote, store=store, request_timeout=60.0)
    with pytest.raises(InvalidRequest, match=r"row 1 .*timeout counts the seconds .* deadline=") as raised:
        submit(client, ["a", Request("b", timeout=60.0), "c"])
    assert (raised.value.field, raised.value.row) == ("timeout", 1)
    assert client.jobs() == []
    assert remote.asked == []


def test_a_run_in_real_time_keeps_to_the_time_outs_of_its_requests(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """The second waits while the first is asked, and longer than it may."""
    client = client_of(Remote(clock, latency=50.0), store=store, parallelism=1)
    plan = client.forecast(["a"], strategy="individual")
    job = client.submit_run(["a", Request("b", timeout=5.0)], plan)
    assert [result.ok for result in job.results(timeout=LONG)] == [True, False]
    assert isinstance(list(job.results())[1].error, RequestTimeout)


def test_a_priority_that_a_batch_cannot_keep_is_told_once(
    client: BatchingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests that go in real time from the beginning have theirs."""
    plan = client.forecast(["a"], strategy="individual")
    client.submit_run([Request("a", priority=Priority.URGENT)], plan).wait(LONG)
    assert caplog.messages == []
    for _ in range(2):
        client.submit_batch([Request(f"p{n}", priority=Priority.HIGH) for n in range(5)]).wait(LONG)
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "parameter priority is left out: a batch has no order"
    ]


def test_the_same_key_is_the_same_job(client_of: ClientOf, remote: Remote, store: str) -> None:
    """Submitted twice, also by another client, it is sent once; an iterator will do as well as a list."""
    first = client_of(remote, store=store)
    prompts = [f"p{n}" for n in range(20)]
    job = first.submit_batch(prompts, key="nightly")
    again = first.submit_batch(iter(prompts), key="nightly")
    second = client_of(remote, store=store, seed_of_rng=2).submit_batch(prompts, key="nightly")
    assert job.id == again.id == second.id
    job.wait(LONG)
    assert remote.api is not None
    assert len(remote.api.made) == 1


@pytest.mark.parametrize(
    "change", [{"requests": ["other"]}, {"temperature": 0.5}, {"requests": ["p0", "p2", "p1"]}]
)
def test_a_key_with_other_requests_is_a_conflict(change: dict[str, Any], client: BatchingClient) -> None:
    """Other rows, another order or other parameters are another job, and the error names the one that is."""
    job = client.submit_batch(["p0", "p1", "p2"], key="nightly")
    requests = change.pop("requests", ["p0", "p1", "p2"])
    with pytest.raises(JobConflict, match=job.id):
        client.submit_batch(requests, key="nightly", **change)


def test_seeded_rng_on_a_used_store_draw_another_id(client_of: ClientOf, remote: Remote, store: str) -> None:
    """The id another job has is never taken for one's own."""
    one = client_of(remote, store=store).submit_batch(["a"])
    other = client_of(remote, store=store).submit_batch(["b"])
    assert one.id != other.id


def test_an_empty_job_is_done(client: BatchingClient) -> None:
    """There is nothing to wait for."""
    job = client.submit_batch([])
    assert job.wait(0.0).done
    assert list(job.results()) == []


def test_hooks_run_when_a_job_is_submitted(client_of: ClientOf, remote: Remote, store: str) -> None:
    """What they change is what is stored and sent; later processes need not know them."""
    client = client_of(remote, store=store, preprocess=[lambda request: evolve(request, prompt="changed")])
    job = client.submit_batch(["a"])
    assert [result.text for result in job.results(timeout=LONG)] == ["by batch: changed"]


def test_results_are_post_processed_when_they_are_read(
    client_of: ClientOf, store: str, clock: VirtualClock
) -> None:
    """Once, whether they came by batch or in real time."""
    remote = Remote(clock)
    client = client_of(
        remote, store=store, post_process=lambda result: evolve(result, text=f"<{result.text}>")
    )
    by_batch = client.submit_batch(["a"])
    alone = client.submit_and_wait(["b"])
    assert [result.text for result in by_batch.results(timeout=LONG)] == ["<by batch: a>"]
    assert alone.texts == ["<re: b>"]


def test_a_job_of_any_length_is_read_row_by_row(client: BatchingClient) -> None:
    """Of 12,000 requests only a few are in memory at any time: each is checked, written and dropped."""
    alive = most = 0

    def rows() -> Iterator[Request]:
        nonlocal alive, most
        for number in range(12_000):
            request = Request(f"prompt {number}")
            alive += 1
            weakref.finalize(request, forgotten)
            yield request
            most = max(most, alive)

    def forgotten() -> None:
        nonlocal alive
        alive -= 1

    assert client.submit_batch(rows()).total == 12_000
    assert most < 10


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (["fine", Request(call=lambda request, attempt: "x")], r"row 1 .*call is an own callable"),
        (["fine", Request("x", context=object())], r"row 1 .*context of a job must be JSON"),
        (["fine", Request("x", embedding=Embedding())], r"row 1 .*texts or for vectors"),
        (["fine", "local"], r"row 1 .*answered by a preprocess hook"),
        ("fine", "list of prompts"),
    ],
)
def test_what_a_job_cannot_take_is_refused_by_row(
    rows: Any, text: str, client_of: ClientOf, remote: Remote, store: str
) -> None:
    """And nothing of the job is kept."""

    def local(request: Request) -> Answer | None:
        return Answer("known") if request.prompt == "local" else None

    client = client_of(remote, store=store, preprocess=[local])
    with pytest.raises(InvalidRequest, match=text):
        client.submit_batch(rows)
    assert client.jobs() == []


@pytest.mark.parametrize("key", ["", "  ", "x" * 513, "job-1", "a\nb", 7])
def test_a_key_is_a_short_printable_name(key: Any, client: BatchingClient) -> None:
    """One that looks like an id is refused, as it could hide a job."""
    with pytest.raises(InvalidRequest, match="key must"):
        client.submit_batch(["a"], key=key)


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": "x" * 513}, {f"{n}": "" for n in range(65)}])
def test_labels_are_texts(metadata: Any, client: BatchingClient) -> None:
    """Few, and short."""
    with pytest.raises(InvalidRequest, match="metadata"):
        client.submit_batch(["a"], metadata=metadata)


def test_a_provider_without_batches_says_so(client_of: ClientOf, clock: VirtualClock, store: str) -> None:
    """Unless real time is allowed: then each item goes in real time, and the job is as durable."""
    remote = Remote(clock, batches=False)
    client = client_of(remote, store=store)
    with pytest.raises(ConfigError, match=r"remote has no Batch API.*batch_fallback='individual'"):
        client.submit_batch(["a"])
    job = client.submit_batch(["a", "b"], batch_fallback="individual")
    assert [result.text for result in job.results(timeout=LONG)] == ["re: a", "re: b"]
    assert {result.route for result in job.results()} == {Route.INDIVIDUAL}


def test_vectors_need_a_batch_api_that_has_them(client: BatchingClient, remote: Remote) -> None:
    """The kind of a job is that of its first row."""
    with pytest.raises(ConfigError, match="no Batch API for vectors"):
        client.submit_batch(["a"], embedding=Embedding())
    assert remote.api is not None
    assert remote.api.abilities.kinds == {Kind.GENERATE}


def test_batches_can_be_switched_off(client_of: ClientOf, remote: Remote, store: str) -> None:
    """Then a job needs leave for real time, and submit_and_wait has it."""
    client = client_of(remote, store=store, batch_enabled=False, batch_threshold=2)
    with pytest.raises(ConfigError, match="switched off: set batch_enabled"):
        client.submit_batch(["a"])
    assert client.submit_and_wait(["a", "b", "c"]).texts == ["re: a", "re: b", "re: c"]
    assert remote.api is not None
    assert remote.api.calls == []


def test_a_stopped_client_takes_no_job(client: BatchingClient) -> None:
    """After start() it does again."""
    client.stop()
    with pytest.raises(ClientClosed):
        client.submit_batch(["a"])
    client.start()
    assert client.submit_batch(["a"]).wait(LONG).completed == 1


@pytest.mark.catches("StoreError")
def test_a_store_that_cannot_be_used_is_named_before_anything_is_sent(
    client_of: ClientOf, remote: Remote, tmp_path: Path
) -> None:
    """Requests in real time do not need it."""
    place = tmp_path / "no-database"
    place.write_bytes(b"something else" * 1000)
    client = client_of(remote, store=str(place))
    with pytest.raises(StoreError, match="no-database"):
        client.submit_batch(["a"])
    assert remote.api is not None
    assert remote.api.calls == []
    assert client.submit("a").result(PATIENCE).text == "re: a"


# -- waiting -------------------------------------------------------------------------------------------------


def test_few_rows_are_asked_in_real_time(client_of: ClientOf, remote: Remote, store: str) -> None:
    """Fewer than batch_threshold; from there on, by batch. Both are jobs."""
    client = client_of(remote, store=store, batch_threshold=5)
    few = client.submit_and_wait(f"p{n}" for n in range(4))
    many = client.submit_and_wait(f"p{n}" for n in range(5))
    assert [result.route for result in few] == [Route.INDIVIDUAL] * 4
    assert [result.route for result in many] == [Route.BATCH] * 5
    assert few.texts == [f"re: p{n}" for n in range(4)]
    assert [job.status().state for job in client.jobs()] == ["done", "done"]


@pytest.mark.parametrize(
    ("constraints", "few", "many"),
    sampled(
        [
            ({"deadline": "20h"}, Route.INDIVIDUAL, Route.BATCH),
            ({"prefer": "speed"}, Route.INDIVIDUAL, Route.BATCH),
            ({"strategy": "batch", "deadline": None}, Route.BATCH, Route.BATCH),
            ({"strategy": "individual", "deadline": "20h"}, Route.INDIVIDUAL, Route.INDIVIDUAL),
            ({"strategy": "auto", "prefer": "speed"}, Route.INDIVIDUAL, Route.INDIVIDUAL),
        ],
        keep=3,
    ),
)
def test_a_job_that_is_waited_for_takes_constraints(
    constraints: dict[str, Any], few: Route, many: Route, client_of: ClientOf, remote: Remote, store: str
) -> None:
    """The count decides its route all the same, unless a strategy does."""
    client = client_of(remote, store=store, batch_threshold=5)
    for count, route in ((4, few), (12, many)):
        results = client.submit_and_wait((f"p{n}" for n in range(count)), purpose="labels", **constraints)
        assert [result.route for result in results] == [route] * count
    assert [job.status().state for job in client.jobs()] == ["done", "done"]


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        ({"deadline": "1 s"}, "no route meets a deadline of 1 s"),
        ({"deadline": "soon"}, "deadline = 'soon' is no time"),
        ({"budget": "5 EUR"}, "budget"),
        ({"strategy": "fast"}, "strategy"),
        ({"budget": "5 USD"}, "the price of remote:default is unknown"),
    ],
)
def test_constraints_of_a_job_that_is_waited_for_are_checked_before_it_is_stored(
    constraints: dict[str, Any], text: str, client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    client = client_of(Remote(clock, priced="budget" in constraints), store=store)
    with pytest.raises(ConfigError, match=text):
        client.submit_and_wait([f"p{n}" for n in range(400)], **constraints)
    assert client.jobs() == []


@pytest.mark.parametrize(
    ("look", "wait"),
    [
        ("jobs.get", lambda job: job.wait(1000.0).finished),
        ("items.results", lambda job: len(list(job.results(timeout=1000.0)))),
    ],
)
def test_a_job_that_ends_in_time_while_the_store_is_read_is_looked_at_again(
    look: str,
    wait: Callable[[Job], int],
    client: BatchingClient,
    clock: VirtualClock,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the machine sleeps in between: the time is over, and all is there."""
    job = client.submit_batch(["a", "b"])
    part, _, name = look.partition(".")
    opened, waiting = type(getattr(inside(client).service.store, part)), threading.current_thread()
    read = getattr(opened, name)

    def slow(*args: Any, **options: Any) -> Any:
        rows = read(*args, **options)
        if threading.current_thread() is waiting and clock.now() < 1000.0:
            clock.sleep(1000.0)
        return rows

    monkeypatch.setattr(opened, name, slow)
    assert wait(job) == 2


@pytest.mark.full
def test_a_job_is_waited_for_until_its_deadline_or_longer(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    remote = Remote(clock, turnaround=9000.0)
    client = client_of(remote, store=store, batch_timeout=50.0)
    prompts = [f"p{n}" for n in range(12)]
    assert client.submit_and_wait(prompts, deadline="6h").succeeded == 12
    with pytest.raises(JobTimeout):
        client.submit_and_wait(prompts, deadline="6h", timeout=60.0)


def test_waiting_ends_and_the_job_goes_on(client_of: ClientOf, remote: Remote, store: str) -> None:
    """The error names the job; the same line with the same key takes it up again."""
    client = client_of(remote, store=store, batch_threshold=1, batch_timeout=50.0)
    with pytest.raises(JobTimeout, match=r"goes on.*smartbatch.job") as caught:
        client.submit_and_wait(["a", "b"], key="k")
    assert caught.value.job_id == client.job("k").id
    assert client.submit_and_wait(["a", "b"], key="k", timeout=LONG).texts == ["by batch: a", "by batch: b"]
    assert remote.api is not None
    assert len(remote.api.made) == 1


def test_progress_never_says_all_before_all_is_stored(
    client_of: ClientOf, remote: Remote, store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The callback and the bar see submitted, running and remaining time on the way, and the end once."""
    client = client_of(remote, store=store, batch_poll_interval=10.0)
    seen: list[Any] = []
    client.submit_and_wait([f"p{n}" for n in range(40)], on_progress=seen.append, progress=True, timeout=LONG)
    running = [status for status in seen if status.running and not status.finished]
    assert running
    assert all(status.submitted == 40 for status in running)
    assert all(status.remaining is not None and status.remaining > 0 for status in running)
    assert [status.done for status in seen].count(True) == 1
    assert seen[-1].done
    shown = capfd.readouterr().err
    assert "100% 40/40" in shown
    assert all("100%" not in line for line in shown.split("\n") if "40/40" not in line)


def test_when_all_fail_the_error_has_the_results(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """As in real time."""

    def refuse(_: str) -> str:
        raise ProviderError("no such thing", kind=ErrorKind.CLIENT_ERROR, status=400)

    client = client_of(Remote(clock, reply=refuse), store=store)
    with pytest.raises(AllRequestsFailed, match="all 2 requests failed") as caught:
        client.submit_and_wait(["a", "b"])
    assert [type(result.error) for result in caught.value.results] == [ProviderError, ProviderError]


# -- in and out of processes ---------------------------------------------------------------------------------


def test_a_job_outlives_its_client(client_of: ClientOf, clock: VirtualClock, store: str) -> None:
    """Another client on the store polls, collects and tells; nothing is created a second time."""
    remote = Remote(clock, turnaround=1000.0)
    first = client_of(remote, store=store)
    with clock.held():
        job = first.submit_batch([f"p{n}" for n in range(10)], key="k")
    clock.sleep(100.0)
    first.stop(timeout=0)
    second = client_of(remote, store=store, seed_of_rng=2)
    results = list(second.job("k").results(timeout=LONG))
    assert [result.text for result in results] == [f"by batch: p{n}" for n in range(10)]
    assert remote.api is not None
    assert len(remote.api.made) == 1
    assert job.status().done  # the old handle reads the same store


def test_a_process_looks_at_a_job_it_took_over_as_often_as_its_own_settings_say(
    client_of: ClientOf, clock: VirtualClock, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(clock, turnaround=10_000.0)
    api = remote.api
    assert api is not None
    get, looks = api.get, list[float]()

    def counted(batch_id: str, timeout: float) -> RemoteBatch | None:
        looks.append(clock.now())
        return get(batch_id, timeout)

    monkeypatch.setattr(api, "get", counted)
    first = client_of(remote, store=store, batch_poll_interval=10.0)
    job = first.submit_batch(["a", "b"])
    clock.sleep(600.0)
    first.stop(timeout=0)
    before = len(looks)
    client_of(remote, store=store, seed_of_rng=2, batch_poll_interval=100.0).job(job.id).resume()
    clock.sleep(1000.0)
    apart = [later - earlier for earlier, later in pairwise(looks)]
    assert median(apart[: before - 1]) == pytest.approx(10.0, rel=0.1)
    assert median(apart[before:]) == pytest.approx(100.0, rel=0.1)


def test_a_job_that_is_taken_over_is_looked_at_at_once(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """A kernel that is started anew, hours before the next poll of the old one, has the results at once."""
    remote = Remote(clock, turnaround=1000.0)
    first = client_of(remote, store=store, batch_poll_interval=3600.0)
    job = first.submit_batch(["a", "b"])
    clock.sleep(100.0)
    first.stop(timeout=0)
    clock.sleep(1000.0)
    second = client_of(remote, store=store, seed_of_rng=2, batch_poll_interval=3600.0)
    began = clock.now()
    assert second.job(job.id).wait(LONG).completed == 2
    assert clock.now() - began < 60.0


def test_a_started_client_carries_on_what_is_in_its_store(
    client_of: ClientOf, clock: VirtualClock, store: str
) -> None:
    """It is not asked for the job: being started on the store is enough."""
    events: list[Event] = []
    remote = Remote(clock, turnaround=1e4)
    first = client_of(remote, store=store)
    job = first.submit_batch(["a", "b"])
    first.stop(timeout=0)
    assert not job.status().done
    second = client_of(remote, store=store, seed_of_rng=2, observers=[events.append])
    second.start()
    clock.sleep(2e4)
    assert job.status().done
    second.stop()  # what it stored it has told by then
    assert [type(event) for event in events if isinstance(event, JobFinished)] == [JobFinished]


def test_events_tell_of_a_job_from_its_beginning_to_its_end(
    client_of: ClientOf, remote: Remote, store: str
) -> None:
    """Accepted once, progress on the way, finished once; metrics count them."""
    events: list[Event] = []
    client = client_of(remote, store=store, observers=[events.append])
    client.submit_and_wait([f"p{n}" for n in range(20)], timeout=LONG)
    client.submit_and_wait(["a", "b"], timeout=LONG)
    client.stop()  # what it stored it has told by then
    counts = {kind: sum(isinstance(event, kind) for event in events) for kind in (JobAccepted, JobFinished)}
    assert counts == {JobAccepted: 2, JobFinished: 2}
    assert any(isinstance(event, JobProgress) for event in events)
    snapshot = client.metrics.snapshot()
    assert (snapshot.jobs_accepted, snapshot.jobs_finished) == (2, 2)
    assert snapshot.shard_changes["submitted"] == 1
    assert "2 accepted, 2 finished" in client.status_summary()


@pytest.mark.full
def test_another_process_holds_the_futures_of_a_job(tmp_path: Path) -> None:
    """A script submits and is killed; the next one takes futures by the job's id and has every answer."""
    environ = {
        "SMARTBATCH_STORE": str(tmp_path / "jobs.db"),
        "SMARTBATCH_SIM_DIR": str(tmp_path / "sim"),
        "SMARTBATCH_BATCH_POLL_INTERVAL": "0.05",
    }
    submit = run_script(
        """
        from smartbatch import BatchingClient
        job = BatchingClient("sim:demo").submit_batch([f"p{n}" for n in range(30)], key="k")
        print(job.id, flush=True)
        os._exit(9)
        """,
        environ=environ,
    )
    assert submit.code == 9, submit.err
    job_id = submit.lines[0]
    ended = run_script(
        f"""
        import smartbatch, concurrent.futures
        job = smartbatch.job({job_id!r})
        futures = job.futures()
        done, waiting = concurrent.futures.wait(futures, timeout=20)
        print(len(done), len(waiting), len({{future.result().text for future in futures}}))
        print(smartbatch.job("k").wait(5).done, job.status().completed)
        """,
        environ=environ,
    )
    assert ended.err == ""
    assert ended.lines == ["30 0 30", "True 30"]


@pytest.mark.full
def test_a_forked_child_starts_empty_and_sees_the_same_jobs(tmp_path: Path) -> None:
    """The parent's futures say whose they are; the parent's lease and locks are untouched by the child."""
    ended = run_script(
        """
        import smartbatch
        from smartbatch import BatchingClient, WrongProcess
        client = BatchingClient("sim:demo")
        job = client.submit_batch([f"p{n}" for n in range(30)])
        futures = job.futures()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    futures[-1].result(5)
                    code = 2 if not job.status().done else 0  # it was answered before the fork
                except WrongProcess:
                    code = 0
                assert client.job(job.id).status().total == 30
                assert job.wait(20).done
                assert job.futures()[3].result(10).ok
            except BaseException:
                import traceback; traceback.print_exc(); code = 3
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(job.wait(20).completed, all(future.result(5).ok for future in futures))
        client.stop()
        """,
        environ={
            "SMARTBATCH_STORE": str(tmp_path / "jobs.db"),
            "SMARTBATCH_SIM_DIR": str(tmp_path / "sim"),
            "SMARTBATCH_BATCH_POLL_INTERVAL": "0.05",
        },
    )
    assert ended.err == ""
    assert ended.lines == ["0", "30 True"]


@pytest.mark.full
def test_ctrl_c_leaves_the_job_alive_and_says_how_to_go_on(tmp_path: Path) -> None:
    """The traceback names the line that takes it up again."""
    environ = {
        "SMARTBATCH_STORE": str(tmp_path / "jobs.db"),
        "SMARTBATCH_SIM_DIR": str(tmp_path / "sim"),
        "SMARTBATCH_BATCH_POLL_INTERVAL": "0.05",
    }
    ended = run_script(
        """
        import signal, threading
        from smartbatch import BatchingClient
        client = BatchingClient("sim:demo?batch_seconds=3")
        once = threading.Lock()  # a second Ctrl-C would hit the interpreter while it prints the traceback
        def interrupt(status):
            if status.submitted and once.acquire(blocking=False):
                os.kill(os.getpid(), signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        client.submit_and_wait([f"p{n}" for n in range(30)], key="k", on_progress=interrupt)
        """,
        environ=environ,
    )
    assert ended.code == -signal.SIGINT
    assert "smartbatch.interrupted.Interrupted: interrupted; job job-" in ended.err
    assert "smartbatch.job('job-" in ended.err
    assert smartbatch.job("k", store=environ["SMARTBATCH_STORE"]).status().total == 30


WAITS: dict[str, Callable[[BatchingClient, Job], Any]] = {
    "wait": lambda client, job: job.wait(),
    "results": lambda client, job: list(job.results()),
    "submit_and_wait": lambda client, job: client.submit_and_wait([f"p{n}" for n in range(12)], key="k"),
}


@pytest.mark.parametrize("wait", sampled(WAITS))
def test_an_interrupted_wait_for_a_job_has_what_is_stored_and_the_job_goes_on(
    wait: str, client: BatchingClient, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks anew each time, so it has everything once the job has ended."""
    waited = ChangeNotifier.wait_for_change

    def interrupted(notifier: ChangeNotifier, seen: int, timeout: float) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        waited(notifier, seen, timeout)

    with clock.held():
        job = client.submit_batch([f"p{n}" for n in range(12)], key="k")
        with monkeypatch.context() as patched:
            patched.setattr(ChangeNotifier, "wait_for_change", interrupted)
            with pytest.raises(Interrupted, match=job.id) as caught:
                WAITS[wait](client, job)
        assert caught.value.results == []
    job.wait(LONG)
    assert caught.value.results.texts == [f"by batch: p{n}" for n in range(12)]


def test_decisions_of_jobs_that_never_end_here_do_not_pile_up(
    client: BatchingClient, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest are scored at their end; the earliest may have ended in another process."""
    monkeypatch.setattr(lists, "DECIDED", 2)
    scored: list[int] = []
    client.observe(lambda event: scored.append(event.requests) if isinstance(event, RouteScored) else None)
    with clock.held():
        jobs = [client.submit_batch([f"{n}-{m}" for m in range(n)], deadline="20h") for n in (3, 4, 5)]
    for job in jobs:
        job.wait(LONG)
    client.stop()
    assert sorted(scored) == [4, 5]


def test_the_jobs_of_a_store_are_found_without_a_client(
    client: BatchingClient, clock: VirtualClock, store: str
) -> None:
    """Newest first, whatever model they are for; nothing is needed but the store."""
    first = client.submit_batch(["a"], key="first")
    first.wait(LONG)
    with clock.held():
        second = client.submit_batch(["b"], key="second")
        assert [job.id for job in smartbatch.jobs(store=store)] == [second.id, first.id]
        assert [job.key for job in smartbatch.jobs(store=store, limit=1)] == ["second"]
        assert [job.key for job in smartbatch.jobs(store=store, unfinished=True)] == ["second"]


def test_the_call_that_finds_jobs_is_also_the_package_of_its_name() -> None:
    """Both have the name, so that neither import hides the other."""
    assert signature(smartbatch.jobs) == signature(shortcuts.jobs)
    assert importlib.import_module("smartbatch.jobs.job").Job is smartbatch.jobs.job.Job


def test_a_job_that_is_nowhere_is_not_found(client: BatchingClient, store: str) -> None:
    """The error says where was looked, and how to see what there is."""
    with pytest.raises(JobNotFound, match="smartbatch jobs list"):
        client.job("nightly")
    with pytest.raises(JobNotFound, match="nightly"):
        smartbatch.job("nightly", store=store)


def test_a_job_without_its_key_at_hand_says_what_it_needs(
    client: BatchingClient,
    clock: VirtualClock,
    remote: Remote,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is left alone, and its note names the account."""
    with clock.held():
        job = client.submit_batch(["a"])
    client.stop(timeout=0)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    seen = smartbatch.job(job.id, store=store)
    status = seen.status()
    assert status.state == "active"
    assert status.note is not None
    assert "needs the remote account" in status.note
    with pytest.raises(JobTimeout, match="needs the remote account"):
        seen.wait(0.05)
