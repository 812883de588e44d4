"""The interface between a store and its database: rows, write transactions, and the encoding of values.

Each statement is written once, with ``?`` for every value and placeholders for the differences between
dialects:

- ``{numbers}``, ``{texts}``: a set of values, passed as a list in one parameter;
- ``{for_update}``, ``{skip_locked}``: lock the row for this transaction, if the database has row locks.

The states of items, jobs and shards have placeholders too, such as ``{open}``. Jobs and shards store a
string, items a number, because there may be millions of items. Text from users is stored as bytes, and
records as JSON with a version.
"""

from __future__ import annotations

import enum
import json
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

from attrs import asdict

from smartbatch.errors import StoreError
from smartbatch.jobs.records import ItemState, JobPolicy, JobState, StoredCounts
from smartbatch.jobs.shard_records import RemoteProgress, ShardState

STATES = {
    state.name.lower(): repr(state.value) for states in (ItemState, JobState, ShardState) for state in states
} | {"waiting": f"state < {ItemState.SHARDED.value}"}
"""SQL for each state. ``{waiting}`` selects unfinished items by the same condition as the index
``item_waiting``, so that the index is used.
"""

Row = tuple[Any, ...]
_T = TypeVar("_T")
POSITION_BITS = 32  # bits of an item's number that contain its position in the job
PAGE_BYTES = 8 << 20  # read at a time, which limits memory even for long prompts and answers
_POSITION_MASK = (1 << POSITION_BITS) - 1
DAMAGES: Final = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors that parsing damaged records can raise."""
_Record = TypeVar("_Record", JobPolicy, RemoteProgress)


REMEMBER_FACT = """INSERT INTO fact (name, value) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""


class Reader(Protocol):
    """A database, or a transaction in it."""

    def rows(self, statement: str, *values: Any) -> list[Row]:
        """Outside a transaction, this never waits for a writer."""
        ...

    def row(self, statement: str, *values: Any) -> Row | None:
        found = self.rows(statement, *values)
        return found[0] if found else None


class Transaction(Reader, Protocol):
    """A write transaction. Data that it has read cannot change before it ends."""

    counted: list[StoredCounts]  # additions to the counts of jobs, to be reported after the commit

    def change(self, statement: str, *values: Any) -> int: ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows efficiently."""
        ...

    def at_commit(self, statement: str, *values: Any) -> None:
        """Run a statement at the end of this transaction, in the same round trip as its commit.

        Use this for rows that many transactions change: they are locked no longer than a commit takes. The
        first values must be the key of the row: statements run in key order, so that two committing
        transactions never wait for each other.
        """
        ...

    def lock(self, name: str) -> None:
        """Wait for the lock ``name``, and hold it until the transaction ends."""
        ...


class Database(Reader, Protocol):
    """A database with the tables of a store. Connections are opened on first use.

    Each method may raise ``StoreError``: the database is unavailable.
    """

    place: str  # path or address, for display

    def open(self) -> None:
        """Create missing tables, and check their version."""
        ...

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run ``work`` in a transaction and commit it durably; an exception rolls it back and is raised.

        This is a function, not a context manager: a Ctrl-C between the entry of a context manager written in
        Python and its block would leave the lock and the transaction open.

        Raises:
            StoreError: the transaction cannot begin, or its commit failed and nothing was written.
        """
        ...

    def change(self, statement: str, *values: Any) -> int:
        """Run one statement in its own transaction."""
        return self.write(lambda tx: tx.change(statement, *values))

    def now(self) -> float:
        """Return the Unix time of a clock that all users of the database share."""
        ...

    def reclaim(self) -> None:
        """Return the space of deleted rows to the system, as far as possible; this may take a while."""
        ...

    def give_up(self) -> None:
        """Make pending and future waits for the database fail. The caller closes it afterwards."""
        ...

    def close(self) -> None:
        """Close all connections. May be called twice."""
        ...

    def abandon(self) -> None:
        """Drop all connections without notifying the server.

        In a forked child, they belong to the parent. In the process that opened them, this has the effect of
        its death.
        """
        ...


# -- values --------------------------------------------------------------------------------------------------


def number(job: int, ix: int) -> int:
    return job << POSITION_BITS | ix


def first_of(job: int) -> int:
    """Return the number of a job's first item. The items of the next job follow directly."""
    return job << POSITION_BITS


def position(no: int) -> int:
    return no & _POSITION_MASK


def encoded(text: str | None) -> bytes | None:
    """Encode text that may contain any character, including lone surrogates and NUL."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def decoded(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode("utf-8", "surrogatepass")


def fitting(sizes: Iterable[int]) -> int:
    """Return how many of the first sizes fit into a page of :data:`PAGE_BYTES`; at least one."""
    count = size = 0
    for one in sizes:
        size += one
        if count and size > PAGE_BYTES:
            break
        count += 1
    return count


def ascii_json(value: Any) -> str:
    """Return compact JSON in ASCII, which a text column of any database accepts."""
    return json.dumps(value, separators=(",", ":"))


def packed(positions: Iterable[int]) -> bytes:
    """Encode each position in four bytes, little-endian."""
    return _little(array("I", positions)).tobytes()


def unpacked(stored: bytes) -> array[int]:
    positions = array("I")
    positions.frombytes(stored)
    return _little(positions)


def _little(positions: array[int]) -> array[int]:
    if sys.byteorder == "big":
        positions.byteswap()
    return positions


def record_text(record: JobPolicy | RemoteProgress) -> str:
    """Return a record as JSON with all fields by name and the record's version."""
    fields = asdict(record, recurse=False, value_serializer=_plain)
    return ascii_json({"version": record.version, **fields})


def _plain(_: object, __: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def damaged(what: str) -> StoreError:
    return StoreError(f"a {what} in the store is damaged; it was not changed. Restore the store from a copy")


def record_of(kind: type[_Record], stored: str) -> _Record:
    """Parse the record written by :func:`record_text`.

    Raises:
        StoreError: it is damaged, or a newer release wrote it, with fields that this release would ignore.
    """
    try:
        fields = json.loads(stored)
        version = fields.pop("version")
        if version <= kind.version:
            return kind(**fields)
    except DAMAGES:
        raise damaged(kind.__name__) from None
    raise StoreError(
        f"a {kind.__name__} in the store has version {version!r:.20}, but this release supports versions up"
        f" to {kind.version}: a newer smartbatch wrote it. Update smartbatch, or use another store"
    )
