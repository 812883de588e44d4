"""Stores that hang or cannot be opened do not hold up requests or stops."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import psycopg
import pytest
from jobs.remote import LONG, Remote

import smartbatch
import smartbatch.client
import smartbatch.jobs.job
from smartbatch import JobTimeout
from smartbatch.client import BatchingClient
from smartbatch.errors import StoreError
from smartbatch.events import PauseChanged
from smartbatch.jobs import client_store
from smartbatch.jobs.store.jobs import JobTable
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.jobs.store.sql_store import FactTable
from smartbatch.observe.progress import Progress
from tests.levels import sampled

SCRIPT = """
import atexit, sys, threading, time
from smartbatch import BatchingClient, JobTimeout, StoreError

client = BatchingClient("sim:demo?latency=0.2", store=sys.argv[1], parallelism=4)
job = client.submit_batch([f"p{n}" for n in range(400)], strategy="individual")
futures = job.futures()
futures[0].result()
print("running", flush=True)
sys.stdin.readline()
if sys.argv[2] == "stop":
    began = time.monotonic()
    try:
        job.status(timeout=0.5)
        print("a status", flush=True)
    except StoreError as error:
        print("hangs" if "has not answered" in str(error) else error, time.monotonic() - began, flush=True)
    for wait in (
        lambda: job.wait(0.5),
        lambda: list(job.results(timeout=0.5)),
        lambda: list(job.results(timeout=0.5, wait=False)),
    ):
        began = time.monotonic()
        try:
            wait()
        except JobTimeout:
            pass
        finally:
            print("waited", time.monotonic() - began, flush=True)
    began = time.monotonic()
    client.stop(timeout=1.0)
    print("stopped", time.monotonic() - began, flush=True)
    print(sum(not future.done() for future in futures), flush=True)
else:
    def refused(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    atexit.register(setattr, threading.Thread, "start", refused)  # as Python 3.12 does, before our own hook
print("end", flush=True)
"""
SLACK = 3.0  # seconds allowed for a busy machine


@contextmanager
def hung_file(place):
    locking = sqlite3.connect(place, isolation_level=None, timeout=30.0)
    locking.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        locking.close()


@contextmanager
def hung_server(address):
    with psycopg.connect(address.partition("&schema")[0].partition("?schema")[0], autocommit=True) as look:
        rows = look.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'smartbatch'"
        ).fetchall()
    stopped = [pid for (pid,) in rows]
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "kind"), sampled([(how, kind) for how in ("exit", "stop") for kind in ("sqlite", "postgres")])
)
def test_a_store_that_hangs_holds_up_no_end(how, kind, tmp_path, request):
    place = str(tmp_path / "jobs.db")
    if kind == "postgres":
        address = request.getfixturevalue("postgres_address")
        place = f"{address}{'&' if '?' in address else '?'}schema=hung_{how}"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, place, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "running\n"
            with hung_file(place) if kind == "sqlite" else hung_server(place):
                process.stdin.write("go\n")
                process.stdin.flush()
                lines = iter(process.stdout.readline, "")
                if how == "stop":
                    if kind == "postgres":  # a file that is locked for writing can be read
                        said, seconds = next(lines).split()
                        assert (said, float(seconds) < 0.5 + SLACK) == ("hangs", True)
                    else:
                        assert next(lines)
                    for _ in ("wait", "results", "results that are there"):
                        said, seconds = next(lines).split()
                        assert (said, float(seconds) < 0.5 + 1.0 + SLACK) == ("waited", True)
                    said, seconds = next(lines).split()
                    assert (said, float(seconds) < 1.0 + 1.0 + SLACK) == ("stopped", True)
                    assert next(lines) == "0\n"
                assert next(lines) == "end\n"
                began = time.monotonic()
                assert process.wait(30) == 0
                assert time.monotonic() - began < 2.0 + 1.0 + SLACK  # the grace period of the exit
        finally:
            process.kill()


@pytest.mark.full
def test_a_wait_that_shows_how_the_job_stands_is_over_in_time(monkeypatch, tmp_path):
    answered = threading.Event()
    monkeypatch.setattr(Progress, "is_due", True)
    monkeypatch.setattr(ShardTable, "of_job", lambda *_, **__: answered.wait(30.0) and [])
    client = BatchingClient("sim:demo?latency=60", store=str(tmp_path / "jobs.db"))
    try:
        job = client.submit_batch(["a", "b"], strategy="individual")
        began = time.monotonic()
        with pytest.raises(JobTimeout, match="has not answered"):
            job.wait(0.5, progress=True)
        assert time.monotonic() - began < 0.5 + 1.0 + SLACK
    finally:
        answered.set()
        client.stop(timeout=0)


@pytest.mark.full
@pytest.mark.parametrize("asked", sampled(["jobs", "incidents"]))
def test_a_look_at_jobs_is_over_in_time(asked, monkeypatch, tmp_path):
    answered = threading.Event()
    monkeypatch.setattr(smartbatch.client, "STATUS_TIMEOUT", 0.5)
    monkeypatch.setattr(smartbatch.jobs.job, "STATUS_TIMEOUT", 0.5)
    with BatchingClient("sim:demo", store=str(tmp_path / "jobs.db")) as client:
        job = client.submit_batch(["a"], strategy="individual")
        monkeypatch.setattr(JobTable, "latest", lambda *_, **__: answered.wait(30.0) and [])
        monkeypatch.setattr(FactTable, "incidents", lambda *_: answered.wait(30.0) and [])
        began = time.monotonic()
        with pytest.raises(StoreError, match="has not answered"):
            job.incidents() if asked == "incidents" else client.jobs()
        assert time.monotonic() - began < 0.5 + SLACK
        answered.set()


@pytest.mark.full
def test_the_last_look_for_results_in_any_order_is_over_in_time(monkeypatch, tmp_path):
    answered = threading.Event()
    with BatchingClient("sim:demo", store=str(tmp_path / "jobs.db")) as client:
        job = client.submit_batch(["a", "b"], strategy="individual")
        job.wait()
        results = job.results(ordered=False, timeout=3.0)
        assert next(results).ok
        monkeypatch.setattr(JobTable, "get", lambda *_: answered.wait(30.0) and None)
        began = time.monotonic()
        with pytest.raises(JobTimeout, match="has not answered"):
            list(results)
        assert time.monotonic() - began < 3.0 + 1.0 + SLACK
        answered.set()


HANGS = 10.0  # seconds until a silent server is given up


class Server:
    def __init__(self, clock, monkeypatch):
        self.there, self.hangs, self.asked = False, HANGS, 0
        really = client_store.open_store

        def opened(*args, **options):
            self.asked += 1
            clock.sleep(self.hangs)
            if not self.there:
                raise StoreError("the store cannot be reached")
            return really(*args, **options)

        monkeypatch.setattr(client_store, "open_store", opened)


@pytest.fixture
def server(clock, monkeypatch, client_of):
    client_of(
        Remote(clock), store=None
    ).start()  # so that what ends the process is there, whose time moves on
    return Server(clock, monkeypatch)


@pytest.mark.catches("StoreError")
def test_a_first_request_waits_three_seconds_for_a_store_that_hangs(server, clock, client_of, store):
    client = client_of(Remote(clock, latency=0.01), store=store)
    began = clock.now()
    assert client.submit("a").result(LONG).ok
    assert clock.now() - began < 3.1
    began = clock.now()
    assert client.submit("b").result(LONG).ok
    assert clock.now() - began < 0.1


def test_a_store_that_answers_slowly_is_heard_before_the_first_request(server, clock, client_of, store):
    server.there, server.hangs = True, 0.0
    smartbatch.pause("remote", "default", store=store)
    server.hangs = 2.5
    client = client_of(Remote(clock), store=store)
    future = client.submit("a")
    assert clock.now() == pytest.approx(2.5, abs=0.1)
    clock.sleep(60.0)
    assert not future.done()
    smartbatch.resume("remote", "default", store=store)
    assert future.result(LONG).ok


@pytest.mark.catches("StoreError")
@pytest.mark.parametrize("hangs", [0.0, HANGS])
def test_jobs_of_a_store_that_comes_later_are_carried_on(hangs, server, clock, client_of, store):
    server.there, server.hangs = True, 0.0
    earlier = client_of(Remote(clock), store=store)
    job = earlier.submit_batch(["p"])
    earlier.stop(timeout=0)
    server.there, server.hangs = False, hangs
    told = []
    later = client_of(Remote(clock), store=store, observers=[told.append])
    assert later.submit("a").result(LONG).ok
    clock.sleep(60.0)
    server.there = True
    smartbatch.pause("sim", "demo", store=store)
    clock.sleep(600.0)
    assert [event.model for event in told if isinstance(event, PauseChanged)] == ["sim:demo"]
    assert later.job(job.id).status().state == "done"


@pytest.mark.catches("StoreError")
def test_a_store_is_not_tried_after_a_stop(server, clock, client_of, store):
    client = client_of(Remote(clock), store=store)
    assert client.submit("a").result(LONG).ok
    clock.sleep(60.0)
    client.stop()
    clock.sleep(HANGS)
    asked = server.asked
    clock.sleep(60.0)
    assert server.asked == asked > 3


@pytest.mark.catches("StoreError")
def test_a_second_start_does_not_end_the_tries(server, clock, client_of, store):
    client = client_of(Remote(clock), store=store)
    client.start()
    with client:
        clock.sleep(60.0)
        asked = server.asked
        clock.sleep(60.0)
        assert server.asked > asked + 2
