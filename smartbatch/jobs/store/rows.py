"""Turns rows of the database into :mod:`smartbatch.jobs.records`, and fields of these into columns."""

from __future__ import annotations

import enum
import json
import sys
from array import array
from collections.abc import Iterable
from typing import Any, TypeVar

from attrs import asdict

from smartbatch.errors import StoreError
from smartbatch.jobs.records import (
    IncidentRow,
    JobPolicy,
    JobRow,
    JobState,
    RemoteProgress,
    ResultRow,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store.database import Row
from smartbatch.jobs.store.migrations import SHIFT

__all__ = [
    "SHARD_CHANGES",
    "bare",
    "decoded",
    "encoded",
    "first_of",
    "fitting",
    "incident_row",
    "job_row",
    "number",
    "packed",
    "position",
    "record_of",
    "record_text",
    "result_row",
    "shard_row",
    "unpacked",
]

_Record = TypeVar("_Record", JobPolicy, RemoteProgress)

PAGE_BYTES = 8 << 20
"""Bytes of contents read at a time, so that prompts and answers of any length need little memory."""

_MASK = (1 << SHIFT) - 1


def number(job: int, ix: int) -> int:
    """Return the number of the item at position ``ix`` of job number ``job``."""
    return job << SHIFT | ix


def first_of(job: int) -> int:
    """Return the number of a job's first item; that of the next job is beyond its last."""
    return job << SHIFT


def position(no: int) -> int:
    """Return an item's position in its job from its number."""
    return no & _MASK


def encoded(text: str | None) -> bytes | None:
    """Return a text as the bytes a store keeps, whatever characters it has, lone surrogates and NUL too."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decoded(kept: bytes | None) -> str | None:
    """Return the text of :func:`encoded`."""
    return None if kept is None else kept.decode("utf-8", "surrogatepass")


def fitting(sizes: Iterable[int]) -> int:
    """Return how many of the first make a page of at most :data:`PAGE_BYTES`; one always does."""
    count = size = 0
    for one in sizes:
        size += one
        if count and size > PAGE_BYTES:
            break
        count += 1
    return count


def bare(value: Any) -> str:
    """Return compact JSON in ASCII, which a text column of any database takes."""
    return json.dumps(value, separators=(",", ":"))


def record_text(record: JobPolicy | RemoteProgress) -> str:
    """Return a versioned record as the JSON a store keeps: every field by its name, and the version."""
    fields = asdict(record, recurse=False, value_serializer=_plain)
    return bare({"version": record.version, **fields})


def _plain(_: object, __: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def record_of(kind: type[_Record], kept: str) -> _Record:
    """Return the record of :func:`record_text`.

    Raises:
        StoreError: a newer release wrote it, or it is damaged. Nothing is guessed: what a newer release
            decided, this one could not honour.
    """
    try:
        stored = json.loads(kept)
        version = stored.pop("version")
        if version <= kind.version:
            return kind(**stored)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreError(
            f"a {kind.__name__} of the store is damaged and was left as it is; restore the store from a copy"
        ) from None
    raise StoreError(
        f"a {kind.__name__} of the store has version {version!r:.20}, and this release knows versions up to"
        f" {kind.version}: a newer smartbatch wrote it; update smartbatch, or name another store"
    )


def packed(positions: Iterable[int]) -> bytes:
    """Return positions as four bytes each."""
    return _little(array("I", positions)).tobytes()


def unpacked(kept: bytes) -> array[int]:
    """Return the positions of :func:`packed`."""
    positions = array("I")
    positions.frombytes(kept)
    return _little(positions)


def _little(positions: array[int]) -> array[int]:
    if sys.byteorder == "big":
        positions.byteswap()
    return positions


def job_row(row: Row) -> JobRow:
    """Return the job of a row of ``statements.JOB_BY_ID``."""
    return JobRow(
        id=row[0],
        key=decoded(row[1]),
        scope=row[2],
        model=row[3],
        kind=row[4],
        params=row[5],
        metadata=json.loads(row[6]),
        policy=record_of(JobPolicy, row[7]),
        state=JobState(row[8]),
        created_at=row[9],
        finished_at=row[10],
        total=row[11],
        succeeded=row[12],
        failed=row[13],
        cancelled=row[14],
        cost=row[15],
        realtime_cost=row[16],
        unpriced=row[17],
        input_tokens=row[18],
        output_tokens=row[19],
        cancel_requested=bool(row[20]),
        note=decoded(row[21]),
        epoch=row[22],
        owner=row[23],
        digest=row[24],
        reserved=row[25],
    )


def shard_row(row: Row) -> ShardRow:
    """Return the shard of a row of ``statements.SHARD_COLUMNS``."""
    return ShardRow(
        id=row[0],
        job_id=row[1],
        no=row[2],
        nonce=row[3],
        scope=row[4],
        model=row[5],
        state=ShardState(row[6]),
        size=row[7],
        bytes=row[8],
        tokens=row[9],
        due_at=row[10],
        tries=row[11],
        file_id=row[12],
        batch_id=row[13],
        watermark=row[14],
        server_time=row[15],
        submitted_at=row[16],
        uncertain_since=row[17],
        fenced_at=row[18],
        candidate=row[19],
        foreign_batches=tuple(json.loads(row[20])),
        remote=record_of(RemoteProgress, row[21]),
        cancelled=bool(row[22]),
        ended_at=row[23],
        settled_at=row[24],
        died_at=row[25],
        cleaned_up=bool(row[26]),
        results_until=row[27],
        cost=row[28],
        note=decoded(row[29]),
        reserved=row[30],
    )


def _same(value: Any) -> Any:
    return value


SHARD_CHANGES: dict[str, tuple[str, Any]] = {
    **{
        name: (name, _same)
        for name in (
            "due_at",
            "tries",
            "file_id",
            "batch_id",
            "watermark",
            "server_time",
            "submitted_at",
            "uncertain_since",
            "fenced_at",
            "candidate",
            "ended_at",
            "settled_at",
            "died_at",
            "results_until",
            "cost",
            "bytes",
            "reserved",
        )
    },
    "foreign_batches": ("foreign_batches", lambda ids: bare(list(ids))),
    "remote": ("remote", record_text),
    "cancelled": ("cancelled", int),
    "cleaned_up": ("cleaned_up", int),
    "note": ("note", encoded),
}
"""What may change of a shard besides its state: the column, and how a value is written."""


def result_row(row: Row) -> ResultRow:
    """Return the result of a row of ``statements.RESULTS``."""
    return ResultRow(
        ix=position(row[0]),
        user_id=decoded(row[1]),
        outcome=row[2],
        body=row[3],
        payload=row[4],
        cost=row[5],
        seq=position(row[6]),
    )


def incident_row(row: Row) -> IncidentRow:
    """Return the incident of a row of ``statements.INCIDENTS``."""
    return IncidentRow(
        kind=row[0],
        job_id=row[1],
        shard_id=row[2],
        detail=decoded(row[3]) or "",
        money=row[4],
        at=row[5],
    )
