"""What a store keeps besides jobs: incidents, facts that were learned, and how long batches took."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from smartbatch.jobs.records import IncidentRow
from smartbatch.jobs.store import statements as sql
from smartbatch.jobs.store.database import Database, Transaction
from smartbatch.jobs.store.rows import bare, encoded, incident_row

__all__ = ["FactTables"]

TURNAROUNDS_KEPT = 500
"""Batches of a model that are remembered; a forecast looks at a hundred."""
TRIM_EVERY = 50
"""Batches after which older ones are deleted."""


class FactTables:
    """The tables ``incident``, ``fact`` and ``turnaround``."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add_incident(self, tx: Transaction, incident: IncidentRow) -> bool:
        """Keep an incident; False when the same kind, shard and detail is known."""
        told = (incident.kind, incident.job_id, incident.shard_id, incident.detail)
        digest = hashlib.blake2b(bare(told).encode(), digest_size=16).digest()
        detail = encoded(incident.detail)
        values = (*told[:3], detail, incident.money, incident.at)
        return tx.change(sql.NEW_INCIDENT, digest, *values) > 0

    def incidents(self, job_id: str | None) -> list[IncidentRow]:
        """Return incidents, oldest first."""
        rows = self._db.rows(sql.INCIDENTS) if job_id is None else self._db.rows(sql.INCIDENTS_OF, job_id)
        return [incident_row(row) for row in rows]

    def add_turnarounds(self, tx: Transaction, model: str, seen: Sequence[tuple[int, float, float]]) -> None:
        """Remember batches, and delete the oldest where there are too many."""
        rows = [tx.row(sql.NEW_TURNAROUND, model, size, seconds, at) for size, seconds, at in seen]
        if any(row is not None and row[0] % TRIM_EVERY == 0 for row in rows):
            tx.change(sql.TRIM_TURNAROUNDS, model, model, TURNAROUNDS_KEPT)

    def turnarounds(self, model: str, limit: int) -> list[tuple[int, float, float]]:
        """Return size, seconds and time, newest first."""
        return [(size, seconds, at) for size, seconds, at in self._db.rows(sql.TURNAROUNDS, model, limit)]

    def remember(self, tx: Transaction, key: str, value: Any) -> None:
        """Keep a small JSON-able fact."""
        tx.change(sql.REMEMBER, encoded(key), bare(value))

    def recall(self, key: str) -> Any:
        """Return a fact, or ``None``."""
        found = self._db.row(sql.RECALL, encoded(key))
        return None if found is None else json.loads(found[0])
