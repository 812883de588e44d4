"""Files uploaded for prompts: rows of the table ``remote_object`` with a ``file_key``, and ``upload_use``.

The row is stored before its upload is sent. As long as its id is empty, the outcome is unknown, and the file
is searched for by its name before it is sent again. One owner at a time sends it. A row whose deletion has
begun has no ``file_key``, so it is no longer used; while an unfinished job uses a row, its deletion does
not begin (see :mod:`smartbatch.jobs.store.remote_objects`).
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from attrs import frozen

from smartbatch.jobs.records import JobLease
from smartbatch.jobs.shard_records import new_nonce
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.leases import LeaseTable, Owner, leased
from smartbatch.providers.batch_api import RemoteKind
from smartbatch.providers.file_api import RemoteUpload

SENDING_SECONDS = 900.0
"""After this time, another owner takes over an upload, even if its sender is alive."""

_CHOOSE = """INSERT INTO upload_use (job, file_key, object) VALUES (?, ?, 0)
    ON CONFLICT (job, file_key, object) DO NOTHING"""
_LINK = """INSERT INTO upload_use (job, file_key, object) SELECT no, ?, ? FROM job WHERE id = ?
    ON CONFLICT (job, file_key, object) DO NOTHING"""
_OF_JOB = "u.job = (SELECT no FROM job WHERE id = ?)"
_CHOSEN = """SELECT 1 FROM upload_use u JOIN job j ON j.no = u.job
    WHERE u.file_key = ? AND u.object = 0 AND j.scope = ? AND j.state <> {done} LIMIT 1"""
_UPLOADED = "SELECT 1 FROM remote_object WHERE scope = ? AND file_key = ? LIMIT 1"
_CHOSEN_KEYS = f"SELECT u.file_key FROM upload_use u WHERE {_OF_JOB} AND u.object = 0"
# a list, because with a correlated subquery a job of thousands of files takes a second per file
_MISSING = f"""{_CHOSEN_KEYS} AND u.file_key NOT IN (
    SELECT o.file_key FROM upload_use u JOIN remote_object o ON o.no = u.object
    WHERE {_OF_JOB} AND o.scope = ? AND o.file_key IS NOT NULL AND o.id <> '' AND o.expires_at >= ?)"""
_LACKS = f"""SELECT 1 FROM upload_use u WHERE {_OF_JOB} AND u.file_key = ? AND u.object = 0 AND NOT EXISTS (
    SELECT 1 FROM upload_use v JOIN remote_object o ON o.no = v.object
    WHERE v.job = u.job AND v.file_key = u.file_key
    AND o.scope = ? AND o.file_key IS NOT NULL AND o.id <> '' AND o.expires_at >= ?)"""
_IDS = f"""SELECT o.file_key, o.id FROM upload_use u JOIN remote_object o ON o.no = u.object
    WHERE {_OF_JOB} AND o.id <> '' AND o.file_key IN (
        SELECT file_key FROM upload_use c WHERE c.job = u.job AND c.object = 0)"""
_FIND = """SELECT no, name, id, expires_at, due_at, retention, used_until, sender, sending_until
    FROM remote_object WHERE scope = ? AND file_key = ? ORDER BY no DESC LIMIT 1{for_update}"""
_ADD = """INSERT INTO remote_object (job, scope, model, kind, id, bytes, retention, due_at, expires_at, name,
    file_key, sender, sending_until, used_until)
    VALUES (0, ?, ?, ?, '', 0, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING no"""
_NEVER = 1e12  # Unix seconds


@frozen
class FileRef:
    """A file of an account, and how long its upload must last."""

    scope: str
    model: str  # provider:model of the request
    key: str  # Media.upload_key
    suffix: str  # end of its name, such as .pdf, by which OpenAI recognizes its type
    needed_until: float  # Unix seconds until which the upload must not expire
    retention: float | None  # seconds after its last use until it is deleted; None keeps it
    in_use: float = 0.0  # seconds that the use by a real-time request may take


@frozen
class Sending:
    """An upload that this owner may send."""

    no: int
    name: str
    is_new: bool  # False if an earlier call may have uploaded it: search for it first


@frozen
class UploadTable:
    db: Database
    leases: LeaseTable
    owner: Owner
    rng: Random

    # -- jobs ------------------------------------------------------------------------------------------------

    def keys_of(self, job_id: str) -> set[str]:
        """Return the keys of the files that a job uploads."""
        return {key for (key,) in self.db.rows(_CHOSEN_KEYS, job_id)}

    def missing(self, job_id: str, scope: str, needed_until: float) -> set[str]:
        """Return the keys of the files that a job uploads and that are not uploaded, or expire too early."""
        return {key for (key,) in self.db.rows(_MISSING, job_id, job_id, scope, needed_until)}

    def lacks(self, job_id: str, scope: str, key: str, needed_until: float) -> bool:
        """Whether a file is one of :meth:`missing`."""
        return self.db.row(_LACKS, job_id, key, scope, needed_until) is not None

    def ids_of(self, job_id: str) -> dict[str, str]:
        """Return the ids of a job's uploads by their keys."""
        return dict(self.db.rows(_IDS, job_id))

    @leased
    def send_inline(self, tx: Transaction, job: int, key: str) -> None:
        """From now on, send a file of a job in each request."""
        tx.change("DELETE FROM upload_use WHERE job = ? AND file_key = ? AND object = 0", job, key)

    def is_chosen(self, scope: str, key: str) -> bool:
        """Whether the file was uploaded, or an unfinished job uploads it."""
        uploaded = self.db.row(_UPLOADED, scope, key) is not None
        return uploaded or self.db.row(_CHOSEN, key, scope) is not None

    # -- one upload ------------------------------------------------------------------------------------------

    def obtain(self, file: FileRef, *, at: float, lease: JobLease | None = None) -> str | Sending | None:
        """Use a file for a job, or for a request in real time.

        Its deletion is put off until ``file.retention`` seconds after now, or after the end of the job.

        Args:
            at: Unix seconds.
            lease: the lease of the job; ``None`` for a request in real time.

        Raises:
            LeaseLost: another process owns the job, which may be done.

        Returns:
            its id if it is uploaded; the upload that this owner must send; or ``None`` while another thread
            or process is sending it.
        """
        me, job_id = self.owner.enter(), None if lease is None else lease.job_id

        def work(tx: Transaction) -> str | Sending | None:
            tx.lock("uploads")
            found = tx.row(_FIND, file.scope, file.key)
            if found is not None:
                no, name, file_id, expires_at, *use, sender, until = found
                # 1. it is uploaded, and lasts long enough
                if file_id and expires_at >= file.needed_until:
                    _put_off(tx, no, file, at, *use)
                    tx.change(_LINK, file.key, no, job_id)
                    return str(file_id)
                # 2. someone is sending it
                if not file_id and until > at and (sender == me or self.owner.sees_alive(sender)):
                    return None
                # 3. the outcome of an earlier call is unknown
                if not file_id:
                    _put_off(tx, no, file, at, *use)
                    tx.change(_LINK, file.key, no, job_id)
                    take = "UPDATE remote_object SET sender = ?, sending_until = ? WHERE no = ?"
                    tx.change(take, me, at + SENDING_SECONDS, no)
                    return Sending(no, name, is_new=False)
                # 4. it expires too early: running batches may still use it, new ones do not
                tx.change("UPDATE remote_object SET file_key = NULL WHERE no = ?", no)
            name = f"sb-{file.key}-{new_nonce(self.rng)}{file.suffix}"
            due = None if file.retention is None else at + file.in_use + file.retention
            values = (file.scope, file.model, RemoteKind.UPLOAD.value, file.retention, due, _NEVER)
            [(no,)] = tx.rows(_ADD, *values, name, file.key, me, at + SENDING_SECONDS, at + file.in_use)
            tx.change(_LINK, file.key, no, job_id)
            return Sending(int(no), name, is_new=True)

        return self.db.write(work) if lease is None else self.leases.write(lease, lambda tx, _: work(tx))

    def complete(self, sending: Sending, file: RemoteUpload, size: int) -> None:
        """Store the outcome of an upload; it can be used from now on."""
        done = "UPDATE remote_object SET id = ?, bytes = ?, expires_at = ?, sending_until = 0 WHERE no = ?"
        self.db.change(done, file.id, size, min(file.expires_at, _NEVER), sending.no)

    def leave_uncertain(self, sending: Sending) -> None:
        """Let any owner search for the file again: the outcome is unknown, or it is being processed."""
        self.db.change("UPDATE remote_object SET sending_until = 0 WHERE no = ?", sending.no)

    def not_found(self, sending: Sending) -> None:
        """Stop using an upload that was searched for and not found.

        Housekeeping searches for it once more, because an interrupted call may have had a late effect.
        """
        late = "UPDATE remote_object SET file_key = NULL, sending_until = 0 WHERE no = ?"
        self.db.change(late, sending.no)

    def not_sent(self, sending: Sending) -> None:
        """Remove an upload that certainly does not exist."""
        self.db.change("DELETE FROM remote_object WHERE no = ?", sending.no)

    def lost(self, scope: str, file_id: str) -> None:
        """Stop using an upload, because the provider does not have it.

        It is deleted as usual, in case the provider was wrong.
        """
        gone = "UPDATE remote_object SET file_key = NULL WHERE scope = ? AND id = ? AND kind = ?"
        self.db.change(gone, scope, file_id, RemoteKind.UPLOAD.value)


def choose(tx: Transaction, job: int, keys: Iterable[str]) -> None:
    """Record the files that a job uploads."""
    for key in keys:
        tx.change(_CHOOSE, job, key)


def job_deleted(tx: Transaction, job: int, finished_at: float) -> None:
    """Keep the uploads of a job that is being deleted until their retention has passed."""
    for no, due_at, retention in tx.rows(
        """SELECT o.no, o.due_at, o.retention FROM remote_object o JOIN upload_use u ON u.object = o.no
        WHERE u.job = ? AND o.due_at IS NOT NULL""",
        job,
    ):
        due = max(due_at, finished_at + retention)
        tx.change("UPDATE remote_object SET due_at = ? WHERE no = ?", due, no)
    tx.change("DELETE FROM upload_use WHERE job = ?", job)


def _put_off(
    tx: Transaction,
    no: int,
    file: FileRef,
    at: float,
    due_at: float | None,
    retention: float | None,
    used_until: float | None,
) -> None:
    """Record the use, and delete the file after the longer of two retentions."""
    until = at + file.in_use
    due = longer = None
    if due_at is not None and file.retention is not None:
        longer = max(file.retention, retention or 0.0)
        due = max(due_at, until + longer)
    put_off = "UPDATE remote_object SET due_at = ?, retention = ?, used_until = ? WHERE no = ?"
    tx.change(put_off, due, longer, max(until, used_until or 0.0), no)
