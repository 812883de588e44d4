"""The tables ``job`` and ``incomplete_job``; the latter lists jobs that are being stored or deleted."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from attrs import evolve, frozen

from smartbatch.core.routing.choice import Decision
from smartbatch.errors import InvalidRequest, JobNotFound, StoreError
from smartbatch.jobs.records import (
    Action,
    ItemState,
    JobPolicy,
    JobRow,
    JobState,
    NamedPlace,
    NewItem,
)
from smartbatch.jobs.store import outcomes, remote_objects, summaries, uploads
from smartbatch.jobs.store.database import (
    DAMAGES,
    PAGE_BYTES,
    REMEMBER_FACT,
    Database,
    Reader,
    Transaction,
    ascii_json,
    damaged,
    decoded,
    encoded,
    number,
    record_text,
)
from smartbatch.jobs.store.job_actions import record_action
from smartbatch.jobs.store.job_files import JobFiles
from smartbatch.jobs.store.leases import LeaseTable, Owner, leased
from smartbatch.jobs.store.leftovers import NAMED_ITEM_PREFIX
from smartbatch.jobs.store.outcomes import delete_items, job_number
from smartbatch.jobs.store.schema import JOBS, SHARD_COLUMNS, job_row, shard_row

MAX_KEY_BYTES = 1_024  # PostgreSQL allows 2,704 in an index entry
PAGE_ITEMS = 5_000
"""Items are stored in pages of at most this size, or of :data:`.database.PAGE_BYTES`, so that a job of any
size needs little memory and blocks other writers only briefly.
"""
MAX_JOINED_ITEMS = 1_000  # per job; named items share jobs, since each job has a lease and a thread
PAGE_NAMES = 500  # names looked up per query
Digest = Callable[[], bytes] | None  # returns the job's digest once all items have been read
_BY_ID = JOBS + "WHERE j.id = ?"
_BY_KEY = JOBS + "WHERE j.user_key = ?"
_SELECT_JOINABLE = """SELECT no, total, seq FROM job
    WHERE id = ? AND state = {active} AND cancel_requested = 0 AND total < ?{for_update}"""
_SELECT_EXTENDABLE = (
    "SELECT no, total FROM job WHERE id = ? AND digest = ? AND cancel_requested = 0{for_update}"
)
_EXTEND_JOB = """UPDATE job SET state = CASE WHEN state = {done} THEN {active} ELSE state END,
    finished_at = NULL, total = total + ?, digest = ?, policy = ? WHERE no = ?"""


@frozen
class JobTable:
    db: Database
    leases: LeaseTable
    owner: Owner
    files: JobFiles

    def accept(
        self,
        job: JobRow,
        items: Iterable[NewItem],
        *,
        digest: Digest = None,
        policy: Callable[[], JobPolicy] | None = None,
        decision: Decision | None = None,
        uploaded: Callable[[], Collection[str]] = tuple,
    ) -> tuple[JobRow, bool]:
        """Store a job and its items; return its row, and whether it is new.

        ``items`` is read lazily and once; if it is empty, the job is done. An exception it raises is raised
        here, and nothing is stored.

        Args:
            digest: called once all items have been read; returns the value that replaces ``job.digest``.
            policy: called at that time, outside any transaction; returns the value that replaces
                ``job.policy``.
            decision: the route decision of a new job, stored along with it.
            uploaded: called at that time; returns the keys of the files that the job uploads.

        Raises:
            InvalidRequest: the key is too long.
            StoreError: this process lost its lock, and another one is deleting the job's items.
        """
        if len(encoded(job.key) or b"") > MAX_KEY_BYTES:
            raise InvalidRequest(f"a job's key can have at most {MAX_KEY_BYTES:,} bytes", field="key")
        # 1. the key or the id is known: return that job, without reading the items
        if (found := _known(self.db, job)) is not None:
            return found, False
        pages = _pages_of(items)
        page, last = next(pages)
        # 2. if all items fit into one page, one transaction stores them and the job. More items are stored
        # page by page and belong to no job until the last transaction creates it; if the process is killed
        # before that, another owner deletes them
        owner, early, total = "", 0, 0
        if not last:
            owner = self.owner.enter()
            early = self.db.write(lambda tx: _new_number(tx, owner))
        created = False
        try:
            while not last:
                self.db.write(partial(_store_page, early=early, owner=owner, job=job, start=total, page=page))
                total += len(page)
                page, last = next(pages)
            if policy is not None:
                job = evolve(job, policy=policy())
            # 3. another process may have stored the same key or id in the meantime: return its job and delete
            # the items
            stored, created = self.db.write(
                lambda tx: _store_last(tx, early, owner, job, total, page, digest, decision, uploaded())
            )
        finally:
            if early and not created:
                with contextlib.suppress(StoreError):  # otherwise the next owner deletes them
                    delete_items(self.db, early, owner)
        return stored, created

    def accept_named(
        self,
        job: JobRow,
        items: Iterable[NewItem],
        *,
        join: str | None = None,
    ) -> tuple[JobRow | None, list[NamedPlace]]:
        """Store the items whose names are new, in one transaction.

        They are added to the job ``join`` if it is running and has fewer than :data:`MAX_JOINED_ITEMS` items;
        otherwise they are stored as the new job ``job``.

        Args:
            items: at most one page, each with a unique name.

        Returns:
            The job with the new items (``None`` if there are none), and the place of each item.
        """

        def work(tx: Transaction) -> tuple[JobRow | None, list[NamedPlace]]:
            tx.lock("accept")
            joined = None if join is None else tx.row(_SELECT_JOINABLE, join, MAX_JOINED_ITEMS)
            no, start, seq = joined or (0, 0, 0)
            job_id = job.id if joined is None or join is None else join
            places: list[NamedPlace] = []
            new: list[NewItem] = []
            named = [(item, item.name) for item in items if item.name is not None]
            known = _named_places(tx, [name.text for _, name in named])
            for item, name in named:
                if (place := known.get(name.text)) is None:
                    place = NamedPlace(job_id, start + len(new), name.digest, after=seq)
                    new.append(item)
                places.append(place)
            if not new:
                return None, places
            if joined is None:
                no = _new_number(tx, "")
                _store_items(tx, no, job_id, 0, new)
                return _store_job(tx, no, "", job, None, len(new)), places
            _store_items(tx, no, job_id, start, new)
            tx.change("UPDATE job SET total = total + ? WHERE no = ?", len(new), no)
            [row] = tx.rows(_BY_ID, job_id)
            return job_row(row), places

        return self.db.write(work)

    def extend(
        self,
        job: JobRow,
        items: Sequence[NewItem],
        digest: bytes,
        policy: JobPolicy,
        *,
        at: float,
        uploaded: Collection[str] = (),
    ) -> JobRow | None:
        """Add items to a job in one transaction; a job that was done runs again.

        A new item that is identical to an item with a result gets that result.

        Args:
            job: the job as previously read; its digest must not have changed since.
            digest: digest of the job with the new items.
            uploaded: keys of the files that the job uploads for the new items.

        Returns:
            The changed job; ``None``, with nothing written, if it has been changed or cancelled since.
        """

        def work(tx: Transaction) -> JobRow | None:
            found = tx.row(_SELECT_EXTENDABLE, job.id, job.digest)
            if found is None:
                return None
            no, start = found
            _store_items(tx, no, job.id, start, items)
            tx.change(_EXTEND_JOB, len(items), digest, record_text(policy), no)
            uploads.choose(tx, no, uploaded)
            followers: dict[int, list[int]] = {}
            for ix, item in enumerate(items, start):
                if item.leader is not None:
                    followers.setdefault(number(no, item.leader), []).append(number(no, ix))
            outcomes.end_late_followers(tx, no, followers, at)
            [row] = tx.rows(_BY_ID, job.id)
            return job_row(row)

        return self.db.write(work)

    def get(self, id_or_key: str) -> JobRow | None:
        """Return a job by its id or, if no job has that id, by its key."""
        may_be_id = id_or_key.isascii() and id_or_key.isprintable()  # text columns reject some characters
        found = self.db.row(_BY_ID, id_or_key) if may_be_id else None
        found = found or self.db.row(_BY_KEY, encoded(id_or_key))
        return None if found is None else job_row(found)

    def latest(self, *, unfinished: bool = False, limit: int = 1000) -> list[JobRow]:
        """Return jobs, newest first."""
        those = "WHERE j.state <> {done} " if unfinished else ""
        return [job_row(row) for row in self.db.rows(f"{JOBS}{those}ORDER BY j.no DESC LIMIT ?", limit)]

    def find_named(self, names: Sequence[str]) -> dict[str, NamedPlace]:
        """Return the places of named items, except cancelled ones and those of deleted jobs."""
        places: dict[str, NamedPlace] = {}
        for start in range(0, len(names), PAGE_NAMES):
            places |= _named_places(self.db, names[start : start + PAGE_NAMES])
        return places

    def release(self, places: Mapping[str, NamedPlace]) -> None:
        """Forget the names of items at the given places; a name that has moved to another place is kept."""
        forget = "DELETE FROM fact WHERE name = ? AND value = ?"

        def work(tx: Transaction) -> None:
            for name, place in places.items():
                tx.change(
                    forget,
                    encoded(NAMED_ITEM_PREFIX + name),
                    ascii_json([place.job_id, place.ix, place.digest]),
                )

        self.db.write(work)

    def forget(self, job_id: str, by: str | None = None, *, keep_decision: bool = False) -> None:
        """Delete a finished job with all its data, and reclaim the space.

        What providers still store for it is deleted later, as for other jobs.

        The job itself is deleted in one transaction; its items follow in several.

        Args:
            by: the user to record, if any.
            keep_decision: keep its route decision under its key, with the decisions on lists.

        Raises:
            JobNotFound: the job does not exist.
            StoreError: the job is not finished, so paid answers could be lost.
        """
        no = self.db.write(lambda tx: self._drop(tx, job_id, by, keep_decision))
        delete_items(self.db, no, "")
        self.files.delete(job_id)
        self.db.reclaim()

    def drop_files(self, job_id: str) -> None:
        """Delete the files of a job that was not stored after all. Never raises."""
        with contextlib.suppress(StoreError):  # otherwise cleaning deletes them
            if os.path.isdir(self.files.folder(job_id)) and self.get(job_id) is None:
                self.files.delete(job_id)

    def _drop(self, tx: Transaction, job_id: str, by: str | None, keep_decision: bool) -> int:
        found = tx.row("SELECT no, state, finished_at FROM job WHERE id = ?{for_update}", job_id)
        if found is None:
            raise JobNotFound(
                f"the store {self.db.place} has no job {job_id!r}; it may have been deleted already"
            )
        no, state, finished_at = int(found[0]), found[1], found[2]
        if state != JobState.DONE.value:
            raise StoreError(
                f"job {job_id} is not finished, and deleting it could lose paid answers; cancel it and wait"
                " until it is done"
            )
        if keep_decision:
            summaries.keep_decision(tx, no)
        for row in tx.rows(f"SELECT {SHARD_COLUMNS} FROM shard WHERE job = ? AND cleaned_up = 0", no):
            remote_objects.record(tx, no, shard_row(row))
        remote_objects.job_deleted(tx, no, finished_at)
        uploads.job_deleted(tx, no, finished_at)
        for table, column in (
            ("job", "no"),
            ("job_params", "no"),
            ("shard_items", "job"),
            ("shard", "job"),
            ("decision", "job"),
        ):
            tx.change(f"DELETE FROM {table} WHERE {column} = ?", no)
        tx.change("DELETE FROM incident WHERE job_id = ?", job_id)
        # if this process is killed, the next owner continues
        tx.change("INSERT INTO incomplete_job (no, owner) VALUES (?, ?)", no, "")
        if by is not None:
            record_action(tx, Action(at=self.db.now(), by=by, name="forget", target=job_id, job_id=job_id))
        return no

    def unhold(self, job_id: str) -> None:
        """Make a held job active again, without a lease."""
        no = job_number(self.db, job_id)
        self.db.change("UPDATE job SET state = {active}, note = NULL WHERE no = ? AND state = {held}", no)

    @leased
    def note(self, tx: Transaction, job: int, note: str | None, *, hold: bool = False) -> None:
        """Store what a job is waiting for. With ``hold``, it is held until a person resumes it."""
        held = ", state = {held} WHERE state <> {done} AND" if hold else " WHERE"
        tx.change(f"UPDATE job SET note = ?{held} no = ?", encoded(note), job)

    @leased
    def reserve(self, tx: Transaction, job: int, usd: float) -> None:
        """Reserve ``usd`` of the job's budget before it is spent; a negative amount is released.

        With :meth:`.ShardTable.plan`, this keeps the sum of cost and reservations within the budget, as long
        as nothing costs more than was reserved for it. Reservations survive a crash, because the billed
        amount is unknown.

        Raises:
            OverJobBudget: the budget has no room for it.
        """
        outcomes.reserve(tx, job, usd)


def _known(reader: Reader, job: JobRow) -> JobRow | None:
    found = reader.row(_BY_KEY, encoded(job.key)) if job.key is not None else None
    found = found or reader.row(_BY_ID, job.id)
    return None if found is None else job_row(found)


def _named_places(reader: Reader, names: Sequence[str]) -> dict[str, NamedPlace]:
    found: dict[str, tuple[str, int, str]] = {}
    marks = ", ".join("?" * len(names))
    facts = f"SELECT name, value FROM fact WHERE name IN ({marks})"
    for key, value in (
        reader.rows(facts, *(encoded(NAMED_ITEM_PREFIX + name) for name in names)) if names else ()
    ):
        try:
            job_id, ix, digest = json.loads(value)
        except DAMAGES:
            raise damaged("name of a request") from None
        found[(decoded(key) or "").removeprefix(NAMED_ITEM_PREFIX)] = job_id, ix, digest
    ids = list({job_id for job_id, _, _ in found.values()})
    jobs: dict[str, int] = dict(reader.rows("SELECT id, no FROM job WHERE id IN {texts}", ids)) if ids else {}
    numbers = [number(jobs[job_id], ix) for job_id, ix, _ in found.values() if job_id in jobs]
    ended: dict[int, str] = (
        dict(reader.rows("SELECT no, outcome FROM result WHERE no IN {numbers}", numbers)) if jobs else {}
    )
    places: dict[str, NamedPlace] = {}
    for name, (job_id, ix, digest) in found.items():
        outcome = ended.get(number(jobs[job_id], ix)) if job_id in jobs else "cancelled"
        if outcome != "cancelled":
            places[name] = NamedPlace(job_id, ix, digest, outcome)
    return places


def _new_number(tx: Transaction, owner: str) -> int:
    """Return the number of a future job, which is incomplete until :func:`_store_job`."""
    [(no,)] = tx.rows("INSERT INTO incomplete_job (owner) VALUES (?) RETURNING no", owner)
    return int(no)


def _store_page(
    tx: Transaction, early: int, owner: str, job: JobRow, start: int, page: Sequence[NewItem]
) -> None:
    # lock the row, so that no other owner can take the number
    held = "SELECT no FROM incomplete_job WHERE no = ? AND owner = ?{for_update}"
    if tx.row(held, early, owner) is None:
        raise _swept()
    _store_items(tx, early, job.id, start, page)


def _store_items(tx: Transaction, job: int, job_id: str, start: int, page: Sequence[NewItem]) -> None:
    numbered = [(number(job, ix), item) for ix, item in enumerate(page, start)]
    tx.insert(
        "item",
        ("no", "state", "tries", "size", "tokens"),
        ((no, _state(item).value, 0, item.size, item.tokens) for no, item in numbered),
    )
    followers = [(no, number(job, item.leader)) for no, item in numbered if item.leader is not None]
    if followers:
        tx.insert("follower", ("no", "leader"), followers)
    tx.insert(
        "payload",
        ("no", "user_id", "body"),
        ((no, encoded(item.user_id), item.payload) for no, item in numbered),
    )
    for ix, item in enumerate(page, start):
        if item.name is not None:
            fact = ascii_json([job_id, ix, item.name.digest])
            tx.change(REMEMBER_FACT, encoded(NAMED_ITEM_PREFIX + item.name.text), fact)


def _state(item: NewItem) -> ItemState:
    if item.leader is not None:
        return ItemState.FOLLOWING
    return ItemState.REALTIME if item.realtime else ItemState.OPEN


def _store_last(
    tx: Transaction,
    early: int,
    owner: str,
    job: JobRow,
    start: int,
    page: Sequence[NewItem],
    digest: Digest,
    decision: Decision | None,
    uploaded: Collection[str],
) -> tuple[JobRow, bool]:
    """Store the last page and create the job; return what :meth:`JobTable.accept` returns."""
    tx.lock("accept")
    if (found := _known(tx, job)) is not None:
        return found, False
    no = early or _new_number(tx, owner)
    _store_items(tx, no, job.id, start, page)
    if decision is not None:
        summaries.store_decision(tx, no, decision, job.model, job.created_at)
    uploads.choose(tx, no, uploaded)
    return _store_job(tx, no, owner, job, digest, start + len(page)), True


def _swept() -> StoreError:
    return StoreError(
        "this process lost its lock in the store while storing a job, so another process considers it dead"
        " and deletes the rows; the job was not stored: submit it again"
    )


def _store_job(tx: Transaction, no: int, owner: str, job: JobRow, digest: Digest, total: int) -> JobRow:
    """Create the job for the ``total`` items that are stored under its number."""
    if not tx.change("DELETE FROM incomplete_job WHERE no = ? AND owner = ?", no, owner):
        raise _swept()
    tx.change(
        """INSERT INTO job (no, id, user_key, scope, model, kind, metadata, policy, digest, created_at,
        state, finished_at, total) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        no,
        job.id,
        encoded(job.key),
        job.scope,
        job.model,
        job.kind,
        ascii_json(dict(job.metadata)),
        record_text(job.policy),
        job.digest if digest is None else digest(),
        job.created_at,
        (JobState.ACTIVE if total else JobState.DONE).value,
        None if total else job.created_at,
        total,
    )
    tx.change("INSERT INTO job_params (no, body) VALUES (?, ?)", no, job.params)
    if no % summaries.TRIM_INTERVAL == 0:
        summaries.trim(tx, job.created_at)
    [row] = tx.rows(_BY_ID, job.id)
    return job_row(row)


def _pages_of(items: Iterable[NewItem]) -> Iterator[tuple[list[NewItem], bool]]:
    """Yield at least one page, and with each page whether it is the last."""
    page: list[NewItem] = []
    size = 0
    for item in items:
        if len(page) >= PAGE_ITEMS or size >= PAGE_BYTES:
            yield page, False
            page, size = [], 0
        page.append(item)
        size += len(item.payload)
    yield page, True
