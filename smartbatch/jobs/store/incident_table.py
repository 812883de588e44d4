"""The chapter of notes: incidents, learned facts, and how long batches took."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

from smartbatch.jobs.records import IncidentRow, JobLease
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.rows import bare, encoded, incident_row
from smartbatch.jobs.store.sql_store import Book

__all__ = ["Notes", "incident_digest"]

TURNAROUNDS_KEPT = 500
"""Batches of a model that are remembered; a forecast looks at a hundred."""
TRIM_EVERY = 50


class Notes(Book):
    """What is kept beside the jobs themselves."""

    def note(self, lease: JobLease, note: str | None, *, hold: bool = False) -> None:
        with self._db.writing() as tx:
            tx.change(sql.HOLD if hold else sql.NOTE, encoded(note), self._hold(tx, lease))

    def add_incident(self, incident: IncidentRow, *, lease: JobLease | None = None) -> bool:
        digest = incident_digest(incident.kind, incident.job_id, incident.shard_id, incident.detail)
        with self._db.writing() as tx:
            if lease is not None:
                self._hold(tx, lease)
            new = tx.change(
                sql.NEW_INCIDENT,
                digest,
                incident.kind,
                incident.job_id,
                incident.shard_id,
                encoded(incident.detail),
                incident.money,
                incident.at,
            )
        return new > 0

    def incidents(self, job_id: str | None = None) -> list[IncidentRow]:
        rows = self._db.rows(sql.INCIDENTS) if job_id is None else self._db.rows(sql.INCIDENTS_OF, job_id)
        return [incident_row(row) for row in rows]

    def claimed_batches(self, scope: str, batch_ids: Collection[str]) -> set[str]:
        asked = set(batch_ids)
        if not asked:
            return set()
        known: set[str] = set()
        ids = self._db.many(asked)
        for row in self._db.rows(sql.BATCHES_OWN, scope, ids, ids):
            known.update(row)
        return known & asked

    def observe_turnaround(self, model: str, size: int, seconds: float, at: float) -> None:
        self.observe_turnarounds(model, [(size, seconds, at)])

    def observe_turnarounds(self, model: str, seen: Sequence[tuple[int, float, float]]) -> None:
        with self._db.writing() as tx:
            rows = [tx.row(sql.NEW_TURNAROUND, model, size, seconds, at) for size, seconds, at in seen]
            if any(row is not None and row[0] % TRIM_EVERY == 0 for row in rows):
                tx.change(sql.TRIM_TURNAROUNDS, model, model, TURNAROUNDS_KEPT)

    def turnarounds(self, model: str, *, limit: int = 100) -> list[tuple[int, float, float]]:
        return [(size, seconds, at) for size, seconds, at in self._db.rows(sql.TURNAROUNDS, model, limit)]

    def remember(self, key: str, value: Any) -> None:
        with self._db.writing() as tx:
            tx.change(sql.REMEMBER, encoded(key), bare(value))

    def recall(self, key: str) -> Any:
        found = self._db.row(sql.RECALL, encoded(key))
        return None if found is None else json.loads(found[0])


def incident_digest(kind: str, job_id: str, shard_id: str | None, detail: str) -> bytes:
    """Return what two tellings of the same incident have in common."""
    told = bare([kind, job_id, shard_id, detail])
    return hashlib.blake2b(told.encode(), digest_size=16).digest()
