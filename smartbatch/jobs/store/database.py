"""What a store needs of a database: rows, writes in transactions, and how values are written.

Statements are written once, with ``?`` for every value and these words for what the dialects spell their own
way:

- ``{numbers}``, ``{texts}``: a set of values given as one parameter, a list;
- ``{for_update}``, ``{skip_locked}``: lock the row for this transaction, where rows have locks.

A state of items, jobs and shards is named by such a word, too: ``{open}``, ``{done}``, ``{settled}``, and so
on. Jobs and shards keep a text, items a number, because there may be millions of them. Texts of users are
kept as bytes, and records as JSON with a version.
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
"""How the states are written. ``{waiting}``: items with something left to do, in the words of the index
``item_waiting``; only then is it used."""

Row = tuple[Any, ...]
_T = TypeVar("_T")
SHIFT = 32
"""Bits of an item's number that are its position in the job."""
PAGE_BYTES = 8 << 20
"""Bytes of contents read at a time, so that prompts and answers of any length need little memory."""
_MASK = (1 << SHIFT) - 1
DAMAGES: Final = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""Errors of the readers of what is stored, if it is damaged."""
_Record = TypeVar("_Record", JobPolicy, RemoteProgress)


class Reader(Protocol):
    """A database, or a transaction in it."""

    def rows(self, statement: str, *values: Any) -> list[Row]:
        """Return all rows. Outside of a transaction it never waits for a writer."""
        ...

    def row(self, statement: str, *values: Any) -> Row | None:
        """Return the first row."""
        found = self.rows(statement, *values)
        return found[0] if found else None


class Transaction(Reader, Protocol):
    """One write transaction. What it reads cannot change before it ends.

    Attributes:
        counted: what it added to the counts of jobs, to be told after its commit.
    """

    counted: list[StoredCounts]

    def change(self, statement: str, *values: Any) -> int:
        """Return how many rows were changed."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows the fastest way."""
        ...

    def at_commit(self, statement: str, *values: Any) -> None:
        """Do a statement at the end of this transaction, on the same way to the server as its commit.

        For rows that many transactions change: they are locked no longer than a commit takes. The first
        values are the key of the row: statements go in their order, so that no two transactions that commit
        wait for each other.
        """
        ...

    def lock(self, name: str) -> None:
        """Let nobody else who asks for ``name`` go on before this transaction ends."""
        ...


class Database(Reader, Protocol):
    """A database with the tables of a store. Opens its connections when they are first used.

    Each method may raise StoreError: the database cannot be used.

    Attributes:
        place: where it is, for people.
    """

    place: str

    def open(self) -> None:
        """Make what is missing, and bring the tables to the present version."""
        ...

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Do ``work`` in a transaction and commit it durably; an exception undoes it and is raised.

        A function, not a context manager: one written in Python is left as it is, with lock and transaction,
        by a Ctrl-C between its beginning and the block.

        Raises:
            StoreError: it cannot begin, or its commit failed: then nothing of it is there.
        """
        ...

    def change(self, statement: str, *values: Any) -> int:
        """Do one statement in a transaction of its own; return how many rows were changed."""
        return self.write(lambda tx: tx.change(statement, *values))

    def now(self) -> float:
        """Return Unix seconds by the clock that all users of the database share."""
        ...

    def give_back(self) -> None:
        """Give the room of deleted rows back to the system, as far as the database can; takes a while."""
        ...

    def give_up(self) -> None:
        """Have everything fail that waits for the database, now and from now on; close it afterwards."""
        ...

    def close(self) -> None:
        """Close all connections. May be called twice."""
        ...

    def abandon(self) -> None:
        """Forget all connections: in a forked child without sending anything, because they are the parent's.

        In the process that opened them they are cut, as its death would cut them.
        """
        ...


# -- values --------------------------------------------------------------------------------------------------


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


def record_text(record: JobPolicy | RemoteProgress) -> str:
    """Return a versioned record as the JSON a store keeps: every field by its name, and the version."""
    fields = asdict(record, recurse=False, value_serializer=_plain)
    return bare({"version": record.version, **fields})


def _plain(_: object, __: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


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
