"""Explicit prompt caches of running clients: rows of ``remote_object`` whose ``sender`` uses them.

The row is stored before the call that creates the cache. A cache belongs to the client that created it, which
deletes it. Housekeeping deletes what a dead process has left, at once, because storage has a price.
"""

from __future__ import annotations

from random import Random

from attrs import frozen

from smartbatch.jobs.records import MINUTE
from smartbatch.jobs.shard_records import new_nonce
from smartbatch.jobs.store.database import Database
from smartbatch.jobs.store.leases import Owner
from smartbatch.providers.batch_api import RemoteKind

_ADD = """INSERT INTO remote_object (job, scope, model, kind, id, bytes, retention, due_at, expires_at, name,
    sender) VALUES (0, ?, ?, ?, '', 0, 0, ?, ?, ?, ?) RETURNING no"""


@frozen
class CacheRecord:
    no: int
    name: str  # unique; finds the cache if the answer to its creation was lost
    model: str  # provider:model


@frozen
class CacheTable:
    db: Database
    owner: Owner
    rng: Random

    def begin(self, scope: str, model: str, *, at: float, expires_at: float) -> CacheRecord:
        """Record a cache that is about to be created, at the Unix time ``at``."""
        me, name = self.owner.enter(), f"sb-{new_nonce(self.rng)}"
        values = (scope, model, RemoteKind.CACHE.value, at + MINUTE, expires_at, name, me)
        [(no,)] = self.db.write(lambda tx: tx.rows(_ADD, *values))
        return CacheRecord(int(no), name, model)

    def complete(self, record: CacheRecord, cache_id: str) -> None:
        """Store the id of a cache that was created."""
        self.db.change("UPDATE remote_object SET id = ? WHERE no = ?", cache_id, record.no)

    def leave(self, record: CacheRecord, *, due: float) -> None:
        """Let housekeeping delete a cache, or search for it, from the Unix time ``due`` on."""
        self.db.change("UPDATE remote_object SET sender = NULL, due_at = ? WHERE no = ?", due, record.no)

    def remove(self, record: CacheRecord) -> None:
        """Record that a cache was deleted, or certainly was not created."""
        self.db.change("DELETE FROM remote_object WHERE no = ?", record.no)
