"""Turns rows of the database into :mod:`smartbatch.jobs.records`, and fields of these into columns."""

from __future__ import annotations

import enum
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from attrs import AttrsInstance, asdict, fields, fields_dict

from smartbatch.errors import StoreError
from smartbatch.jobs.records import (
    EarlierTries,
    IncidentRow,
    JobRow,
    JobState,
    OpenItem,
    ResultRow,
    ShardRow,
    ShardState,
    StoredItem,
)
from smartbatch.jobs.store.database import Row
from smartbatch.jobs.store.schema import SHIFT
from smartbatch.jobs.versioned_records import JobPolicy, RemoteProgress
from smartbatch.types import Usage

_T = TypeVar("_T", bound=AttrsInstance)
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


DAMAGES: Final = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors of the readers of what is stored, if it is damaged."""


def damaged(what: str) -> StoreError:
    """Return the error of a damaged record."""
    return StoreError(
        f"a {what} of the store is damaged and was left as it is; restore the store from a copy"
    )


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
    except DAMAGES:
        raise damaged(kind.__name__) from None
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


def maker(record: type[_T], **converters: Callable[[Any], Any]) -> Callable[[Row], _T]:
    """Return what makes records of rows that have a column for each field, in order."""
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
"""Fields of records that are no column of the same name."""
_JOB_COLUMNS = ", ".join(_ELSEWHERE.get(name, f"j.{name}") for name in fields_dict(JobRow))
JOBS = f"SELECT {_JOB_COLUMNS}, j.lease_until FROM job j JOIN job_params p ON p.no = j.no "
"""Jobs, and when the lease of the owner of each ends."""
SHARD_COLUMNS = ", ".join(_ELSEWHERE.get(name, name) for name in fields_dict(ShardRow))

JOB_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "key": decoded,
    "metadata": json.loads,
    "policy": partial(record_of, JobPolicy),
    "state": JobState,
    "cancel_requested": bool,
    "note": decoded,
}
"""What makes the fields of a job of its columns, where these are not the same."""
job_row = maker(JobRow, **JOB_FIELDS)
"""Returns the job of a row of :data:`JOBS`."""
shard_row = maker(
    ShardRow,
    state=ShardState,
    foreign_batches=lambda kept: tuple(json.loads(kept)),
    remote=partial(record_of, RemoteProgress),
    cancelled=bool,
    cleaned_up=bool,
    note=decoded,
)
"""Returns the shard of a row of :data:`SHARD_COLUMNS`."""
_result_row = maker(ResultRow, ix=position, user_id=decoded, seq=position, follower=bool)


def result_row(row: Row) -> ResultRow:
    """Return the result of a row of :mod:`.item_table`."""
    *own, cost, usage, body = row
    return _result_row((*own, None if usage is None else earlier_tries((cost, usage, body))))


def earlier_tries(row: Row) -> EarlierTries:
    """Return the record of cost, usage and body of a row of its table."""
    cost, usage, body = row
    try:
        return EarlierTries(cost, Usage(*json.loads(usage)), body)
    except DAMAGES:
        raise damaged("record of earlier tries") from None


incident_row = maker(IncidentRow, detail=decoded)
open_item = maker(OpenItem, ix=position)
stored_item = maker(StoredItem, ix=position, user_id=decoded)
"""Each returns the record of a row that has its fields, in order."""

_FIXED = ("id", "job_id", "no", "nonce", "scope", "model", "state", "size", "tokens")
SHARD_CHANGES: dict[str, Callable[[Any], Any]] = {
    **{name: lambda value: value for name in fields_dict(ShardRow) if name not in _FIXED},
    "foreign_batches": bare,
    "remote": record_text,
    "cancelled": int,
    "cleaned_up": int,
    "note": encoded,
}
"""Columns of a shard that may change besides its state, and how a value of each is written."""
