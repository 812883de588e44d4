"""Jobs that outlive their client: other processes, forks and Ctrl-C."""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import closing
from itertools import pairwise
from statistics import median

import pytest
from frameworks.run_script import run_script
from jobs.remote import LONG, Remote

import smartbatch
from smartbatch import Interrupted
from smartbatch.errors import JobNotFound, JobTimeout, StoreError
from smartbatch.events import JobAccepted, JobFinished, JobProgress
from smartbatch.jobs.watching import Changes
from tests.levels import sampled


@pytest.fixture
def environ(tmp_path):
    return {
        "SMARTBATCH_STORE": str(tmp_path / "jobs.db"),
        "SMARTBATCH_SIM_DIR": str(tmp_path / "sim"),
        "SMARTBATCH_BATCH_POLL_INTERVAL": "0.05",
    }


@pytest.mark.full
def test_a_job_outlives_its_client(client_of, clock, store):
    remote = Remote(clock, turnaround=1000.0)
    first = client_of(remote, store=store)
    with clock.held():
        job = first.submit_batch([f"p{n}" for n in range(10)], key="k")
    clock.sleep(100.0)
    first.stop(timeout=0)
    second = client_of(remote, store=store, seed_of_rng=2)
    results = list(second.job("k").results(timeout=LONG))
    assert [result.text for result in results] == [f"by batch: p{n}" for n in range(10)]
    assert len(remote.api.made) == 1
    assert job.status().done  # the old handle reads the same store


def test_a_result_that_cannot_be_read_fails_its_own_future_and_no_other(client, store):
    """A newer release may store results in its own format."""
    job = client.submit_batch(["a", "b", "c"])
    job.wait(LONG)
    with closing(sqlite3.connect(store)) as behind:
        behind.execute("UPDATE result SET body = ? WHERE no & 4294967295 = 1", (b'{"v": 99}',))
        behind.commit()
    first, unread, last = job.futures()
    assert [first.result().text, last.result().text] == ["by batch: a", "by batch: c"]
    with pytest.raises(StoreError, match="update it"):
        unread.result(10.0)


@pytest.mark.full
def test_a_process_polls_a_job_it_took_over_by_its_own_settings(client_of, clock, store, monkeypatch):
    remote = Remote(clock, turnaround=10_000.0)
    api = remote.api
    get, looks = api.get, []

    def counted(batch_id, timeout):
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


def test_a_job_that_is_taken_over_is_looked_at_at_once(client_of, clock, store):
    """A restarted kernel must not wait for the next poll."""
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


def test_events_tell_of_a_job_from_its_beginning_to_its_end(client_of, remote, store):
    events = []
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
def test_a_forked_child_starts_empty_and_sees_the_same_jobs(environ):
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
        environ=environ,
    )
    assert ended.err == ""
    assert ended.lines == ["0", "30 True"]


@pytest.mark.full
def test_ctrl_c_leaves_the_job_alive_and_says_how_to_go_on(environ):
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
    assert "smartbatch.results.Interrupted: interrupted; job job-" in ended.err
    assert "smartbatch.job('job-" in ended.err
    assert smartbatch.job("k", store=environ["SMARTBATCH_STORE"]).status().total == 30


WAITS = {
    "wait": lambda client, job: job.wait(),
    "results": lambda client, job: list(job.results()),
    "submit_and_wait": lambda client, job: client.submit_and_wait([f"p{n}" for n in range(12)], key="k"),
}


@pytest.mark.parametrize("wait", sampled(WAITS))
def test_an_interrupted_wait_has_the_stored_results_and_the_job_continues(wait, client, clock, monkeypatch):
    waited = Changes.wait_for_change

    def interrupted(notifier, seen, timeout):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        waited(notifier, seen, timeout)

    with clock.held():
        job = client.submit_batch([f"p{n}" for n in range(12)], key="k")
        with monkeypatch.context() as patched:
            patched.setattr(Changes, "wait_for_change", interrupted)
            with pytest.raises(Interrupted, match=job.id) as caught:
                WAITS[wait](client, job)
        assert caught.value.results == []
    job.wait(LONG)
    assert caught.value.results.texts == [f"by batch: p{n}" for n in range(12)]


def test_the_jobs_of_a_store_are_found_without_a_client(client, clock, store):
    first = client.submit_batch(["a"], key="first")
    first.wait(LONG)
    with clock.held():
        second = client.submit_batch(["b"], key="second")
        assert [job.id for job in smartbatch.list_jobs(store=store)] == [second.id, first.id]
        assert [job.key for job in smartbatch.list_jobs(store=store, limit=1)] == ["second"]
        assert [job.key for job in smartbatch.list_jobs(store=store, unfinished=True)] == ["second"]


def test_a_job_that_is_nowhere_is_not_found(client, store):
    with pytest.raises(JobNotFound, match="smartbatch jobs list"):
        client.job("nightly")
    with pytest.raises(JobNotFound, match="nightly"):
        smartbatch.job("nightly", store=store)


def test_a_job_without_its_key_at_hand_says_what_it_needs(client, clock, remote, store, monkeypatch):
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
