"""A store that hangs holds up no end: not a stop, not the interpreter's, not a look at a job or a wait."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import smartbatch.client
import smartbatch.jobs.job
from smartbatch import BatchingClient, JobTimeout, StoreError
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
SLACK = 3.0
"""Seconds more than promised, for a machine that is busy with other tests."""


@contextmanager
def hung_file(place: str) -> Iterator[None]:
    """Another process keeps the file's lock."""
    locking = sqlite3.connect(place, isolation_level=None, timeout=30.0)
    locking.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        locking.close()


@contextmanager
def hung_server(address: str) -> Iterator[None]:
    """The server's processes for everybody else are stopped: connections stay, and nobody answers."""
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
def test_a_store_that_hangs_holds_up_no_end(
    how: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Who waits for a job hears of the stop, and the process ends."""
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
def test_a_wait_that_shows_how_the_job_stands_is_over_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The store hangs in the middle of a look: its batches are not told any more."""
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


@pytest.mark.parametrize("asked", sampled(["jobs", "incidents"]))
def test_a_look_at_jobs_is_over_in_time(asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_the_last_look_for_results_in_any_order_is_over_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The store hangs when all results were read, and it is asked whether any is to come again."""
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
