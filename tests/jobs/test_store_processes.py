"""Stores in several processes that are killed, frozen or forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from jobs.stores import bench, new_items, started

from smartbatch.jobs.records import JobLease, LeaseLost

__all__ = ["bench", "start"]  # fixtures


PRELUDE = """
import os, random, sys
from smartbatch.jobs.records import *
from smartbatch.jobs.shard_records import NewShard
from smartbatch.jobs.records import LeaseLost
from smartbatch.jobs.store import open_store

place, *rest = sys.argv[1:]
def say(*words): print(*words, flush=True)
def hear(): return sys.stdin.readline().strip()
def new(name, **more): return JobRow(name, None, "s", "m", "generate", b"", {}, JobPolicy(), 1.0, **more)
def items(n): return [NewItem(None, b"x", 1, 1) for _ in range(n)]
"""


class Other:
    def __init__(self, place, code, words, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code, place, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        )

    def hear(self):
        line = self.process.stdout.readline().strip()
        if not line and self.process.poll() is not None:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())
        return line

    def say(self, text=""):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def start(bench, tmp_path):
    begun = []

    def start_one(code, *words):
        begun.append(Other(bench.place, code, words, tmp_path))
        return begun[-1]

    yield start_one
    for other in begun:
        if other.process.poll() is None:
            other.process.send_signal(signal.SIGCONT)
            other.kill()
        for pipe in (other.process.stdin, other.process.stdout, other.process.stderr):
            if pipe is not None:
                pipe.close()


OWNER = """
store = open_store(place)
lease = store.leases.claim(rest[0], 3600)
say(lease.epoch)
hear()
try:
    store.jobs.note(lease, "awake")
    say("written")
except LeaseLost:
    say("lost")
hear()
"""


@pytest.mark.full
def test_a_killed_owner_is_replaced_at_once_whatever_its_lease(bench, start):
    store = bench.open()
    job, _ = store.jobs.accept(bench.job(), new_items(1))
    owner = start(OWNER, job.id)
    assert owner.hear() == "1"
    assert store.leases.claimable() == []
    assert store.leases.claim(job.id, 60) is None
    owner.kill()
    until = time.monotonic() + 10
    while not store.leases.claimable() and time.monotonic() < until:
        pass  # a server needs a moment to see that a client has gone
    assert [row.id for row in store.leases.claimable()] == [job.id]
    assert store.leases.claim(job.id, 60) == JobLease(job.id, 2)


FORKER = """
store = open_store(place)
lease = store.leases.claim(rest[0], 3600)
store.facts.remember("before", 1)
child = os.fork()
if child == 0:
    say("child", os.getpid())
    hear()
    os._exit(0)
hear()
"""


@pytest.mark.full
def test_a_forked_child_does_not_keep_its_dead_parents_jobs(bench, start):
    store = bench.open()
    job, _ = store.jobs.accept(bench.job(), new_items(1))
    parent = start(FORKER, job.id)
    word, child = parent.hear().split()
    assert word == "child"
    assert store.leases.claim(job.id, 60) is None
    parent.kill()
    os.kill(int(child), 0)  # it lives
    try:
        lease = None
        for _ in range(200):  # a server needs a moment to see that a client has gone
            lease = store.leases.claim(job.id, 60)
            if lease is not None:
                break
        assert lease == JobLease(job.id, 2)
    finally:
        os.kill(int(child), signal.SIGKILL)


FAMILY = """
store = open_store(place)
lease = store.leases.claim(rest[0], 3600)
store.facts.remember("before", 1)
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    told = []
    try:
        store.jobs.note(lease, "child")
    except LeaseLost:
        told.append("lost")
    told.append(str(store.facts.recall("before")))
    job, made = store.jobs.accept(new("job-child"), items(2))
    told.append(str(store.leases.claim(rest[0], 60)))
    told.append(str(store.leases.claim("job-child", 60).epoch))
    store.close()
    os.write(writing, " ".join(told).encode())
    os._exit(0)
os.close(writing)  # else nobody would hear of a child that fails
os.waitpid(child, 0)
say(os.read(reading, 1000).decode())
store.jobs.note(lease, "parent")
say(len(store.jobs.latest()), store.jobs.get(rest[0]).note, store.leases.renew([lease], 60) == [lease])
say(store.jobs.get("job-child").owner)
hear()
"""


@pytest.mark.full
def test_a_forked_child_has_its_own_store(bench, start):
    store = bench.open()
    job, _ = store.jobs.accept(bench.job(), new_items(1))
    family = start(FAMILY, job.id)
    assert family.hear() == "lost 1 None 1"
    assert family.hear() == "2 parent True"
    assert family.hear() == "None"
    assert store.leases.claim(job.id, 60) is None  # the child's end did not free the parent's lock


HOOKLESS = """
import ctypes
store = open_store(place)
def session(): return store.facts.db.row("SELECT pg_backend_pid()")[0]
def writer(): return store.facts.db.write(lambda tx: tx.row("SELECT pg_backend_pid()")[0])
for ask in (session, writer):
    ours = ask()
    reading, writing = os.pipe()
    if not ctypes.PyDLL(None).fork():
        os.write(writing, str(ask()).encode())
        os._exit(0)
    os.close(writing)
    theirs = os.read(reading, 100).decode()
    os.wait()
    say(theirs.isdigit() and int(theirs) != ours, ask() == ours)
"""


@pytest.mark.full
@pytest.mark.parametrize("bench", ["postgres"], indirect=True)
def test_a_child_that_c_code_forked_has_sessions_of_its_own(bench, start):
    family = start(HOOKLESS)
    assert [family.hear(), family.hear()] == ["True True", "True True"]


BUSY = """
import threading, time
store = open_store(place)
ended = threading.Event()
def write():
    for n in range(1_000_000):
        if ended.is_set():
            return
        store.facts.remember(f"fact {n % 10}", n)
        store.jobs.latest()
threads = [threading.Thread(target=write) for _ in range(2)]
for thread in threads:
    thread.start()
codes = []
for n in range(int(rest[0])):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = store if n % 2 else open_store(place)
            own.facts.remember(f"child {n}", n)
            code = 0 if own.facts.recall(f"child {n}") == n else 2
        finally:
            os._exit(code)
    until = time.monotonic() + 8
    while not (ended_child := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.001)
    if not ended_child[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
        codes.append("hung")
        break
    codes.append(os.waitstatus_to_exitcode(ended_child[1]))
ended.set()
for thread in threads:
    thread.join()
say({str(code) for code in codes})
say(sum(store.facts.recall(f"child {n}") == n for n in range(int(rest[0]))))
hear()
"""


@pytest.mark.full
def test_children_forked_in_the_middle_of_writes_can_use_the_store(bench, start):
    store = bench.open()
    parent = start(BUSY, 15)
    assert parent.hear() == "{'0'}"
    assert parent.hear() == "15"
    assert store.facts.recall("child 14") == 14


ROWS = """
store = open_store(place)
def rows():
    yield from items(2)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    yield from items(2)
job, made = store.jobs.accept(new("job-1"), rows())
say(job.total, made)
hear()
"""


@pytest.mark.full
def test_a_fork_in_the_middle_of_a_job_s_rows_does_not_hold_it_up(bench, start):
    began = time.monotonic()
    assert start(ROWS).hear() == "4 True"
    assert time.monotonic() - began < 5.0  # it would wait as long for itself


ACCEPTING = """
from smartbatch.jobs.store import jobs
jobs.PAGE_ITEMS = 7
store = open_store(place)
say("open")
for n in range(100_000):
    store.jobs.accept(new(f"job-{rest[0]}-{n}"), items(n % 40))
    say(n)
"""


@pytest.mark.full
def test_killed_at_any_moment_every_acknowledged_job_is_there_and_whole(bench, start):
    acknowledged = set()
    for cycle in range(6):
        other = start(ACCEPTING, cycle)
        assert other.hear() == "open"
        for _ in range(bench.rng.randrange(1, 60)):
            acknowledged.add(f"job-{cycle}-{other.hear()}")
        other.kill()
    store = bench.open()
    jobs = {job.id: job for job in store.jobs.latest(limit=10_000)}
    assert acknowledged <= jobs.keys()
    assert len(jobs) <= len(acknowledged) + 6 * 60  # those whose acknowledgement was still in the pipe
    for job in jobs.values():
        assert job.total == int(job.id.split("-")[2]) % 40
        assert [item.ix for item in store.items.in_state(job.id)] == list(range(job.total))
    job, lease = started(store, bench, 1)  # sweeps what never became a job
    assert bench.behind("SELECT count(*) FROM incomplete_job") == [(0,)]
    assert bench.behind("SELECT count(*) FROM item") == [(sum(job.total for job in jobs.values()) + 1,)]
    assert len(bench.behind("SELECT id FROM owner")) == 1
    store.leases.release(lease)
    with pytest.raises(LeaseLost):
        store.jobs.note(lease, "x")
