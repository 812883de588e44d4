"""The store of jobs on an SQL database.

Rules of all operations:

- A method is one transaction, unless it says otherwise. What it returned from is on disk. An error at a
  commit is looked up, never guessed.
- Every write to a job names the writer's :class:`~smartbatch.jobs.records.JobLease`. When another process
  took the job over meanwhile, nothing is written and :class:`~smartbatch.jobs.records.LeaseLost` is raised.
- A change of a shard's state is guarded by the state it was read in: the second writer gets ``LeaseLost``.
- Pages of requests and results end early where these are large, because some megabytes are read at a time,
  and at gaps; only behind the last one there is none.
- A job becomes ``DONE`` in the transaction that stores its last result.
- Every method may raise StoreError: the database cannot be used, and nothing was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, TypeAlias

from smartbatch._fork import on_fork
from smartbatch.errors import InvalidRequest, JobNotFound, StoreError
from smartbatch.jobs.records import (
    ClaimedItem,
    IncidentRow,
    ItemSize,
    ItemState,
    JobLease,
    JobRow,
    JobState,
    LeaseLost,
    NewItem,
    NewResult,
    NewShard,
    OpenItem,
    ResultRow,
    ShardItem,
    ShardPayload,
    ShardRow,
    ShardState,
    StoredCounts,
    StoredResults,
    UnsettledItem,
)
from smartbatch.jobs.store import job_table, result_table, shard_table
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.checks import private_folder
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.owners import OwnerLocks, OwnerTable
from smartbatch.jobs.store.rows import (
    bare,
    encoded,
    first_of,
    incident_row,
    job_row,
    position,
    shard_row,
)

__all__ = ["Counted", "SqlStore"]

LONGEST_KEY = 1_024
"""Bytes of a job's key; an index of PostgreSQL takes 2,704."""
PAGE_DROPPED = 10_000
"""Items that a cancelled job ends in one transaction."""
TURNAROUNDS_KEPT = 500
"""Batches of a model that are remembered; a forecast looks at a hundred."""
TRIM_EVERY = 50
"""Batches after which older ones are deleted."""
_OWN_METHODS = {ShardState.SETTLED: "settle", ShardState.DEAD: "discard or fail_shard"}
Counted: TypeAlias = Callable[[str, StoredCounts], object]
"""Told what was counted of a job, by the job's id."""
_UNSENT = (ItemState.OPEN, ItemState.REALTIME)
_TAKE_RESULTS = (ShardState.INGESTING, ShardState.DEAD)


def _ignore(_: str, __: StoredCounts) -> None:
    """Tell nobody."""


class SqlStore:
    """Durable jobs. Safe to use from several threads and, with others like it, several processes.

    Args:
        database: where it is.
        locks: of those who own jobs.
        spool: the folder for files on their way.
        wall: Unix seconds, for what needs no agreement between machines.
        rng: random numbers for ids of owners.

    Attributes:
        place: where it is, for people: a path or a DSN without its password.
        counted: called with a job's id and what was counted of it, after each commit that stores results.
    """

    def __init__(
        self, database: Database, locks: OwnerLocks, spool: str, *, wall: Callable[[], float], rng: Random
    ) -> None:
        self._db = database
        self.counted: Counted = _ignore
        self._spool = spool
        self._owner = OwnerTable(database, locks, wall=wall, rng=rng)
        self.place = database.place
        on_fork(self)
        try:
            database.open()
        except BaseException:
            database.close()
            raise

    @property
    def spool(self) -> str:
        """A folder of this store, on the local disk, for files on their way; mode 0700."""
        try:
            private_folder(self._spool)
        except OSError as error:
            raise StoreError(
                f"the folder {self._spool} cannot be made ({error.strerror}): files on their way to and from"
                " the provider lie there; make room for it, or name another store"
            ) from None
        return self._spool

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

    @contextmanager
    def _leased(self, lease: JobLease) -> Iterator[tuple[Transaction, int]]:
        """Begin a write, lock the job of ``lease`` for it, and return the job's number.

        Raises:
            LeaseLost: somebody else owns it now, or nobody.
        """
        with self._db.writing() as tx:
            found = tx.row(sql.JOB_OF_LEASE, lease.job_id, lease.epoch, self._owner.own)
            if found is None:
                raise LeaseLost(
                    f"job {lease.job_id} was taken over or given back since lease {lease.epoch};"
                    " nothing was written"
                )
            yield tx, int(found[0])
        self.tell_counts(lease.job_id, tx.counted)

    def tell_counts(self, job_id: str, counted: Iterable[StoredCounts]) -> None:
        """Tell what transactions counted of a job, after their commit."""
        for counts in counted:
            self.counted(job_id, counts)

    # -- jobs ------------------------------------------------------------------------------------------------

    def accept(
        self, job: JobRow, items: Iterable[NewItem], *, digest: Callable[[], bytes] | None = None
    ) -> tuple[JobRow, bool]:
        """Store a job and its items; return its row, and whether it is new.

        ``items`` is read lazily and once. An empty one makes a job that is done. What ``items`` raises is
        raised, and nothing is kept. The cases, in order:

        1. The key, or the id, is known: the job that has it is returned, and ``items`` are not read.
        2. All items fit into one page: one transaction stores them and the job.
        3. More of them are stored page by page, in a transaction each. They belong to no job until the last
           transaction makes one of them; where the process is killed before, nothing of the job exists, and
           another owner deletes the items.
        4. Another process stored the same key or id meanwhile: its job is returned, and the items go.

        Args:
            digest: called for the job's digest once all items were read; stored instead of ``job.digest``.

        Raises:
            InvalidRequest: the key is too long.
        """
        if len(encoded(job.key) or b"") > LONGEST_KEY:
            raise InvalidRequest(f"a job's key has at most {LONGEST_KEY:,} bytes", field="key")
        if (found := job_table.known(self._db, job)) is not None:
            return found, False
        return job_table.store(self._db, job, items, digest, self._owner.enter)

    def job(self, id_or_key: str) -> JobRow | None:
        """Return a job by its id, else by its key."""
        may_be_id = id_or_key.isascii() and id_or_key.isprintable()  # a text column refuses some other keys
        found = self._db.row(sql.JOB_BY_ID, id_or_key) if may_be_id else None
        found = found or self._db.row(sql.JOB_BY_KEY, encoded(id_or_key))
        return None if found is None else job_row(found)

    def jobs(self, *, unfinished: bool = False, limit: int = 1000) -> list[JobRow]:
        """Return jobs, newest first."""
        return [job_row(row) for row in self._db.rows(sql.JOBS_UNFINISHED if unfinished else sql.JOBS, limit)]

    def forget(self, job_id: str) -> None:
        """Delete a finished job with everything it has, and give the room back.

        The job itself goes in one transaction; its items follow in several.

        Raises:
            JobNotFound: there is none.
            StoreError: the job is not finished, so forgetting it could lose paid answers.
        """
        with self._db.writing() as tx:
            found = tx.row(sql.JOB_LOCKED, job_id)
            if found is None:
                raise JobNotFound(
                    f"the store {self.place} has no job {job_id!r}; it may be forgotten already"
                )
            no, state = int(found[0]), found[1]
            if state != JobState.DONE.value:
                raise StoreError(
                    f"job {job_id} is not finished: forgetting it could lose answers that are paid for;"
                    " cancel it and let it end first"
                )
            for statement in (*sql.DROP_JOB, *sql.DROP_SHARDS):
                tx.change(statement, no)
            tx.change(sql.DROP_INCIDENTS, job_id)
            tx.change(sql.MARK_INCOMPLETE, no, "")  # where this process is killed, the next owner goes on
        job_table.delete_items(self._db, no)
        self._db.give_back()

    def request_cancel(self, job_id: str) -> None:
        """Ask the job's owner to cancel it; needs no lease."""
        no = job_table.job_number(self._db, job_id)
        with self._db.writing() as tx:
            tx.change(sql.CANCEL_REQUESTED, no)

    def unhold(self, job_id: str) -> None:
        """Make a held job active again; needs no lease."""
        no = job_table.job_number(self._db, job_id)
        with self._db.writing() as tx:
            tx.change(sql.UNHOLD, no)

    def note(self, lease: JobLease, note: str | None, *, hold: bool = False) -> None:
        """Say what a job waits for; with ``hold`` it waits for a person."""
        with self._leased(lease) as (tx, job):
            tx.change(sql.HOLD if hold else sql.NOTE, encoded(note), job)

    # -- ownership and budget --------------------------------------------------------------------------------

    def claimable(self, *, limit: int = 100) -> list[JobRow]:
        """Return jobs with something left to do that nobody alive owns: unfinished ones, and finished ones
        with shards to clean up. Those this store object owns already are left out."""
        return self._owner.claimable(limit)

    def claim(self, job_id: str, seconds: float, *, unknown: bytes | None = None) -> JobLease | None:
        """Take a job for ``seconds``. The cases, in order:

        1. There is no such job, or another process is claiming it now: ``None``.
        2. This store object owns it already: ``None``.
        3. Somebody alive owns it: ``None``. Alive is whose lease runs by the database's clock, unless the
           system knows that the process has died.
        4. Else it is taken, with an epoch that makes every older lease invalid. Items found ``IN_FLIGHT`` are
           set back to ``REALTIME`` with one try more, and an incident ``maybe_billed`` is written for them.

        Args:
            unknown: the body of the result with which items found ``IN_FLIGHT`` end as failed instead, for a
                job that sends nothing again whose outcome is unknown.
        """
        me = self._owner.enter()
        with self._db.writing() as tx:
            found = tx.row(sql.OWNER_OF_JOB, job_id)
            if found is None:
                return None
            no, _, owner, lease_until = found
            now = self._db.now()
            if owner == me or self._owner.holds(owner, lease_until, now):
                return None
            [(epoch,)] = tx.rows(sql.CLAIM, me, now + seconds, no)
            lease = JobLease(job_id, int(epoch))
            result_table.end_in_flight(tx, lease, no, unknown, now)
        self.tell_counts(job_id, tx.counted)
        return lease

    def renew(self, leases: Collection[JobLease], seconds: float) -> list[JobLease]:
        """Prolong leases; return those that are still held."""
        if not leases:
            return []
        me = self._owner.enter()
        until = self._db.now() + seconds
        with self._db.writing() as tx:
            # in one order, so that two who renew never wait for each other
            order = sorted(leases, key=lambda lease: lease.job_id)
            return [lease for lease in order if tx.change(sql.RENEW, until, lease.job_id, lease.epoch, me)]

    def release(self, lease: JobLease) -> None:
        """Give a job back, so that another process may take it at once. Never raises ``LeaseLost``."""
        with self._db.writing() as tx:
            tx.change(sql.RELEASE, lease.job_id, lease.epoch, self._owner.own)

    def reserve(self, lease: JobLease, usd: float) -> None:
        """Reserve ``usd`` of the job's budget before they may be spent; negative ones are released.

        By this and by :meth:`plan` the cost and what is reserved never exceed the budget together, as long as
        nothing costs more than was reserved for it. After a crash a reservation stays, because nobody knows
        what was billed.

        Raises:
            OverJobBudget: the budget has no room for it.
        """
        with self._leased(lease) as (tx, job):
            job_table.reserve(tx, job, usd)

    # -- items and shards ------------------------------------------------------------------------------------

    def open_items(
        self, job_id: str, *, state: ItemState = ItemState.OPEN, limit: int = 100_000
    ) -> list[OpenItem]:
        """Return items in ``state``, in order."""
        return job_table.items_in(self._db, job_table.job_number(self._db, job_id), state, limit)

    def bodies(self, job_id: str, positions: Collection[int]) -> dict[int, bytes]:
        """Return requests of a job by their positions in it; ask for a few hundred at a time."""
        return job_table.bodies(self._db, job_table.job_number(self._db, job_id), positions)

    def shard(self, shard_id: str) -> ShardRow | None:
        """Return a shard."""
        return next(map(shard_row, self._db.rows(sql.SHARD_BY_ID, shard_id)), None)

    def shard_with_nonce(self, nonce: str) -> ShardRow | None:
        """Return the shard with that nonce."""
        return next(map(shard_row, self._db.rows(sql.SHARD_BY_NONCE, nonce)), None)

    def shards(self, job_id: str, *, states: Collection[ShardState] = tuple(ShardState)) -> list[ShardRow]:
        """Return a job's shards by number."""
        job = job_table.job_number(self._db, job_id)
        rows = self._db.rows(sql.SHARDS_OF_JOB, job, [state.value for state in states])
        return [shard_row(row) for row in rows]

    def shards_in_scope(self, scope: str, *, states: Collection[ShardState]) -> list[ShardRow]:
        """Return shards of all jobs of an account."""
        rows = self._db.rows(sql.SHARDS_OF_SCOPE, scope, [state.value for state in states])
        return [shard_row(row) for row in rows]

    def payloads(self, shard_id: str, *, after: int = -1, limit: int = 1000) -> list[ShardPayload]:
        """Return up to ``limit`` requests of a shard by position, from the one after ``after``."""
        return shard_table.payloads(self._db, shard_id, after, limit)

    def measures(self, shard_id: str) -> dict[int, ItemSize]:
        """Return the size of the item at each position of the shard."""
        return shard_table.measures(self._db, shard_id)

    def items_at(self, shard_id: str, positions: Collection[int]) -> dict[int, ShardItem]:
        """Return the item at each position of the shard that exists."""
        return shard_table.items_at(self._db, shard_id, positions)

    def plan(self, lease: JobLease, shard: NewShard) -> ShardRow:
        """Put open items into a new shard, ``PLANNED``, and reserve the most it can cost.

        Raises:
            LeaseLost: also when one of the items is not open.
            OverJobBudget: the job's budget has no room for it.
            ValueError: it has no item, or one twice.
        """
        if not shard.items or len(set(shard.items)) != len(shard.items):
            raise ValueError("a shard has at least one item, and each once")
        with self._leased(lease) as (tx, job):
            job_table.reserve(tx, job, shard.reserved)
            return shard_table.plan(tx, job, shard)

    def advance(self, lease: JobLease, shard: ShardRow, to: ShardState, **changes: Any) -> ShardRow:
        """Move a shard to a state that may follow its own (or the same), with other columns changed.

        The cases, in order:

        1. The state is entered by another method, together with the items: ValueError.
        2. The transition is not in the table, or a column is not one that changes: ValueError.
        3. The job or the shard has moved on since it was read: LeaseLost.
        4. Else state and columns are written; a change of ``reserved`` changes the job's as well, and is
           never refused: what a shard may have cost, it may have cost.

        Args:
            shard: as it was read; its state is the guard.
            changes: columns of :class:`ShardRow` by name.
        """
        if to is not shard.state:
            if to in _OWN_METHODS:
                raise ValueError(f"a shard becomes {to.value} by {_OWN_METHODS[to]}, with its items")
            if shard.state is ShardState.READY and to is ShardState.SUBMITTING:
                raise ValueError("a shard becomes submitting by mark_submitting")
        with self._leased(lease) as (tx, job):
            return shard_table.move(tx, job, shard, to, changes)

    def mark_submitting(
        self, lease: JobLease, shard: ShardRow, *, exclusive: bool, **changes: Any
    ) -> ShardRow | None:
        """Move ``READY`` to ``SUBMITTING``: after it, and never before, the one create is sent.

        Args:
            exclusive: in the same transaction, refuse (return ``None``) while another shard of the scope is
                ``SUBMITTING``, ``UNCERTAIN`` or ``PROVISIONAL``.
        """
        if shard.state is not ShardState.READY:
            raise ValueError(f"only a ready shard can be submitted, and this one is {shard.state.value}")
        with self._leased(lease) as (tx, job):
            if exclusive:
                tx.lock(f"scope {shard.scope}")
                [(unresolved,)] = tx.rows(sql.UNRESOLVED_IN_SCOPE, shard.scope, shard.id)
                if unresolved:
                    return None
            return shard_table.move(tx, job, shard, ShardState.SUBMITTING, changes)

    def discard(
        self,
        lease: JobLease,
        shard: ShardRow,
        *,
        items: ItemState,
        tried: bool,
        note: str,
        at: float,
        maybe_billed: bool = False,
    ) -> ShardRow:
        """End a shard as ``DEAD`` and free its items.

        Args:
            items: ``OPEN`` or ``REALTIME``: what its items without a result become.
            tried: count it as a try of theirs.
            at: Unix seconds.
            maybe_billed: what was reserved for it stays so: nobody can say that it was not run.
        """
        if items not in _UNSENT:
            raise ValueError("the items of a discarded shard become open or real time")
        with self._leased(lease) as (tx, job):
            changes = {"note": note, "died_at": at, "reserved": shard.reserved if maybe_billed else 0.0}
            discarded = shard_table.move(tx, job, shard, ShardState.DEAD, changes)
            shard_table.free_items(tx, shard, items, tried=tried)
            return discarded

    def fail_shard(self, lease: JobLease, shard: ShardRow, body: bytes, *, note: str, at: float) -> ShardRow:
        """End a shard as ``DEAD`` and its items without a result as failed with ``body``."""
        changes = {"note": note, "died_at": at, "reserved": 0.0}
        with self._leased(lease) as (tx, job):
            failed = shard_table.move(tx, job, shard, ShardState.DEAD, changes)
            left = shard_table.left(tx, shard)
            result_table.end_alike(tx, job, left, NewResult(-1, "failed", body, cost=0.0), at)
            return failed

    # -- results of a shard ----------------------------------------------------------------------------------

    def ingest(
        self, lease: JobLease, shard: ShardRow, results: Sequence[NewResult], *, at: float
    ) -> StoredResults:
        """Store up to a thousand results of a shard. The cases, in order:

        1. The shard is neither ``INGESTING`` nor ``DEAD``, or an item was never in it: ValueError.
        2. The shard has moved on since it was read: LeaseLost.
        3. The item has no result: this one is kept, and counted.
        4. It has the same one, by its digest: nothing, because results may be read twice.
        5. It has another one: that stays, and the item is returned as doubled.
        6. A result that is not final (``again``, ``unrun``) is kept as a verdict until the shard is settled.

        Results of a ``DEAD`` shard are of its orphan: paid answers are used for items that are still open.
        """
        if shard.state not in _TAKE_RESULTS:
            raise ValueError(f"a shard that is {shard.state.value} has no results to take")
        with self._leased(lease) as (tx, job):
            if tx.row(sql.SHARD_STATE, shard.id, job) != (shard.state.value, shard.no):
                raise LeaseLost(f"shard {shard.id} is no longer {shard.state.value}; nothing was written")
            items = result_table.item_states(tx, job, [result.ix for result in results])
            result_table.check_members(tx, shard, items, results)
            final, doubled = result_table.keep(tx, job, items, results, at)
            if shard.state is ShardState.INGESTING:
                doubled += result_table.keep_verdicts(tx, job, results, final)
            return StoredResults(tuple(final), tuple(doubled))

    def unsettled(self, shard_id: str) -> list[UnsettledItem]:
        """Return the items of a shard that have no result, by position."""
        return result_table.unsettled(self._db, shard_id)

    def settle(
        self,
        lease: JobLease,
        shard: ShardRow,
        *,
        opened: Collection[int] = (),
        realtime: Collection[int] = (),
        finals: Sequence[NewResult] = (),
        at: float,
        **changes: Any,
    ) -> ShardRow:
        """End a shard as ``SETTLED``. Every item without a result goes one of three ways:

        1. into a new shard, with one try more (``opened``);
        2. into real time, with one try more (``realtime``);
        3. it ends with a result (``finals``).

        Args:
            changes: as in :meth:`advance`; ``reserved`` is 0 unless it is given: results say what it cost.

        Raises:
            ValueError: an item without a result goes none of these ways, or an item goes two.
        """
        if not all(result.final for result in finals):
            raise ValueError("results that settle a shard are final")
        ends = {result.ix for result in finals}
        if len(ends) + len(set(opened)) + len(set(realtime)) != len(ends.union(opened, realtime)):
            raise ValueError("an item of a settled shard goes one way only")
        changes = {"reserved": 0.0, **changes, "settled_at": at}
        with self._leased(lease) as (tx, job):
            settled = shard_table.move(tx, job, shard, ShardState.SETTLED, changes)
            shard_table.free_these(tx, job, shard, ItemState.OPEN, opened)
            shard_table.free_these(tx, job, shard, ItemState.REALTIME, realtime)
            if finals:
                items = result_table.item_states(tx, job, sorted(ends))
                result_table.check_members(tx, shard, items, finals)
                result_table.keep(tx, job, items, finals, at)
            left = shard_table.left(tx, shard)
            if left:
                raise ValueError(
                    f"{len(left)} items of shard {shard.id} go nowhere: row {position(left[0])}, …"
                )
            result_table.drop_verdicts(tx, shard)
            return settled

    # -- results in real time --------------------------------------------------------------------------------

    def claim_realtime(self, lease: JobLease, limit: int) -> list[ClaimedItem]:
        """Turn ``REALTIME`` items to ``IN_FLIGHT`` and return them: only after that are they sent."""
        with self._leased(lease) as (tx, job):
            return job_table.claim_realtime(tx, job, limit)

    def answer(
        self, lease: JobLease, results: Sequence[NewResult], *, at: float, freed: float = 0.0
    ) -> StoredResults:
        """Store what came of ``IN_FLIGHT`` items. What it counted is told by the caller, with no lock held,
        by :meth:`tell_counts`.

        ``again`` makes them ``REALTIME`` with one try more, ``unrun`` without; what those cost all
        the same is charged.

        Args:
            freed: USD that were reserved for them and no longer are.

        Raises:
            ValueError: the job has no such item.
        """
        with self._leased(lease) as (tx, job):
            items = result_table.item_states(tx, job, [result.ix for result in results])
            foreign = {result.ix for result in results} - items.keys()
            if foreign:
                raise ValueError(f"job {lease.job_id} has no item {min(foreign)}")
            final, doubled = result_table.keep(tx, job, items, results, at)
            result_table.send_again(tx, job, results)
            in_flight = ItemState.IN_FLIGHT.value
            job_table.charge(tx, job, [r for r in results if not r.final and items[r.ix][0] == in_flight])
            job_table.reserve(tx, job, -freed)
            counts, tx.counted = tuple(tx.counted), []
            return StoredResults(tuple(final), tuple(doubled), counts)

    def drop_unsent(self, lease: JobLease, body: bytes, *, at: float) -> int:
        """End every ``OPEN`` and ``REALTIME`` item as cancelled with ``body``; return how many.

        Some thousands a transaction: ``OPEN`` ones first, then those for real time. Where it is interrupted,
        those already ended stay so, and the next call goes on. Items in shards or in flight are left alone.
        """
        cancelled = NewResult(-1, "cancelled", body, cost=0.0)
        dropped, count = 0, PAGE_DROPPED
        while count == PAGE_DROPPED:
            with self._leased(lease) as (tx, job):
                page = first_of(job), first_of(job + 1), PAGE_DROPPED
                unsent = [tx.rows(sql.WAITING, state.value, *page) for state in _UNSENT]
                numbers = [row[0] for rows in unsent for row in rows][:PAGE_DROPPED]
                result_table.end_alike(tx, job, numbers, cancelled, at)
            count = len(numbers)
            dropped += count
        return dropped

    def results(self, job_id: str, *, after: int = -1, limit: int = 1000) -> list[ResultRow]:
        """Return up to ``limit`` results by the item's position, from the one after ``after``."""
        return result_table.by_position(self._db, job_table.job_number(self._db, job_id), after, limit)

    def fresh(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[ResultRow]:
        """Return up to ``limit`` results by ``seq``, from the one after ``after``; none is ever skipped."""
        return result_table.by_arrival(self._db, job_table.job_number(self._db, job_id), after, limit)

    # -- incidents, facts and turnarounds --------------------------------------------------------------------

    def add_incident(self, lease: JobLease, incident: IncidentRow) -> bool:
        """Keep an incident; False when the same kind, shard and detail is known."""
        with self._leased(lease) as (tx, _):
            return result_table.add_incident(tx, incident)

    def incidents(self, job_id: str | None = None) -> list[IncidentRow]:
        """Return incidents, oldest first."""
        rows = self._db.rows(sql.INCIDENTS) if job_id is None else self._db.rows(sql.INCIDENTS_OF, job_id)
        return [incident_row(row) for row in rows]

    def claimed_batches(self, scope: str, batch_ids: Collection[str]) -> set[str]:
        """Return those ids that belong to a shard of this store, or that one is proving to be its own.

        What a dead shard suspects to be its orphan is not claimed: a shard that looks for its batch comes
        first. Nor is what another shard found foreign to itself, for it may be a third one's.
        """
        asked = list(batch_ids)
        rows = self._db.rows(sql.BATCHES_OWN, scope, asked, asked) if asked else []
        return {batch_id for row in rows for batch_id in row}.intersection(asked)

    def observe_turnarounds(self, model: str, seen: Sequence[tuple[int, float, float]]) -> None:
        """Remember size, seconds and time of batches, for forecasts."""
        with self._db.writing() as tx:
            rows = [tx.rows(sql.NEW_TURNAROUND, model, *each) for each in seen]
            if any(no % TRIM_EVERY == 0 for [(no,)] in rows):
                tx.change(sql.TRIM_TURNAROUNDS, model, model, TURNAROUNDS_KEPT)

    def turnarounds(self, model: str, *, limit: int = 100) -> list[tuple[int, float, float]]:
        """Return size, seconds and time of the latest batches of ``model``, newest first."""
        return [(size, seconds, at) for size, seconds, at in self._db.rows(sql.TURNAROUNDS, model, limit)]

    def remember(self, key: str, value: Any) -> None:
        """Keep a small JSON-able fact, such as a learned limit."""
        with self._db.writing() as tx:
            tx.change(sql.REMEMBER, encoded(key), bare(value))

    def recall(self, key: str) -> Any:
        """Return a fact, or ``None``."""
        found = self._db.row(sql.RECALL, encoded(key))
        return None if found is None else json.loads(found[0])
