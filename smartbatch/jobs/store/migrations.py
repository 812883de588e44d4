"""The tables, as numbered steps from nothing to the present version. A released step does not change what it
leads to; where a later one gave another name, a new store has that from the beginning.

Numbers of items are ``job number * 2**32 + position``, so that one column says both, in order. What is
written once (requests, parameters) stands apart from what changes, so that a change of state writes a few
bytes. Texts of users and providers are bytes: a text column refuses some characters.

A process of an older release that has the store open while a newer one migrates it finds its columns renamed:
its statements are refused, so it writes nothing, and its jobs are taken over when its leases run out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from smartbatch._values import Value
from smartbatch.errors import StoreError
from smartbatch.jobs.store.database import Database, Reader, Transaction

SHIFT = 32
"""Bits of an item's number that are its position in the job."""


@frozen(eq=False, repr=False)
class Renaming(Value):
    """Another name for what stores of version ``since`` and later may have under an old one. In SQLite each
    takes as long as ten tables."""

    since: int
    statement: str


_FIRST = (
    # numbers of jobs; a row stays while items have no job: still arriving, or being deleted
    "CREATE TABLE incomplete_job (no {serial}, owner TEXT NOT NULL)",
    """CREATE TABLE job (
        no {key},
        id TEXT NOT NULL UNIQUE,
        user_key {bytes} UNIQUE,
        scope TEXT NOT NULL,
        model TEXT NOT NULL,
        kind TEXT NOT NULL,
        metadata TEXT NOT NULL,
        policy TEXT NOT NULL,
        digest {bytes} NOT NULL,
        created_at {real} NOT NULL,
        state TEXT NOT NULL,
        finished_at {real},
        total {int} NOT NULL,
        succeeded {int} NOT NULL DEFAULT 0,
        failed {int} NOT NULL DEFAULT 0,
        cancelled {int} NOT NULL DEFAULT 0,
        cost {real} NOT NULL DEFAULT 0,
        realtime_cost {real} NOT NULL DEFAULT 0,
        unpriced {int} NOT NULL DEFAULT 0,
        input_tokens {int} NOT NULL DEFAULT 0,
        output_tokens {int} NOT NULL DEFAULT 0,
        seq {int} NOT NULL DEFAULT 0,
        cancel_requested {int} NOT NULL DEFAULT 0,
        note {bytes},
        epoch {int} NOT NULL DEFAULT 0,
        owner TEXT,
        lease_until {real} NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX job_unfinished ON job (state, no)",
    "CREATE TABLE job_params (no {key}, body {bytes} NOT NULL)",
    # state: 0 open, 1 direct, 2 asking, 3 sharded, 4 final; the first three wait for something to be done
    """CREATE TABLE item (
        no {key},
        state {int} NOT NULL,
        tries {int} NOT NULL,
        shard {int},
        size {int} NOT NULL,
        tokens {int} NOT NULL
    )""",
    "CREATE INDEX item_waiting ON item (state, no) WHERE state < 3",
    "CREATE TABLE payload (no {key}, user_id {bytes}, body {bytes} NOT NULL)",
    """CREATE TABLE shard (
        id TEXT NOT NULL PRIMARY KEY,
        job {int} NOT NULL,
        no {int} NOT NULL,
        nonce TEXT NOT NULL UNIQUE,
        scope TEXT NOT NULL,
        model TEXT NOT NULL,
        state TEXT NOT NULL,
        size {int} NOT NULL,
        bytes {int} NOT NULL,
        tokens {int} NOT NULL,
        due_at {real} NOT NULL,
        tries {int} NOT NULL DEFAULT 0,
        file_id TEXT,
        batch_id TEXT,
        watermark TEXT,
        server_time {real},
        submitted_at {real},
        uncertain_since {real},
        fenced_at {real},
        candidate TEXT,
        foreign_batches TEXT NOT NULL DEFAULT '[]',
        remote TEXT NOT NULL DEFAULT '{{}}',
        cancelled {int} NOT NULL DEFAULT 0,
        ended_at {real},
        settled_at {real},
        died_at {real},
        cleaned_up {int} NOT NULL DEFAULT 0,
        results_until {real},
        cost {real},
        note {bytes},
        UNIQUE (job, no)
    )""",
    "CREATE INDEX shard_scope ON shard (scope, state)",
    "CREATE INDEX shard_batch ON shard (batch_id)",
    # the positions in the job of a shard's items, four bytes each, little end first
    "CREATE TABLE shard_items (id TEXT NOT NULL PRIMARY KEY, job {int} NOT NULL, positions {bytes} NOT NULL)",
    """CREATE TABLE result (
        no {key},
        seq {int} NOT NULL UNIQUE,
        outcome TEXT NOT NULL,
        digest {bytes} NOT NULL,
        cost {real},
        body {bytes} NOT NULL
    )""",
    # what a line said of an item that goes again; gone when its shard is settled
    "CREATE TABLE verdict (no {key}, outcome TEXT NOT NULL, digest {bytes} NOT NULL, body {bytes} NOT NULL)",
    """CREATE TABLE incident (
        no {serial},
        digest {bytes} NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        job_id TEXT NOT NULL,
        shard_id TEXT,
        detail {bytes} NOT NULL,
        money {real},
        at {real} NOT NULL
    )""",
    "CREATE TABLE fact (name {bytes} NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE turnaround (
        no {serial}, model TEXT NOT NULL, size {int} NOT NULL, seconds {real} NOT NULL, at {real} NOT NULL
    )""",
    "CREATE INDEX turnaround_model ON turnaround (model, no)",
    "CREATE TABLE owner (id TEXT NOT NULL PRIMARY KEY, host TEXT NOT NULL, pid {int} NOT NULL, since {real})",
)

_MONEY = (
    # USD that may be spent besides what is booked: the budget of a job is kept with it
    "ALTER TABLE job ADD COLUMN reserved {real} NOT NULL DEFAULT 0",
    "ALTER TABLE shard ADD COLUMN reserved {real} NOT NULL DEFAULT 0",
)

_POLICY_FIELDS = {
    "fallback": "fallback",
    "on_unknown": "on_unknown",
    "timeout": "timeout",
    "settle": "settle",
    "max_requests": "max_requests",
    "deadline": "deadline",
    "missed": "late_penalty",
    "budget": "budget",
    "account": "budget_account",
    "retention": "retention",
    "exclusive": "exclusive_workspace",
    "route": "route",
    "attended": "attended",
}
_REMOTE_FIELDS = {
    "word": "status",
    "state": "state",
    "completed": "completed",
    "failed": "failed",
    "outputs": "outputs",
    "cancelled_at": "cancel_sent_at",
    "uploads": "uploads",
    "fetched": "results_fetched",
    "reread": "results_refetched",
    "gone": "results_gone",
    "held": "held_job",
    "audited": "checked_for_duplicates",
    "suspects": "suspected_duplicates",
}
"""Keys of version 2, and the fields of the records that hold the same from version 3 on."""


def _write_records(tx: Transaction) -> None:
    """Make records of the policies of jobs and of what is known of remote batches; other keys are dropped."""
    for no, policy in tx.rows("SELECT no, policy FROM job"):
        tx.change("UPDATE job SET policy = ? WHERE no = ?", _first_record(policy, _POLICY_FIELDS), no)
    for shard_id, remote in tx.rows("SELECT id, remote FROM shard"):
        tx.change("UPDATE shard SET remote = ? WHERE id = ?", _first_record(remote, _REMOTE_FIELDS), shard_id)


def _first_record(stored: str, fields: Mapping[str, str]) -> str:
    """Return the record of version 1 that a dictionary of version 2 of the tables stands for."""
    known = {
        fields[key]: value for key, value in json.loads(stored).items() if key in fields and value is not None
    }
    return json.dumps({"version": 1, **known}, separators=(",", ":"))


_RECORDS = (
    Renaming(1, "ALTER TABLE loose RENAME TO incomplete_job"),
    Renaming(2, "ALTER TABLE job RENAME COLUMN pledged TO reserved"),
    Renaming(2, "ALTER TABLE shard RENAME COLUMN most TO reserved"),
    Renaming(1, "ALTER TABLE shard RENAME COLUMN strangers TO foreign_batches"),
    Renaming(1, "ALTER TABLE shard RENAME COLUMN tidied TO cleaned_up"),
    Renaming(1, "ALTER TABLE verdict RENAME COLUMN word TO outcome"),
    _write_records,
)

_FOLLOWERS = (
    # items that are not sent: each ends with the result of an equal one of its job, the leader
    "CREATE TABLE follower (no {key}, leader {int} NOT NULL)",
    "CREATE INDEX follower_leader ON follower (leader, no)",
)

_EARLIER_TRIES = (
    # what tries used that did not end their item, and the last answer among them that was refused
    """CREATE TABLE earlier_tries (no {key}, cost {real}, usage TEXT NOT NULL, body {bytes})""",
)

_SUMMARIES = (
    # for who looks at the store, so that no table of items is read for it
    """CREATE TABLE decision (
        no {serial},
        job {int} UNIQUE,
        at {real} NOT NULL,
        model TEXT NOT NULL,
        route TEXT NOT NULL,
        requests {int} NOT NULL,
        deadline {real},
        p50 {real} NOT NULL,
        p95 {real} NOT NULL,
        cost {real},
        individual_p50 {real} NOT NULL,
        individual_cost {real},
        batch_p50 {real},
        batch_cost {real},
        seconds {real},
        paid {real},
        paid_individual {real},
        paid_batch {real},
        body TEXT NOT NULL
    )""",
    "CREATE INDEX decision_of_list ON decision (no) WHERE job IS NULL",
    """CREATE TABLE error_group (
        digest {bytes} NOT NULL PRIMARY KEY,
        kind TEXT NOT NULL,
        message {bytes} NOT NULL,
        count {int} NOT NULL,
        first_at {real} NOT NULL,
        last_at {real} NOT NULL,
        model TEXT NOT NULL,
        item {int},
        request_id {bytes}
    )""",
    "CREATE INDEX error_group_last ON error_group (last_at)",
    # hour: since 1970; part: so that not all who add to an hour wait for one row
    """CREATE TABLE spending (
        hour {int} NOT NULL,
        model TEXT NOT NULL,
        route TEXT NOT NULL,
        part {int} NOT NULL,
        requests {int} NOT NULL,
        failed {int} NOT NULL,
        usd {real} NOT NULL,
        realtime_usd {real} NOT NULL,
        unpriced {int} NOT NULL,
        input_tokens {int} NOT NULL,
        output_tokens {int} NOT NULL,
        PRIMARY KEY (hour, model, route, part)
    )""",
)

_CONTROLS = (
    # what people set while work runs; a model is a text of a user, as a reason is
    """CREATE TABLE pause (
        model {bytes} NOT NULL PRIMARY KEY, reason {bytes}, who {bytes} NOT NULL, since {real} NOT NULL
    )""",
    """CREATE TABLE model_limit (
        model {bytes} NOT NULL PRIMARY KEY, requests {real}, tokens {real}, who {bytes} NOT NULL,
        since {real} NOT NULL
    )""",
    """CREATE TABLE act (
        no {serial},
        at {real} NOT NULL,
        who {bytes} NOT NULL,
        name TEXT NOT NULL,
        target {bytes} NOT NULL,
        job_id TEXT,
        count {int} NOT NULL,
        left_out {int} NOT NULL,
        detail {bytes}
    )""",
    "CREATE INDEX act_job ON act (job_id, no)",
    # results of rows that failed and were asked again
    """CREATE TABLE earlier_result (
        no {int} NOT NULL,
        seq {int} NOT NULL,
        outcome TEXT NOT NULL,
        digest {bytes} NOT NULL,
        cost {real},
        body {bytes} NOT NULL,
        retried_at {real} NOT NULL,
        PRIMARY KEY (no, seq)
    )""",
)

_LOOKING = (
    # what is looked for among millions of results, and a job's own among all incidents
    "CREATE INDEX result_failed ON result (no) WHERE outcome <> 'succeeded'",
    "CREATE INDEX incident_job ON incident (job_id, no)",
)

_NAMES = (
    # decisions on runs in real time, by the keys of jobs that were deleted once the output had all answers
    "ALTER TABLE decision ADD COLUMN name {bytes}",
    "CREATE INDEX decision_name ON decision (name, no) WHERE name IS NOT NULL",
)

_DEFECTS = (
    # answers that were cut off, are empty, or were refused
    "ALTER TABLE job ADD COLUMN truncated {int} NOT NULL DEFAULT 0",
    "ALTER TABLE job ADD COLUMN empty {int} NOT NULL DEFAULT 0",
    "ALTER TABLE job ADD COLUMN refused {int} NOT NULL DEFAULT 0",
)

Step = Sequence[str | Renaming | Callable[[Transaction], None]]

MIGRATIONS: tuple[Step, ...] = (
    _FIRST,
    _MONEY,
    _RECORDS,
    _FOLLOWERS,
    _EARLIER_TRIES,
    _SUMMARIES,
    _CONTROLS,
    _LOOKING,
    _NAMES,
    _DEFECTS,
)
"""Step *n* leads from version *n* to *n* + 1."""


def migrate(database: Database, types: Mapping[str, str], steps: Sequence[Step] = MIGRATIONS) -> None:
    """Bring a database to the present version in one transaction.

    Args:
        types: how the dialect spells the words in braces.
        steps: what leads from each version to the next.

    Raises:
        StoreError: the database was written by a newer release; it is left as it is.
    """

    def work(tx: Transaction) -> None:
        tx.lock("schema")
        tx.change("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        version = stored_version(tx, database.place, steps)
        for step in steps[version:]:
            for statement in step:
                if callable(statement):
                    statement(tx)
                elif isinstance(statement, Renaming):
                    if version >= statement.since:
                        tx.change(statement.statement)
                else:
                    tx.change(statement.format_map(types).replace("{", "{{").replace("}", "}}"))
        if version < len(steps):
            tx.change("DELETE FROM schema_version")
            tx.change("INSERT INTO schema_version VALUES (?)", len(steps))

    database.write(work)


def stored_version(reader: Reader, place: str, steps: Sequence[Step]) -> int:
    """Return the version of the tables; 0 before there are any.

    Raises:
        StoreError: this release does not know it.
    """
    found = reader.row("SELECT version FROM schema_version")
    version = 0 if found is None else int(found[0])
    if version > len(steps):
        raise StoreError(
            f"the store {place} has version {version}, and this release knows versions up to {len(steps)}:"
            " a newer smartbatch wrote it; update smartbatch, or name another store"
        )
    return version
