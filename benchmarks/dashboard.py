"""Measures the first paint of the dashboard with a large store.

    python -m benchmarks.dashboard [JOBS [ROWS]]

Fills a store by SQL, serves it as ``smartbatch dashboard`` does, and loads each page in Chromium.
"""

from __future__ import annotations

import http.client
import os
import re
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from smartbatch._clock import RealClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import encode_result
from smartbatch.jobs.store import open_store
from smartbatch.types import Result

JOBS, ROWS = 10_000, 10_000_000
PAGES = (
    *("/", "/jobs", "/jobs?state=unfinished", "/jobs?before=5000", "/jobs/job-0000000000000042"),
    *("/decisions", "/decisions/5000", "/models", "/errors"),
)
LOADS = 10
SETTLED = 1000
"""Milliseconds from opening a window to its first page, because the browser also draws itself."""
OTHERS, QUIET, PATIENCE = 3, 0.15, 60.0
"""A page is loaded only when at most this many other threads have waited for a core for this many seconds, or
after this timeout.
"""

_PAINTED = "performance.getEntriesByName('first-contentful-paint')"
_POLICY = '{{"version":1,"fallback":"individual","deadline":{deadline},"budget":25.0,"route":"batch"}}'
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
_JOBS = """INSERT INTO job (no, id, user_key, scope, model, kind, metadata, policy, digest, created_at, state,
    finished_at, total, succeeded, failed, cost, realtime_cost, input_tokens, output_tokens, owner,
    lease_until)
    SELECT i, printf('job-%016d', i), CAST(printf('nightly labels, part %d', i) AS BLOB),
    'account ' || (i % 3), CASE i % 3 WHEN 0 THEN 'openai:gpt-5-mini' WHEN 1 THEN 'gemini:gemini-3-flash'
    ELSE 'anthropic:claude-haiku-5-5' END, 'generate', '{"team":"search"}', ?2, x'', ?1 - 600.0 * (?3 - i),
    CASE WHEN i % 100 = 0 THEN 'held' WHEN i > ?3 - 200 THEN 'active' ELSE 'done' END,
    CASE WHEN i % 100 = 0 OR i > ?3 - 200 THEN NULL ELSE ?1 - 600.0 * (?3 - i) + 900 + i % 700 END,
    ?4, CASE WHEN i > ?3 - 200 THEN ?4 / 2 ELSE ?4 - ?4 / 100 END, ?4 / 100, 1.5, 3.0, 90000, 30000,
    'worker', ?1 + 1e6 FROM n"""
_SHARDS = """INSERT INTO shard (id, job, no, nonce, scope, model, state, size, bytes, tokens, due_at,
    batch_id, submitted_at, ended_at, settled_at, remote, cost)
    SELECT printf('shard-%d', i), i, 1, printf('nonce-%d', i), 'account ' || (i % 3), 'openai:gpt-5-mini',
    CASE WHEN i > ?3 - 200 THEN 'submitted' ELSE 'settled' END, ?2, ?2 * 900, ?2 * 90, 0.0,
    printf('batch_%08x', i), ?1 - 600.0 * (?3 - i) + 10,
    CASE WHEN i > ?3 - 200 THEN NULL ELSE ?1 - 600.0 * (?3 - i) + 800 END,
    CASE WHEN i > ?3 - 200 THEN NULL ELSE ?1 - 600.0 * (?3 - i) + 850 END,
    '{"version":1,"state":null}', 1.5 FROM n"""
_DECISIONS = """INSERT INTO decision (job, at, model, route, requests, p50, p95, cost, individual_p50, body)
    SELECT i, ?1, 'openai:gpt-5-mini', 'batch', 1000, 900.0, 5400.0, 1.5, 300.0, 'null' FROM n"""
_ERRORS = """INSERT INTO error_group (digest, kind, message, count, first_at, last_at, model, request_id)
    SELECT CAST('digest ' || i AS BLOB), CASE i % 3 WHEN 0 THEN 'client_error' WHEN 1 THEN 'rate_limit' ELSE
    'server_error' END, CAST('message ' || i || ' of a provider: the prompt has # tokens' AS BLOB), i * 7,
    ?1 - 9000.0 * i, ?1 - 60.0 * i, 'openai:gpt-5-mini', CAST('row ' || i AS BLOB) FROM n WHERE i <= 500"""
_SPENDING = """INSERT INTO spending (hour, model, route, part, requests, failed, usd, realtime_usd, unpriced,
    input_tokens, output_tokens) SELECT CAST(?1 / 3600 AS INTEGER) - i, 'openai:gpt-5-mini', 'batch', 0, 1000,
    9, 1.0 + i % 5, 2.0 + i % 9, 0, 90000, 30000 FROM n WHERE i <= 48"""
_ITEMS = """INSERT INTO item (no, state, tries, shard, size, tokens)
    SELECT (i << 32) | k, 4, 0, 1, 900, 90 FROM job_numbers JOIN positions"""
_PAYLOADS = """INSERT INTO payload (no, user_id, body)
    SELECT (i << 32) | k, CAST('row ' || k AS BLOB), ?1 FROM job_numbers JOIN positions"""
_RESULTS = """INSERT INTO result (no, seq, outcome, digest, cost, body)
    SELECT (i << 32) | k, (i << 32) | (k + 1), CASE WHEN k % 100 = 7 THEN 'failed' ELSE 'succeeded' END,
    x'00', 0.0015, CASE WHEN k % 100 = 7 THEN ?1 ELSE ?2 END FROM job_numbers JOIN positions"""


def fill(place: str, jobs: int, rows: int) -> None:
    """Fill a store by SQL with this many jobs and rows.

    The newest 200 jobs are active, one in a hundred is held, and the others are done.
    """
    open_store(place).close()
    each, now = max(1, rows // jobs), RealClock.wall()
    error = ProviderError("the prompt was refused: <too long>", kind=ErrorKind.CLIENT_ERROR)
    failed, answered = encode_result(Result("row", error=error)), encode_result(Result("row", text="yes"))
    with sqlite3.connect(place, isolation_level=None) as connection:
        numbers = _NUMBERS.format(count=jobs)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN")
        policy = _POLICY.format(deadline=now + 3600)
        connection.execute(numbers + _JOBS, (now, policy, jobs, each))
        connection.execute(f"{numbers} INSERT INTO job_params SELECT i, CAST('{{}}' AS BLOB) FROM n")
        connection.execute(numbers + _SHARDS, (now, each, jobs))
        for statement in (_DECISIONS, _ERRORS, _SPENDING):
            connection.execute(numbers + statement, (now,))
        connection.execute(f"CREATE TEMP TABLE job_numbers AS {numbers} SELECT i FROM n")
        connection.execute(
            f"CREATE TEMP TABLE positions AS {_NUMBERS.format(count=each)} SELECT i - 1 AS k FROM n"
        )
        connection.execute(_ITEMS)
        connection.execute(_PAYLOADS, (b'{"version":1,"prompt":"Label this."}',))
        connection.execute(_RESULTS, (failed, answered))
        connection.execute("INSERT OR REPLACE INTO sqlite_sequence VALUES ('incomplete_job', ?)", (jobs,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


class Served:
    """The dashboard of a store in its own process, until the block ends.

    Attributes:
        address, token: from its first line of output.
        ended: its exit code.
    """

    ended: int | None = None

    def __init__(self, place: str) -> None:
        command = (sys.executable, "-m", "smartbatch", "dashboard", "--store", place, "--port", "0")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "SMARTBATCH_SHARED": "off"}
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        found = re.fullmatch(r"http://([^/]*)/\?token=(.*)\n", told)
        assert found is not None, told
        self.address, self.token = found[1], found[2]

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.terminate()
        self.ended = self._process.returncode

    def get(self, path: str) -> tuple[bytes, float]:
        """Return a response as transferred, and the seconds it took, including the connection."""
        began = time.perf_counter()
        response = self.open(path)
        body = response.read()
        assert response.status == 200, (path, response.status, body)
        return body, time.perf_counter() - began

    def open(self, path: str) -> http.client.HTTPResponse:
        """Send a request; the body has not been read yet."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        headers = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip"}
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def main(jobs: int = JOBS, rows: int = ROWS) -> None:
    folder = tempfile.mkdtemp(prefix="smartbatch-dashboard-")
    place = os.path.join(folder, "jobs.db")
    try:
        began = time.perf_counter()
        fill(place, jobs, rows)
        size = os.path.getsize(place) / 1e9
        print(f"{jobs:,} jobs, {rows:,} rows, {size:.1f} GB, made in {time.perf_counter() - began:.0f} s")
        with Served(place) as served:
            _load(served)
            _paint(served)
    finally:
        shutil.rmtree(folder)


def _paint(served: Served) -> None:
    """Print when Chromium first paints each page without a cache, and a line of text for comparison."""
    from playwright.sync_api import sync_playwright  # a test of the command uses only this file's server

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for page in (*PAGES, "/nowhere"):
            seconds = []
            for _ in range(LOADS):
                context = browser.new_context(extra_http_headers={"Authorization": f"Bearer {served.token}"})
                tab = context.new_page()
                tab.wait_for_timeout(SETTLED)
                _wait_for_quiet()
                tab.goto(f"http://{served.address}{page}")
                while not (painted := tab.evaluate(f"{_PAINTED}.map(one => one.startTime)")):
                    tab.wait_for_timeout(10)
                seconds += painted
                context.close()
            median = statistics.median(seconds)
            print(f"{page:<32} painted after {median:.0f} ms, at most {max(seconds):.0f}")
        browser.close()


def _wait_for_quiet() -> None:
    began = quiet_from = time.perf_counter()
    while (now := time.perf_counter()) < min(quiet_from + QUIET, began + PATIENCE):
        if int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1 > OTHERS:
            quiet_from = now
        time.sleep(0.02)


def _load(served: Served) -> None:
    """Load each page with its files twice."""
    for page in PAGES:
        took, sizes = [], []
        for _ in range(LOADS):
            body, seconds = served.get(page)
            files = [served.get("/static/live.js")]
            took.append(seconds + sum(each for _, each in files))
            sizes.append(len(body) + sum(len(each) for each, _ in files))
        first, median = took[0] * 1000, statistics.median(took) * 1000
        print(f"{page:<32} first {first:6.1f} ms, then {median:6.1f} ms, {sizes[0] / 1000:5.1f} kB")
    print(f"memory {served.memory() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
