"""The tables of a store, and the conversion of rows to records.

The number of an item is ``job number * 2**32 + position``, so that one column contains both, in order. Data
written once (requests, parameters) is separate from data that changes, so that a change of state writes few
bytes. Text from users and providers is stored as bytes, since text columns reject some characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from attrs import AttrsInstance, fields, fields_dict

from smartbatch.errors import StoreError
from smartbatch.jobs.records import (
    EarlierTries,
    IncidentRow,
    JobPolicy,
    JobRow,
    JobState,
    OpenItem,
    ResultRow,
    StoredItem,
)
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState
from smartbatch.jobs.store.database import (
    DAMAGES,
    STATES,
    Database,
    Reader,
    Row,
    Transaction,
    ascii_json,
    damaged,
    decoded,
    encoded,
    position,
    record_of,
    record_text,
)
from smartbatch.types import Usage

_T = TypeVar("_T", bound=AttrsInstance)
SCHEMA_VERSION = 4  # version of the tables below, recorded in each store

TABLES = (
    # jobs being stored or deleted, whose items belong to no row of the table job
    "CREATE TABLE incomplete_job (no {serial}, owner TEXT NOT NULL)",
    # reserved: USD that may be spent in addition to the cost; truncated, empty, refused: counts of answers
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
        lease_until {real} NOT NULL DEFAULT 0,
        reserved {real} NOT NULL DEFAULT 0,
        truncated {int} NOT NULL DEFAULT 0,
        empty {int} NOT NULL DEFAULT 0,
        refused {int} NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX job_unfinished ON job (state, no)",
    "CREATE TABLE job_params (no {key}, body {bytes} NOT NULL)",
    # state: see ItemState; the first three are unfinished work
    """CREATE TABLE item (
        no {key},
        state {int} NOT NULL,
        tries {int} NOT NULL,
        shard {int},
        size {int} NOT NULL,
        tokens {int} NOT NULL
    )""",
    "CREATE INDEX item_waiting ON item (state, no) WHERE {waiting}",
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
        reserved {real} NOT NULL DEFAULT 0,
        UNIQUE (job, no)
    )""",
    "CREATE INDEX shard_scope ON shard (scope, state)",
    "CREATE INDEX shard_batch ON shard (batch_id)",
    "CREATE INDEX shard_ended ON shard (scope, ended_at) WHERE ended_at IS NOT NULL",
    # the positions in the job of a shard's items, four bytes each, little-endian
    "CREATE TABLE shard_items (id TEXT NOT NULL PRIMARY KEY, job {int} NOT NULL, positions {bytes} NOT NULL)",
    """CREATE TABLE result (
        no {key},
        seq {int} NOT NULL UNIQUE,
        outcome TEXT NOT NULL,
        digest {bytes} NOT NULL,
        cost {real},
        body {bytes} NOT NULL
    )""",
    # the line of an item that is sent again; deleted when its shard is settled
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
    # what providers store for batches that have ended (then with its job), files uploaded for prompts, and
    # explicit prompt caches, whose sender uses them;
    # retention: seconds after the end of the job, or the last use; due_at: time of the next attempt to delete
    # it; file_key: content of a file that may be used; sender: owner that uploads it, while its id is empty
    """CREATE TABLE remote_object (
        no {serial},
        job {int} NOT NULL,
        scope TEXT NOT NULL,
        model TEXT NOT NULL,
        kind TEXT NOT NULL,
        id TEXT NOT NULL,
        bytes {int} NOT NULL,
        retention {real},
        due_at {real},
        expires_at {real} NOT NULL,
        tries {int} NOT NULL DEFAULT 0,
        name TEXT,
        file_key TEXT,
        sender TEXT,
        sending_until {real},
        used_until {real}
    )""",
    "CREATE INDEX remote_object_file ON remote_object (scope, file_key) WHERE file_key IS NOT NULL",
    # files that a job uploads instead of sending them in each request; object: 0, and each upload it has used
    """CREATE TABLE upload_use (
        job {int} NOT NULL,
        file_key TEXT NOT NULL,
        object {int} NOT NULL,
        PRIMARY KEY (job, file_key, object)
    )""",
    "CREATE INDEX upload_use_object ON upload_use (object)",
    "CREATE INDEX upload_use_key ON upload_use (file_key)",
    "CREATE INDEX remote_object_due ON remote_object (due_at, scope)",
    "CREATE INDEX remote_object_job ON remote_object (job)",
    # webhook events about changed batches; used: a poll that began after the event arrived was stored
    """CREATE TABLE webhook_event (
        no {serial},
        id {bytes} NOT NULL UNIQUE,
        batch TEXT NOT NULL,
        at {real} NOT NULL,
        used {int} NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX webhook_event_batch ON webhook_event (batch, used, no)",
    "CREATE INDEX webhook_event_at ON webhook_event (at)",
    # items that are not sent: each gets the result of an identical item of its job, the leader
    "CREATE TABLE follower (no {key}, leader {int} NOT NULL)",
    "CREATE INDEX follower_leader ON follower (leader, no)",
    # usage of tries that did not end their item, and the last rejected answer among them
    """CREATE TABLE earlier_tries (no {key}, cost {real}, usage TEXT NOT NULL, body {bytes})""",
    # summaries for overviews, which never read the tables of items
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
        body TEXT NOT NULL,
        name {bytes}
    )""",
    "CREATE INDEX decision_name ON decision (name, no) WHERE name IS NOT NULL",
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
    # hour: since 1970; part: spreads concurrent writers of an hour over several rows
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
    # settings made while work is running; model and reason are text from users
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
    # earlier results of failed rows that were sent again
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
    # for searches among millions of results, and for the incidents of one job
    "CREATE INDEX result_failed ON result (no) WHERE outcome <> 'succeeded'",
    "CREATE INDEX incident_job ON incident (job_id, no)",
)


def create_tables(database: Database, types: Mapping[str, str]) -> None:
    """Create the tables, unless another process has just created them.

    Args:
        types: the dialect's spelling of the words in braces.

    Raises:
        StoreError: the tables have another version; they are not changed.
    """

    def work(tx: Transaction) -> None:
        tx.lock("schema")
        tx.change("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
        if has_tables(tx, database.place):
            return
        for statement in TABLES:
            tx.change(statement.format_map({**types, **STATES}).replace("{", "{{").replace("}", "}}"))
        tx.change("INSERT INTO schema_version VALUES (?)", SCHEMA_VERSION)

    database.write(work)


def has_tables(reader: Reader, place: str) -> bool:
    """Whether a database has the tables of a store.

    Raises:
        StoreError: it has another version of them.
    """
    found = reader.row("SELECT version FROM schema_version")
    if found is not None and found[0] != SCHEMA_VERSION:
        raise StoreError(
            f"the store {place} has version {found[0]}, but this smartbatch uses version "
            f"{SCHEMA_VERSION}; use the release that wrote it, or use another store"
        )
    return found is not None


# -- rows as records -----------------------------------------------------------------------------------------


def maker(record: type[_T], **converters: Callable[[Any], Any]) -> Callable[[Row], _T]:
    """Return a function that converts rows to records; the columns are the fields, in order."""
    names = [field.name for field in fields(record)]
    converted = [(names.index(name), convert) for name, convert in converters.items()]
    make: Callable[..., _T] = record

    def made(row: Row) -> _T:
        values = list(row[: len(names)])
        try:
            for at, convert in converted:
                values[at] = convert(values[at])
        except DAMAGES:
            raise damaged(record.__name__) from None
        return make(*values)

    return made


_ELSEWHERE = {
    "key": "j.user_key",
    "params": "p.body",
    "job_id": "(SELECT j.id FROM job j WHERE j.no = shard.job)",
}
"""Fields of records without a column of the same name."""
_JOB_COLUMNS = ", ".join(_ELSEWHERE.get(name, f"j.{name}") for name in fields_dict(JobRow))
JOBS = f"SELECT {_JOB_COLUMNS}, j.lease_until FROM job j JOIN job_params p ON p.no = j.no "
"""Jobs, each with the Unix time at which its lease expires."""
SHARD_COLUMNS = ", ".join(_ELSEWHERE.get(name, name) for name in fields_dict(ShardRow))
_JOB_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "key": decoded,
    "metadata": json.loads,
    "policy": partial(record_of, JobPolicy),
    "state": JobState,
    "cancel_requested": bool,
    "note": decoded,
}
job_row = maker(JobRow, **_JOB_FIELDS)  # from a row of JOBS
shard_row = maker(
    ShardRow,
    state=ShardState,
    foreign_batches=lambda text: tuple(json.loads(text)),
    remote=partial(record_of, RemoteProgress),
    cancelled=bool,
    cleaned_up=bool,
    note=decoded,
)
_result_row = maker(ResultRow, ix=position, user_id=decoded, seq=position, follower=bool)
incident_row = maker(IncidentRow, detail=decoded)
open_item = maker(OpenItem, ix=position)
stored_item = maker(StoredItem, ix=position, user_id=decoded)
_FIXED = ("id", "job_id", "no", "nonce", "scope", "model", "state", "size", "tokens")
SHARD_CHANGES: dict[str, Callable[[Any], Any]] = {
    **{name: lambda value: value for name in fields_dict(ShardRow) if name not in _FIXED},
    "foreign_batches": ascii_json,
    "remote": record_text,
    "cancelled": int,
    "cleaned_up": int,
    "note": encoded,
}
"""Columns of a shard that may change in addition to its state, with the encoding of each."""


def result_row(row: Row) -> ResultRow:
    *own, cost, usage, body = row
    return _result_row((*own, None if usage is None else earlier_tries((cost, usage, body))))


def earlier_tries(row: Row) -> EarlierTries:
    cost, usage, body = row
    try:
        return EarlierTries(cost, Usage(*json.loads(usage)), body)
    except DAMAGES:
        raise damaged("record of earlier tries") from None
