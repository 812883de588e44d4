"""The dashboard under gunicorn with each kind of worker, and under its own server for a long time."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attrs import frozen

from benchmarks.dashboard import Served, fill
from smartbatch.jobs.store import SqlStore
from tests.dashboard.visits import TOKEN
from tests.jobs.stores import Bench, new_items

pytestmark = pytest.mark.full

BOARD = """
from smartbatch.dashboard import TokenAccess, app
application = app(store={place!r}, shared="off", access=TokenAccess(token={token!r}), streams=4)
"""
KINDS = {
    "sync": ("sync",),
    "gthread": ("gthread", "--threads", "8"),
    "gevent": ("gevent",),
    "gthread, preloaded": ("gthread", "--threads", "8", "--preload"),
    "gevent, preloaded": ("gevent", "--preload"),
}
WAIT = 60.0
"""Seconds after which an answer is taken for hung."""


@frozen
class Host:
    """A server that runs."""

    process: subprocess.Popen[str]
    port: int

    def open(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}", "Connection": "close"})
        return connection.getresponse()


@contextmanager
def running(shelf: Bench, options: tuple[str, ...]) -> Iterator[Host]:
    """Run gunicorn with one worker."""
    Path(shelf.folder, "board.py").write_text(BOARD.format(place=shelf.place, token=TOKEN))
    command = [sys.executable, "-m", "gunicorn", "board:application", "--chdir", str(shelf.folder)]
    command += ["--bind", "127.0.0.1:0", "--graceful-timeout", "5", "--no-control-socket", "-k", *options]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "gunicorn ended"
            found = re.search(r"Listening at: http://127.0.0.1:(\d+)", line)
        try:
            yield Host(process, int(found[1]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT)
    assert process.returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_pages_and_news_come_from_every_kind_of_worker(shelf: Bench, opened: SqlStore, kind: str) -> None:
    """Where a stream has a thread it comes as events; a sync worker has none, and is asked."""
    with running(shelf, KINDS[kind]) as host:
        assert b"<h1>Now</h1>" in host.open("/").read()
        seen = json.loads(host.open("/news?page=/jobs").read())["version"]
        stream = host.open(f"/live?page=/jobs&seen={seen}")
        assert stream.status == (503 if kind == "sync" else 200)
        opened.jobs.accept(shelf.job(key="the new one"), new_items(1))
        told = json.loads(host.open(f"/news?page=/jobs&seen={seen}").read())
        assert "the new one" in told["sections"]["jobs"]
        if kind != "sync":
            while b"the new one" not in (line := stream.readline()):
                assert line, "the stream ended"
        stream.close()


def test_dropped_streams_give_their_places_back(shelf: Bench, opened: SqlStore) -> None:
    with running(shelf, KINDS["gthread"]) as host:
        for _ in range(20):
            stream = host.open("/live?page=/jobs")
            while stream.status == 503:  # until those that were dropped are noticed
                stream = host.open("/live?page=/jobs")
            assert stream.readline().startswith(b"retry:")
            stream.close()


def test_memory_is_flat_after_many_pages_and_dropped_streams(tmp_path: Path) -> None:
    place = str(tmp_path / "jobs.db")
    fill(place, 1_000, 10_000)
    pages = ("/", "/jobs", "/jobs/job-0000000000000042", "/jobs?state=held", "/choices", "/errors", "/models")
    with Served(place) as served:

        def look(times: int) -> int:
            for number in range(times):
                served.get(pages[number % len(pages)])
                if number % 10 == 0:
                    stream = served.open(f"/live?page={pages[number % len(pages)]}")
                    assert stream.readline().startswith(b"retry:")
                    stream.close()
            return served.memory()

        before = look(200)
        after = look(1_000)
    # the allocator keeps some pages of its own: a page or a stream that leaked would be thousands of kB
    assert after - before < 6 << 20
