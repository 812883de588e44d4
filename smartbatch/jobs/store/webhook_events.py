"""Webhook events about batches: the table ``webhook_event``.

An event only names a batch that has changed. It is unused until a poll that began after its arrival has been
stored; until then, the batch is due for a poll. Events about unknown batches are kept, because an event may
arrive before the answer to the create call is stored. Used events are kept for :data:`KEPT_SECONDS`, so that
a repeated delivery is recognized.

Batches of an account are polled less often while events arrive for it, that is, if an event named at least
one of its latest :data:`MAX_MISSED_EVENTS` batches that have ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attrs import frozen

from smartbatch.jobs.records import DAY
from smartbatch.jobs.store.database import Database, Transaction, encoded

KEPT_SECONDS = 4 * DAY  # longer than any sender repeats a delivery; the longest is 72 hours
MAX_MISSED_EVENTS = 2  # consecutive batches without an event, after which none is expected

_ADD = "INSERT INTO webhook_event (id, batch, at) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
_UNUSED = "SELECT batch, max(no) FROM webhook_event WHERE used = 0 AND batch IN {texts} GROUP BY batch"
# the batch id of a shard may have a path before the name
_NAMED_JOBS = """SELECT DISTINCT j.id FROM webhook_event e
    JOIN shard s ON s.batch_id IN (e.batch, 'batches/' || e.batch)
    JOIN job j ON j.no = s.job
    WHERE e.used = 0 AND e.no > ? AND s.state = {submitted}"""

_KNOWN = "SELECT DISTINCT batch FROM webhook_event WHERE batch IN {texts}"
_LATEST_ENDED = """SELECT batch_id FROM shard WHERE scope = ? AND ended_at > ? AND batch_id IS NOT NULL
    ORDER BY ended_at DESC LIMIT ?"""


def batch_name(batch_id: str) -> str:
    """Return the last part of a batch's id: events and API answers may differ in the path before it."""
    return batch_id.rpartition("/")[2]


@frozen
class WebhookEventTable:
    db: Database

    def add(self, event_id: str, batch_id: str, *, at: float) -> bool:
        """Store an event; return false if its id is known, because its delivery was repeated.

        Args:
            at: Unix seconds.
        """

        def work(tx: Transaction) -> bool:
            if not tx.change(_ADD, encoded(event_id), batch_name(batch_id), at):
                return False
            tx.change("DELETE FROM webhook_event WHERE at <= ?", at - KEPT_SECONDS)
            return True

        return self.db.write(work)

    def last(self) -> int:
        """Return the number of the latest event; 0 if there is none."""
        [(number,)] = self.db.rows("SELECT coalesce(max(no), 0) FROM webhook_event")
        return int(number)

    def named_jobs(self, after: int) -> list[str]:
        """Return the ids of jobs with a batch that an unused event after the number ``after`` names."""
        return [job_id for (job_id,) in self.db.rows(_NAMED_JOBS, after)]

    def unused(self, batch_ids: Collection[str]) -> Mapping[str, int]:
        """Return the number of the latest unused event about each batch that has one."""
        if not batch_ids:
            return {}
        rows = self.db.rows(_UNUSED, [batch_name(batch_id) for batch_id in batch_ids])
        found = {name: int(number) for name, number in rows}
        return {each: found[batch_name(each)] for each in batch_ids if batch_name(each) in found}

    def mark_used(self, batch_id: str, number: int) -> None:
        """Mark the events about a batch up to ``number`` as used, after a later poll was stored."""
        used = "UPDATE webhook_event SET used = 1 WHERE used = 0 AND batch = ? AND no <= ?"
        self.db.change(used, batch_name(batch_id), number)

    def is_expected(self, scope: str, batch_id: str, *, at: float) -> bool:
        """Whether an event is expected when a batch ends, because other batches of its account had one.

        Args:
            at: the current time in Unix seconds.
        """
        # 1. no event is stored, or this batch already had one: no event is expected
        if not self.last() or self.db.rows(_KNOWN, [batch_name(batch_id)]):
            return False
        # 2. otherwise one of the latest batches of the account must have had one
        latest = self.db.rows(_LATEST_ENDED, scope, at - KEPT_SECONDS, MAX_MISSED_EVENTS)
        return bool(latest) and bool(self.db.rows(_KNOWN, [batch_name(ended) for (ended,) in latest]))
