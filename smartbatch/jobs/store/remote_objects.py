"""What providers store for batches that have ended, and uploaded files: the table ``remote_object``.

The objects of a batch are recorded in the transaction that ends the work on its shard, or that deletes its
job; nothing else is ever deleted at a provider. They are deleted once the job is done and its retention has
passed. An object whose deletion is not due (``due_at`` is null) stays until it expires: its job keeps
everything, or the provider does not delete such objects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import fields_dict, frozen

from smartbatch.jobs.records import DAY, HOUR, MINUTE, JobPolicy, JobState
from smartbatch.jobs.shard_records import RemoteAccount, RemoteObject, ShardRow
from smartbatch.jobs.store.database import (
    REMEMBER_FACT,
    Database,
    Transaction,
    ascii_json,
    encoded,
    record_of,
)
from smartbatch.jobs.store.leases import Owner
from smartbatch.jobs.store.schema import maker
from smartbatch.providers.batch_api import RemoteKind

ANSWER_SECONDS = 600.0  # a deletion without a recorded outcome is repeated after this time
LIFETIME_SECONDS = 30 * DAY  # until the objects of a batch expire, if its provider does not state a time

_ADD = """INSERT INTO remote_object (job, scope, model, kind, id, bytes, retention, due_at, expires_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_EXPIRE = "DELETE FROM remote_object WHERE due_at IS NULL AND expires_at <= ?"
_COLUMNS = ", ".join(f"o.{name}" for name in fields_dict(RemoteObject))
_NEXT = f"""SELECT {_COLUMNS}, o.job, o.retention FROM remote_object o
    WHERE o.scope = ? AND o.due_at <= ? ORDER BY o.due_at, o.no LIMIT 1{{skip_locked}}"""
_UNUSED = "coalesce(o.used_until, 0) <= ?"  # by requests in real time
_ONE = f"""SELECT {_COLUMNS}, o.job, 0 FROM remote_object o WHERE o.no = ? AND {_UNUSED}{{for_update}}"""
_OF_FINISHED = f"""SELECT {_COLUMNS}, o.sender, o.expires_at
    FROM remote_object o LEFT JOIN job j ON j.no = o.job
    WHERE {_UNUSED} AND (j.no IS NULL OR j.state = {{done}}) AND NOT EXISTS (
        SELECT 1 FROM upload_use u JOIN job k ON k.no = u.job WHERE u.object = o.no AND k.state <> {{done}})
    ORDER BY o.no"""
_USERS = "SELECT j.state, j.finished_at FROM upload_use u JOIN job j ON j.no = u.job WHERE u.object = ?"
_MAKE_DUE = f"""UPDATE remote_object AS o SET retention = 0, due_at = ?
    WHERE o.no IN {{numbers}} AND {_UNUSED}"""
_SUM_OBJECTS = f"""SELECT coalesce(sum(bytes), 0),
    coalesce(sum(CASE WHEN kind = '{RemoteKind.INPUT.value}' THEN 1 ELSE 0 END), 0)
    FROM remote_object WHERE scope = ? AND expires_at > ?"""
_SUM_INPUTS = """SELECT coalesce(sum(bytes), 0), count(*) FROM shard
    WHERE scope = ? AND cleaned_up = 0 AND file_id IS NOT NULL AND fenced_at IS NULL"""
_POSTPONE = "UPDATE remote_object SET due_at = ? WHERE no = ?"
_remote_object = maker(RemoteObject, kind=RemoteKind)


@frozen
class StoredFiles:
    bytes: int
    inputs: int  # number of files with the requests of batches


@frozen
class RemoteObjectTable:
    db: Database
    owner: Owner

    def accounts(self, due: float | None = None) -> list[RemoteAccount]:
        """Return the accounts with objects, or only those with one to delete at the Unix time ``due``."""
        those, values = ("", ()) if due is None else ("WHERE due_at <= ? ", (due,))
        found = f"SELECT scope, min(model) FROM remote_object {those}GROUP BY scope ORDER BY scope"
        return [RemoteAccount(scope, model) for scope, model in self.db.rows(found, *values)]

    def of_finished_jobs(self, at: float) -> list[RemoteObject]:
        """Return the objects of jobs that are done or were deleted, oldest first.

        Uploads that a request in real time may be using at the Unix time ``at`` are left out, and so are the
        caches of running clients.
        """
        found = []
        for row in self.db.rows(_OF_FINISHED, at):
            one, (*_, sender, expires_at) = _remote_object(row), row
            if one.kind is not RemoteKind.CACHE or not self._in_use(sender, expires_at, at):
                found.append(one)
        return found

    def in_use(self, at: float) -> int:
        """Return how many uploads requests in real time may be using at a Unix time."""
        return int(self.db.rows(f"SELECT count(*) FROM remote_object o WHERE NOT {_UNUSED}", at)[0][0])

    def remaining(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers of those objects that were not deleted."""
        left = self.db.rows("SELECT no FROM remote_object WHERE no IN {numbers}", list(numbers))
        return {no for (no,) in left}

    def stored(self, scope: str, *, at: float) -> StoredFiles:
        """Return how much an account stores in the files that this store recorded, as far as this is known.

        The sizes of results are known for finished batches only.
        """
        over, running = self.db.rows(_SUM_OBJECTS, scope, at)[0], self.db.rows(_SUM_INPUTS, scope)[0]
        return StoredFiles(int(over[0]) + int(running[0]), int(over[1]) + int(running[1]))

    def make_due(self, numbers: Sequence[int], *, at: float) -> None:
        """Make objects due for deletion now, regardless of their jobs' retention, but not those in use."""
        self.db.change(_MAKE_DUE, at, list(numbers), at)

    def expire(self, at: float) -> None:
        """Remove the records of objects that are not deleted and have expired."""
        self.db.change(_EXPIRE, at)

    def take(self, scope: str, *, at: float, most: int) -> RemoteObject | None:
        """Return an object to delete now, and record the deletion before it is sent.

        No other process takes the object in the next ten minutes.

        Args:
            at: Unix seconds.
            most: maximum number of deletions per hour in the scope.

        Returns:
            ``None`` if nothing is due, or if the hour's maximum is reached.
        """

        def work(tx: Transaction) -> RemoteObject | None:
            while (found := tx.row(_NEXT, scope, at)) is not None:
                # 1. the job is not done, or finished again later; or a file or cache is in use: wait
                if (ready := self._ready_at(tx, found, at)) > at:
                    tx.change(_POSTPONE, ready, found[0])
                    continue
                # 2. otherwise take it, unless the hour's maximum is reached
                return _take(tx, found, at, most)
            return None

        return self.db.write(work)

    def take_now(self, number: int, *, at: float, most: int) -> RemoteObject | None:
        """Take an object to delete now, regardless of its retention. Record the deletion before it is sent.

        Args:
            at: Unix seconds.
            most: maximum number of deletions per hour in the scope.

        Returns:
            ``None`` if the object is in use or was deleted, or if the hour's maximum is reached.
        """

        def work(tx: Transaction) -> RemoteObject | None:
            found = tx.row(_ONE, number, at)
            if found is None or self._ready_at(tx, found, at) > at:
                return None
            return _take(tx, found, at, most)

        return self.db.write(work)

    def _ready_at(self, tx: Transaction, found: tuple[Any, ...], at: float) -> float:
        """Return when an object may be deleted, or should be looked at again."""
        *_, job, retention = found
        one = _remote_object(found)
        if one.kind is RemoteKind.UPLOAD:
            return _unused_at(tx, one.no, retention, at)
        if one.kind is RemoteKind.CACHE:
            return self._unused_cache_at(tx, one.no, at)
        return _job_done_at(tx, job, retention, at)

    def _unused_cache_at(self, tx: Transaction, no: int, at: float) -> float:
        [(sender, expires_at)] = tx.rows("SELECT sender, expires_at FROM remote_object WHERE no = ?", no)
        return at + MINUTE if self._in_use(sender, expires_at, at) else at

    def _in_use(self, sender: str | None, expires_at: float, at: float) -> bool:
        """Whether a cache exists and belongs to a running client."""
        return sender is not None and expires_at > at and self.owner.sees_alive(sender)

    def found(self, one: RemoteObject, file_id: str, *, at: float) -> None:
        """Store the id of an uploaded file that is to be deleted now."""
        self.db.change("UPDATE remote_object SET id = ?, due_at = ? WHERE no = ?", file_id, at, one.no)

    def remove(self, one: RemoteObject) -> None:
        """Record that an object was deleted."""
        self.db.change("DELETE FROM remote_object WHERE no = ?", one.no)

    def postpone(self, one: RemoteObject, due: float | None) -> None:
        """Delete an object at the Unix time ``due``; with ``None``, leave it until it expires."""
        self.db.change(_POSTPONE, due, one.no)


def record(tx: Transaction, job: int, shard: ShardRow) -> None:
    """Record what a provider stores for a shard whose batch is over or was never created."""
    [(text,)] = tx.rows("SELECT policy FROM job WHERE no = ?", job)
    retention = record_of(JobPolicy, text).retention
    over_at = shard.settled_at or shard.died_at or shard.due_at
    due = None if retention is None else over_at + retention
    outputs = shard.remote.outputs
    sizes = [shard.remote.results_size or 0, *[0] * len(outputs)]  # known only for all of them together
    objects = [(RemoteKind.OUTPUT, *output) for output in zip(outputs, sizes, strict=False)]
    if shard.batch_id is not None:
        objects.append((RemoteKind.BATCH, shard.batch_id, 0))
    if shard.file_id is not None and shard.fenced_at is None:
        objects.append((RemoteKind.INPUT, shard.file_id, shard.bytes))
    for kind, object_id, size in objects:
        expires = over_at + LIFETIME_SECONDS
        if kind is not RemoteKind.BATCH and shard.results_until is not None:
            expires = shard.results_until
        tx.change(_ADD, job, shard.scope, shard.model, kind.value, object_id, size, retention, due, expires)
    if objects:
        tx.change(_EXPIRE, over_at)


def job_deleted(tx: Transaction, job: int, finished_at: float) -> None:
    """Keep the objects of a job that is being deleted until its retention has passed."""
    due = "UPDATE remote_object SET due_at = ? + retention WHERE job = ? AND due_at IS NOT NULL"
    tx.change(due, finished_at, job)


def _unused_at(tx: Transaction, no: int, retention: float, at: float) -> float:
    sending = tx.row("SELECT sending_until FROM remote_object WHERE no = ? AND id = ''", no)
    ready = float(sending[0] or 0.0) if sending is not None else at
    for state, finished_at in tx.rows(_USERS, no):
        done = state == JobState.DONE.value and finished_at is not None
        ready = max(ready, finished_at + retention if done else at + min(retention + MINUTE, HOUR))
    return ready


def _job_done_at(tx: Transaction, job: int, retention: float, at: float) -> float:
    found = tx.row("SELECT state, finished_at FROM job WHERE no = ?", job)
    if found is None:  # the job was deleted, which set the time
        return at
    state, finished_at = found
    done = state == JobState.DONE.value and finished_at is not None
    return float(finished_at + retention) if done else at + HOUR


def _take(tx: Transaction, found: tuple[Any, ...], at: float, most: int) -> RemoteObject | None:
    one = _remote_object(found)
    if not _count_deletion(tx, one.scope, at, most):
        return None
    taken = "UPDATE remote_object SET due_at = ?, tries = tries + 1, file_key = NULL WHERE no = ?"
    tx.change(taken, at + ANSWER_SECONDS, one.no)
    return one


def _count_deletion(tx: Transaction, scope: str, at: float, most: int) -> bool:
    """Count a deletion in the current hour; return false if the maximum is reached."""
    name, hour = encoded(f"deletions:{scope}"), int(at // HOUR)
    found = tx.row("SELECT value FROM fact WHERE name = ?", name)
    counted, count = (hour, 0) if found is None else json.loads(found[0])
    if counted != hour:
        count = 0
    if count >= most:
        return False
    tx.change(REMEMBER_FACT, name, ascii_json([hour, count + 1]))
    return True
