"""The store of jobs on an SQL database.

Rules of all operations:

- A method of a part is one transaction, unless it says otherwise. What it returned from is on disk. An error
  at a commit is looked up, never guessed.
- Every write to a job names the writer's :class:`~smartbatch.jobs.records.JobLease`. When another process
  took the job over meanwhile, nothing is written and :class:`~smartbatch.jobs.records.LeaseLost` is raised.
- A change of a shard's state is guarded by the state it was read in: the second writer gets ``LeaseLost``.
- Pages of requests and results end early where these are large, because some megabytes are read at a time,
  and at gaps; only behind the last one there is none.
- A job becomes ``DONE`` in the transaction that stores its last result.
- Every method may raise StoreError: the database cannot be used, and nothing was written.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from random import Random
from typing import Any

from smartbatch._database import Address
from smartbatch._files import own_folder, resolved_file, state_folder
from smartbatch._fork import on_fork
from smartbatch.errors import ConfigError, StoreError
from smartbatch.jobs.store.database import Database
from smartbatch.jobs.store.facts import FactTable
from smartbatch.jobs.store.items import ItemTable
from smartbatch.jobs.store.job_acts import ControlTable, JobActs
from smartbatch.jobs.store.job_overview import JobOverview
from smartbatch.jobs.store.jobs import JobTable
from smartbatch.jobs.store.leases import Counted, FileLocks, LeaseTable, Owner, OwnerLocks
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.jobs.store.summaries import SummaryTable
from smartbatch.setting import revealed

_SERVERS = ("postgresql://", "postgres://")
_KEYWORD_FORM = re.compile(
    r"\s*(host|hostaddr|port|dbname|user|password|passfile|service|options|sslmode)\s*=|.*\bpassword\s*=",
    re.S,
)
"""An address as libpq also takes it, such as ``host=db.example dbname=jobs``."""


class SqlStore:
    """Durable jobs. Safe to use from several threads and, with others like it, several processes.

    Args:
        database: where it is.
        locks: of those who own jobs.
        spool: the folder for files on their way.
        wall: Unix seconds, for what needs no agreement between machines.
        rng: random numbers for ids of owners.
        counted: called with a job's id and what was counted of it, after each commit that stores results.

    Attributes:
        place: where it is, for people: a path or a DSN without its password.
        jobs, leases, items, shards, facts, summaries, controls, acts: its parts, each with the verbs of some
            tables.
        overview: what a page shows of many jobs.
    """

    def __init__(
        self,
        database: Database,
        locks: OwnerLocks,
        spool: str,
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
        self.jobs = JobTable(database, self.leases, self._owner)
        self.overview = JobOverview(database, self.jobs)
        self.items = ItemTable(database, self.leases)
        self.shards = ShardTable(database, self.leases)
        self.facts = FactTable(database, self.leases)
        self.summaries = SummaryTable(database)
        self.controls = ControlTable(database)
        self.acts = JobActs(database)
        on_fork(self)
        try:
            database.open()
        except BaseException:
            database.close()
            raise

    @property
    def spool(self) -> str:
        """A folder of this store, on the local disk, for files on their way; this user's alone, mode 0700."""
        try:
            own_folder(self._spool)
        except OSError as error:
            raise StoreError(
                f"the folder {self._spool} cannot be made ({error.strerror}): files on their way to and from"
                " the provider lie there; make room for it, or name another store"
            ) from None
        return self._spool

    def require_folders(self) -> str:
        """Make the folders that jobs need, where they are not there; return that for files on their way.

        Raises:
            StoreError: one cannot be made, or is another user's.
        """
        self._owner.require_folder()
        return self.spool

    def give_up(self) -> None:
        """Have whatever waits for the database fail at once: it does not answer, and the process is to end.

        What is owned is released when the process has ended, or its leases are over.
        """
        self._db.give_up()

    def close(self) -> None:
        """Release everything held and close. May be called twice."""
        self._owner.leave()
        self._db.close()

    def abandon(self) -> None:
        """In a forked child: forget connections, locks and leases without touching the parent's.

        In the process that opened it, leave it as a killed process would.
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
    """Open the store at ``place``, and make it when it is not there.

    Args:
        place: a path, or ``sqlite:///path``; or ``postgresql://…`` for several machines, where
            ``?schema=name`` says which of the database's schemas (default ``smartbatch``). ``None`` is
            :func:`default_place`.
        wall: Unix seconds.
        rng: random numbers for owners' ids.
        counted: as for :class:`SqlStore`.
        database: further arguments of the database, in tests.

    Raises:
        StoreError: it cannot be used; the text says why and what to do, and never the password.
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
        return SqlStore(server, SessionLocks(server), spool, wall=wall, rng=rng, counted=counted)
    from smartbatch.jobs.store.sqlite import SqliteDatabase

    spool = f"{place}.spool"
    file = SqliteDatabase(place, wall=wall, **database)
    locks = FileLocks(os.path.join(spool, "owners"))
    return SqlStore(file, locks, spool, wall=wall, rng=rng, counted=counted)


def is_server(place: str) -> bool:
    """Whether a place is the address of a server, and not a file."""
    return place.startswith(_SERVERS)


def resolved_place(place: str | None) -> str:
    """Return the address of a server as it is, and else the path of the file that is meant here and now.

    Raises:
        StoreError: no file can have the name, or it is the address of another kind of server.
        ConfigError: it is the address of a server in another form.
    """
    place = revealed(place or default_place())
    if "\0" in place:
        raise StoreError("the store cannot be used: its name contains a NUL character; name another file")
    if is_server(place):
        return place
    if _KEYWORD_FORM.match(place):  # a file of that name would show the password
        raise ConfigError(
            "store: the address of a PostgreSQL server is written as a URL, such as "
            "postgresql://user:password@host:5432/database?schema=smartbatch, with special characters "
            "written as %XX"
        )
    # sqlite:///relative, sqlite:////absolute or a plain path
    path = place.removeprefix("sqlite:///")
    if "://" in path:  # another kind of server: a file of that name would show the password
        raise StoreError(
            "the store cannot be used: its address is none of sqlite:///FILE, postgresql://HOST/DATABASE, or "
            "the path of a file"
        )
    return resolved_file(path)


def check_place(place: str) -> None:
    """Check the name of a store, without opening it.

    Raises:
        ConfigError, StoreError: as :func:`open_store`, as far as the name and the installed packages say.
    """
    if is_server(address := resolved_place(place)):
        Address.of(address)


def default_place() -> str:
    """Return the path of the store of a user who names none."""
    return os.path.join(state_folder(), "jobs.db")
