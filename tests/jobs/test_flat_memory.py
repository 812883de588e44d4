"""Memory stays flat in processes that run for months."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future
from functools import partial

import pytest
from inside import inside
from jobs.remote import Remote
from jobs.runtimes import job_runtime, job_wiring
from jobs.stores import new_job
from jobs.supervised import supervision_of

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.config import BatchingConfig
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.jobs.jobs_engine import JobsEngine
from smartbatch.jobs.payload import Shared, encode_params, encode_request
from smartbatch.jobs.records import JobState, NewItem
from smartbatch.jobs.runner import RealtimeRunner
from smartbatch.jobs.steps import run_step
from smartbatch.jobs.store import open_store
from smartbatch.types import Generation, Request, Result

JOBS = 60
PATIENCE = 60.0  # real seconds


def sizes(*parts):
    return {
        f"{type(part).__name__}.{name}": len(value)
        for part in parts
        for name, value in vars(part).items()
        if isinstance(value, dict | list | set) or type(value).__name__ == "deque"
    }


class Process:
    """Runs jobs without a client; the first item of each job is sent in real time."""

    def __init__(self, folder):
        self.clock = VirtualClock()
        self.store = open_store(str(folder / "jobs.db"), wall=self.clock.wall, rng=random.Random(1))
        remote = Remote(self.clock, turnaround=50.0)
        self.errors = []
        self.changed = threading.Condition()
        runtime = job_runtime(
            self.store,
            self.clock,
            random.Random(2),
            provider_of=lambda _: remote,
            report=lambda _, error: self.errors.append(error),
            send=self._ask,
        )
        self.realtime = RealtimeRunner(
            runtime, limit_of=lambda _: lambda: 5, done=lambda job_id: self.supervisor.notify(job_id)
        )
        self.supervisor = supervision_of(
            runtime, partial(run_step, runtime), self.realtime, changed=self._notify
        )
        self._submitted = 0

    def run_jobs(self, count):
        shared = Shared(Generation())
        for _ in range(count):
            self._submitted += 1
            items = []
            for number in range(2):
                request = Request(f"p{self._submitted}.{number}")
                payload = encode_request(request, shared)
                items.append(NewItem(None, payload, 99, estimate_request(request), number == 0))
            job = new_job(f"job-{self._submitted:0>16}", params=encode_params(shared.params))
            self.store.jobs.accept(job, items)
        self.supervisor.notify()
        with self.changed:
            assert self.changed.wait_for(self._all_ended, PATIENCE), self.errors

    def _all_ended(self):
        rows = self.store.jobs.latest()
        return len(rows) == self._submitted and all(
            row.state is JobState.DONE and not self.supervisor.owns(row.id) for row in rows
        )

    def _ask(self, item):
        item.sink(Result(item.request.id or "", text="answer"))
        return Future()

    def _notify(self, _):
        with self.changed:
            self.changed.notify_all()

    def close(self):
        self.supervisor.stop(10.0)
        self.realtime.halt()
        self.realtime.finish(10.0)
        self.store.close()


@pytest.fixture
def process(tmp_path):
    made = Process(tmp_path)
    yield made
    made.close()


def kept(process):
    found = sizes(process.supervisor, process.realtime)
    assert found.pop("RealtimeRunner._started") <= 2
    return found


@pytest.mark.full
def test_jobs_that_have_ended_leave_nothing_behind(process):
    process.supervisor.start()
    process.run_jobs(1)
    after_one = kept(process)
    process.run_jobs(JOBS)
    assert kept(process) == after_one
    assert set(after_one.values()) == {0}
    assert process.errors == []


@pytest.mark.full
def test_jobs_that_are_finished_and_read_leave_nothing_in_their_client(tmp_path):
    store = str(tmp_path / "jobs.db")
    with BatchingClient("sim:demo?latency=0", store=store) as client:

        def run(number):
            job = client.submit_batch([f"p{number}"], strategy="individual", batch_fallback="individual")
            assert [future.result(PATIENCE).ok for future in job.futures()] == [True]
            assert job.wait(PATIENCE).done
            assert [result.ok for result in client.job(job.id).results()] == [True]
            job.on_progress(lambda _: None)

        def kept():
            engine = inside(client).jobs.engine
            lengths = sizes(engine, engine.changes, engine._watchers)
            lengths.pop("Watchers.by_job")  # the last thread ends in a moment
            for counted in ("_ends", "_changes", "_progress"):  # the last ones only
                lengths.pop(f"Changes.{counted}")
            return sum(lengths.values())

        run(0)
        before = kept()
        for number in range(1, 20):
            run(number)
        assert kept() == before
    client = BatchingClient("sim:demo?latency=0", store=store)
    for job in client.jobs():
        assert all(result.ok for result in job.results())
    assert not inside(client).jobs.engine.is_working  # what has ended needs nobody
    assert kept() == 0
    client.stop()


def test_threads_for_items_in_real_time_end_when_there_is_no_job_for_long(process, monkeypatch):
    started = []
    start = threading.Thread.start

    def noted(thread):
        if thread.name in ("smartbatch-realtime", "smartbatch-results"):
            started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    process.supervisor.start()
    process.run_jobs(3)
    assert {thread.name for thread in started} == {"smartbatch-realtime", "smartbatch-results"}
    with process.clock.held():
        sleeper = threading.Thread(target=process.clock.sleep, args=(60.0,))
        sleeper.start()
    sleeper.join(PATIENCE)
    for thread in started:
        thread.join(PATIENCE)
    assert [thread for thread in started if thread.is_alive()] == []
    before = len(started)
    process.run_jobs(1)
    assert len(started) == before + 2
    assert process.errors == []


class Settled(Future[Result]):
    def complete(self, result):
        if result.error is None:
            self.set_result(result)
        else:
            self.set_exception(result.error)


def test_a_watcher_keeps_no_future_that_is_settled(process):
    engine = JobsEngine(BatchingConfig(), process.clock, rng=random.Random(1), wiring=job_wiring())
    engine.client_store.opened = process.store
    process.supervisor.start()
    process.run_jobs(1)
    job = process.store.jobs.latest()[0]
    watchers = set()
    for _ in range(50):
        futures = [Settled(), Settled()]
        engine.deliver(job.id, dict(enumerate(futures)))
        watchers |= set(engine._watchers.by_job.values())
        assert all(future.result(PATIENCE).ok for future in futures)
    for watcher in watchers:
        watcher.finish(PATIENCE)
        assert set(sizes(watcher).values()) == {0}
