"""The store of jobs in an SQL database.

Rules for all operations:

- A method of a table is one transaction unless its docstring says otherwise. When it returns, its changes are
  on disk. After an error during a commit, its outcome is read from the database, never assumed.
- Every write to a job names the writer's :class:`~smartbatch.jobs.records.JobLease`. If another process has
  taken over the job, or a shard's state is no longer the one that the writer read, nothing is written and
  :class:`~smartbatch.jobs.records.LeaseLost` is raised.
- Pages of requests and results may be short; only an empty page is the last one.
- A job becomes ``DONE`` in the transaction that stores its last result.
- Every method may raise ``StoreError``: the database is unavailable, and nothing was written.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from attrs import frozen

from smartbatch._database import Address
from smartbatch._files import own_folder, resolved_file, state_folder
from smartbatch._fork import on_fork
from smartbatch.errors import ConfigError, StoreError
from smartbatch.jobs.records import IncidentRow
from smartbatch.jobs.store import leftovers, outcomes
from smartbatch.jobs.store.database import (
    DAMAGES,
    REMEMBER_FACT,
    Database,
    Transaction,
    ascii_json,
    damaged,
    encoded,
)
from smartbatch.jobs.store.items import ItemTable
from smartbatch.jobs.store.job_actions import ControlTable, JobActions
from smartbatch.jobs.store.job_files import JobFiles
from smartbatch.jobs.store.job_overview import JobOverview
from smartbatch.jobs.store.jobs import JobTable
from smartbatch.jobs.store.leases import Counted, FileLocks, LeaseTable, Owner, OwnerLocks, leased
from smartbatch.jobs.store.prompt_caches import CacheTable
from smartbatch.jobs.store.remote_objects import RemoteObjectTable
from smartbatch.jobs.store.schema import incident_row
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.jobs.store.summaries import SummaryTable
from smartbatch.jobs.store.uploads import UploadTable
from smartbatch.jobs.store.webhook_events import WebhookEventTable
from smartbatch.setting import revealed

_SERVERS = ("postgresql://", "postgres://")
_KEYWORD_FORM = re.compile(
    r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|sslmode)\s*=|.*\bpassword\s*=",
    re.S,
)
"""The other form of address that libpq accepts, such as ``host=db.example dbname=jobs``."""


class SqlStore:
    """Durable jobs, shared by several threads and by several processes with a store object each.

    Args:
        spool: folder for temporary files.
        files: the files of jobs.
        wall: Unix seconds; machines need not agree on them.
        rng: random numbers for owner ids.
        counted: called with a job's id and its new counts after each commit that stores results.

    Attributes:
        place: the path, or the DSN without its password, for display.
    """

    def __init__(
        self,
        database: Database,
        locks: OwnerLocks,
        spool: str,
        files: JobFiles,
        *,
        wall: Callable[[], float],
        rng: Random,
        counted: Counted | None,
    ) -> None:
        self.place = database.place
        self._db = database
        self._spool = spool
        self._owner = Owner(database, locks, wall=wall, rng=rng)
        self.leases = LeaseTable(database, self._owner, counted)
        self.files = files
        self.jobs = JobTable(database, self.leases, self._owner, files)
        self.overview = JobOverview(database, self.jobs)
        self.items = ItemTable(database, self.leases)
        self.shards = ShardTable(database, self.leases)
        self.remote_objects = RemoteObjectTable(database, self._owner)
        self.caches = CacheTable(database, self._owner, rng)
        self.uploads = UploadTable(database, self.leases, self._owner, rng)
        self.webhook_events = WebhookEventTable(database)
        self.facts = FactTable(database, self.leases)
        self.summaries = SummaryTable(database)
        self.controls = ControlTable(database)
        self.actions = JobActions(database)
        on_fork(self)
        try:
            database.open()
        except BaseException:
            database.close()
            raise

    @property
    def spool(self) -> str:
        """The folder for temporary files, on the local disk and private to this user (mode 0700)."""
        try:
            own_folder(self._spool)
        except OSError as error:
            raise StoreError(
                f"the folder {self._spool} cannot be created ({error.strerror}). It holds files that are sent"
                " to and received from the provider; make its parent folder writable, or use another store"
            ) from None
        return self._spool

    def require_folders(self) -> str:
        """Create the folders that jobs need if they are missing; return the folder for temporary files.

        Raises:
            StoreError: a folder cannot be created or belongs to another user.
        """
        self._owner.require_folder()
        return self.spool

    def clean(self, *, at: float, dry_run: bool) -> tuple[int, int]:
        """Delete what forgotten jobs and killed processes left, and return the space to the system.

        Jobs that were not forgotten keep everything.

        Args:
            at: Unix seconds.
            dry_run: delete nothing.

        Returns:
            The number of names of requests, and of files on this machine.
        """
        files = leftovers.stale_files(self._db, self.spool, at=at)
        folders = {job_id: self.files.count(job_id) for job_id in self.files.stale(self._db, at=at)}
        names = 0
        for page in leftovers.forgotten_names(self._db):
            names += len(page)
            if not dry_run:
                self._db.write(partial(leftovers.delete_names, names=page))
        if not dry_run:
            for path in files:
                path.unlink(missing_ok=True)
            for job_id in folders:
                self.files.delete(job_id)
            self.remote_objects.expire(at)
            self._owner.enter()  # deletes rows of dead owners, and items that never became part of a job
            self._db.reclaim()
        return names, len(files) + sum(folders.values())

    def give_up(self) -> None:
        """Make pending database calls fail immediately, because the database hangs and the process must end.

        Jobs owned by this store are released when the process ends or its leases expire.
        """
        self._db.give_up()

    def close(self) -> None:
        """Release all jobs and close. May be called twice."""
        self._owner.leave()
        self._db.close()

    def abandon(self) -> None:
        """Drop connections, locks and leases silently, for a forked child, because they belong to the parent.

        In the process that opened the store, this has the same effect as killing that process.
        """
        self._owner.abandon()
        self._db.abandon()

    after_fork = abandon


def open_store(
    place: str | None = None,
    *,
    wall: Callable[[], float] = time.time,
    rng: Random | None = None,
    counted: Counted | None = None,
    **database: Any,
) -> SqlStore:
    """Open the store at ``place``, and create it if it is missing.

    Args:
        place: a path, or ``sqlite:///path``; or ``postgresql://…`` for several machines, with an optional
            ``?schema=name`` (default ``smartbatch``). ``None`` is :func:`default_place`.
        wall: Unix seconds.
        rng: random numbers for owner ids.
        counted: see :class:`SqlStore`.
        database: further arguments for the database, used by tests.

    Raises:
        StoreError: it cannot be opened; the text says why and what to do, and never contains the password.
        ConfigError: the address of a server is malformed, or ``postgresql://`` needs the extra ``postgres``,
            which is not installed.
    """
    place = resolved_place(place)
    rng = rng or Random()
    if is_server(place):
        address = Address.of(place)
        from smartbatch.jobs.store.postgres import PostgresDatabase, SessionLocks

        server = PostgresDatabase(address, **database)
        spool = os.path.join(state_folder(), f"spool-{server.address.digest}")
        files = JobFiles(os.path.join(state_folder(), f"files-{server.address.digest}"), shared=False)
        return SqlStore(server, SessionLocks(server), spool, files, wall=wall, rng=rng, counted=counted)
    from smartbatch.jobs.store.sqlite import SqliteDatabase

    spool = f"{place}.spool"
    file = SqliteDatabase(place, wall=wall, **database)
    locks = FileLocks(os.path.join(spool, "owners"))
    files = JobFiles(f"{place}.files", shared=True)
    return SqlStore(file, locks, spool, files, wall=wall, rng=rng, counted=counted)


def is_server(place: str) -> bool:
    return place.startswith(_SERVERS)


def resolved_place(place: str | None) -> str:
    """Return the address of a server unchanged, or the absolute path of a file.

    Raises:
        StoreError: no file can have that name, or it is the address of another kind of server.
        ConfigError: it is the address of a PostgreSQL server in another form.
    """
    place = revealed(place or default_place())
    if "\0" in place:
        raise StoreError("the store cannot be used: its name contains a NUL character; use another name")
    if is_server(place):
        return place
    if _KEYWORD_FORM.match(place):  # a file with that name would reveal the password
        raise ConfigError(
            "store: write the address of a PostgreSQL server as a URL, such as "
            "postgresql://user:password@host:5432/database?schema=smartbatch, with special characters "
            "written as %XX"
        )
    # sqlite:///relative, sqlite:////absolute or a plain path
    path = place.removeprefix("sqlite:///")
    if "://" in path:  # another kind of server: a file with that name would reveal the password
        raise StoreError(
            "the store cannot be used: its address must be sqlite:///FILE, postgresql://HOST/DATABASE, or the"
            " path of a file"
        )
    return resolved_file(path)


def check_place(place: str) -> None:
    """Check the name of a store without opening it.

    Raises:
        ConfigError, StoreError: as for :func:`open_store`, based on the name and the installed packages.
    """
    if is_server(address := resolved_place(place)):
        Address.of(address)


def default_place() -> str:
    return os.path.join(state_folder(), "jobs.db")


# -- small tables ------------------------------------------------------------------------------------------

MAX_TURNAROUNDS = 500  # stored batches per model; a forecast uses 100


@frozen
class FactTable:
    """Incidents, turnarounds of batches and facts: the tables ``incident``, ``turnaround`` and ``fact``."""

    db: Database
    leases: LeaseTable

    @leased
    def add_incident(self, tx: Transaction, _: int, incident: IncidentRow) -> bool:
        """Store an incident; return false if one with the same kind, shard and detail exists."""
        return outcomes.add_incident(tx, incident)

    def incidents(self, job_id: str) -> list[IncidentRow]:
        """Return the incidents of a job, oldest first."""
        columns = "kind, job_id, shard_id, detail, money, at"
        rows = self.db.rows(f"SELECT {columns} FROM incident WHERE job_id = ? ORDER BY no", job_id)
        return [incident_row(row) for row in rows]

    def observe_turnarounds(self, model: str, seen: Sequence[tuple[int, float, float]]) -> None:
        """Store the size, duration in seconds and end time of each batch, for forecasts."""
        new = "INSERT INTO turnaround (model, size, seconds, at) VALUES (?, ?, ?, ?)"
        trim = """DELETE FROM turnaround WHERE model = ? AND no <= (
            SELECT no FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT 1 OFFSET ?)"""

        def work(tx: Transaction) -> None:
            for each in seen:
                tx.change(new, model, *each)
            tx.change(trim, model, model, MAX_TURNAROUNDS)

        self.db.write(work)

    def turnarounds(self, model: str, *, limit: int) -> list[tuple[int, float, float]]:
        """Return the size, seconds and end time of the latest batches of ``model``, newest first."""
        latest = "SELECT size, seconds, at FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT ?"
        return [(size, seconds, at) for size, seconds, at in self.db.rows(latest, model, limit)]

    def topics(self, *, limit: int = 1000) -> list[str]:
        """Return the sorted names under which turnarounds are stored, with one index lookup for each."""
        each = """WITH RECURSIVE topic (name) AS (
            SELECT min(model) FROM turnaround
            UNION ALL SELECT (SELECT min(model) FROM turnaround WHERE model > topic.name)
            FROM topic WHERE topic.name IS NOT NULL)
            SELECT name FROM topic WHERE name IS NOT NULL LIMIT ?"""
        return [name for (name,) in self.db.rows(each, limit)]

    def remember(self, key: str, value: Any) -> None:
        """Store a small JSON-serializable value, such as a discovered limit."""
        self.db.change(REMEMBER_FACT, encoded(key), ascii_json(value))

    def update(self, key: str, change: Callable[[Any], Any]) -> Any:
        """Replace a stored value by the result of ``change`` for it, and return the earlier value.

        ``change`` may be called more than once.
        """

        def work(tx: Transaction) -> Any:
            found = tx.row("SELECT value FROM fact WHERE name = ?", encoded(key))
            before = _value(found)
            if (after := change(before)) != before:
                tx.change(REMEMBER_FACT, encoded(key), ascii_json(after))
            return before

        return self.db.write(work)

    def recall(self, key: str) -> Any:
        """Return a stored value or ``None``; raise ``StoreError`` if it is damaged."""
        return _value(self.db.row("SELECT value FROM fact WHERE name = ?", encoded(key)))


def _value(found: Sequence[Any] | None) -> Any:
    try:
        return None if found is None else json.loads(found[0])
    except DAMAGES:
        raise damaged("fact") from None
