"""Incidents, turnarounds of batches and facts: the tables ``incident``, ``turnaround`` and ``fact``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from smartbatch.jobs.records import IncidentRow
from smartbatch.jobs.store import outcomes
from smartbatch.jobs.store.database import DAMAGES, Database, Transaction, bare, damaged, encoded
from smartbatch.jobs.store.leases import LeaseTable, leased
from smartbatch.jobs.store.schema import incident_row

TURNAROUNDS_KEPT = 500
"""Batches of a model that are remembered; a forecast looks at a hundred."""
REMEMBER = """INSERT INTO fact (name, value) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
TRIM_EVERY = 50
"""Batches after which older ones are deleted."""


@frozen
class FactTable:
    """What is remembered besides jobs."""

    db: Database
    leases: LeaseTable

    @leased
    def add_incident(self, tx: Transaction, _: int, incident: IncidentRow) -> bool:
        """Keep an incident; False when the same kind, shard and detail is known."""
        return outcomes.add_incident(tx, incident)

    def incidents(self, job_id: str) -> list[IncidentRow]:
        """Return the incidents of a job, oldest first."""
        columns = "kind, job_id, shard_id, detail, money, at"
        rows = self.db.rows(f"SELECT {columns} FROM incident WHERE job_id = ? ORDER BY no", job_id)
        return [incident_row(row) for row in rows]

    def observe_turnarounds(self, model: str, seen: Sequence[tuple[int, float, float]]) -> None:
        """Remember size, seconds and time of batches, for forecasts."""
        new = "INSERT INTO turnaround (model, size, seconds, at) VALUES (?, ?, ?, ?) RETURNING no"
        trim = """DELETE FROM turnaround WHERE model = ? AND no <= (
            SELECT no FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT 1 OFFSET ?)"""

        def work(tx: Transaction) -> None:
            rows = [tx.rows(new, model, *each) for each in seen]
            if any(no % TRIM_EVERY == 0 for [(no,)] in rows):
                tx.change(trim, model, model, TURNAROUNDS_KEPT)

        self.db.write(work)

    def turnarounds(self, model: str, *, limit: int) -> list[tuple[int, float, float]]:
        """Return size, seconds and time of the latest batches of ``model``, newest first."""
        latest = "SELECT size, seconds, at FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT ?"
        return [(size, seconds, at) for size, seconds, at in self.db.rows(latest, model, limit)]

    def topics(self, *, limit: int = 1000) -> list[str]:
        """Return the names under which turnarounds are kept, in order: one look into the index for each."""
        each = """WITH RECURSIVE topic (name) AS (
            SELECT min(model) FROM turnaround
            UNION ALL SELECT (SELECT min(model) FROM turnaround WHERE model > topic.name)
            FROM topic WHERE topic.name IS NOT NULL)
            SELECT name FROM topic WHERE name IS NOT NULL LIMIT ?"""
        return [name for (name,) in self.db.rows(each, limit)]

    def remember(self, key: str, value: Any) -> None:
        """Keep a small JSON-able fact, such as a learned limit."""
        self.db.change(REMEMBER, encoded(key), bare(value))

    def recall(self, key: str) -> Any:
        """Return a fact, or ``None``; raises StoreError if it is damaged."""
        found = self.db.row("SELECT value FROM fact WHERE name = ?", encoded(key))
        try:
            return None if found is None else json.loads(found[0])
        except DAMAGES:
            raise damaged("fact") from None
