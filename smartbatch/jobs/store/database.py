"""What a store needs of a database: rows, writes in transactions, and the few words in which dialects differ.

Statements are written once, with ``?`` for every value and these words for what the dialects spell their own
way:

- ``{numbers}``, ``{texts}``: a set of values given as one parameter, a list;
- ``{for_update}``, ``{skip_locked}``: lock the row for this transaction, where rows have locks.

A state of items, jobs and shards is named by such a word, too: ``{open}``, ``{done}``, ``{settled}``, and so
on. Jobs and shards keep a text, items a number, because there may be millions of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from smartbatch.jobs.records import ItemState, JobState, ShardState, StoredCounts

STATES = {
    state.name.lower(): repr(state.value) for states in (ItemState, JobState, ShardState) for state in states
} | {"waiting": f"state < {ItemState.SHARDED.value}"}
"""How the states are written. ``{waiting}``: items with something left to do, in the words of the index
``item_waiting``; only then is it used."""

Row = tuple[Any, ...]
_T = TypeVar("_T")


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
