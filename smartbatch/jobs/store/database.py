"""What a store needs of a database: rows, writes in transactions, and the few words in which dialects differ.

Statements are written once, with ``?`` for every value and these words for what the dialects spell their own
way:

- ``{numbers}``, ``{texts}``: a set of values given as one parameter, see :meth:`Database.many`;
- ``{for_update}``, ``{skip_locked}``: lock the row for this transaction, where rows have locks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["Database", "Reader", "Row", "Transaction"]

Row = tuple[Any, ...]


class Reader(Protocol):
    """A database, or a transaction in it."""

    def rows(self, statement: str, *values: Any) -> list[Row]:
        """Return all rows."""
        ...

    def row(self, statement: str, *values: Any) -> Row | None:
        """Return the first row."""
        ...


class Transaction(Reader, Protocol):
    """One write transaction. What it reads cannot change before it ends."""

    def change(self, statement: str, *values: Any) -> int:
        """Return how many rows were changed."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert many rows the fastest way."""
        ...

    def lock(self, name: str) -> None:
        """Let nobody else who asks for ``name`` go on before this transaction ends."""
        ...


class Database(ABC):
    """A database with the tables of a store. Opens its connections when they are first used.

    Attributes:
        place: where it is, for people.
    """

    place: str
    words: Mapping[str, str]
    """The dialect's spelling of the words in braces."""

    def __init__(self) -> None:
        self._spelled: dict[str, str] = {}

    def spell(self, statement: str) -> str:
        """Return ``statement`` in the dialect."""
        known = self._spelled.get(statement)
        if known is None:
            known = self._spelled[statement] = self._spell(statement)
        return known

    def _spell(self, statement: str) -> str:
        return statement.format_map(self.words)

    @abstractmethod
    def open(self) -> None:
        """Make what is missing, and bring the tables to the present version.

        Raises:
            StoreError: the database cannot be used.
        """

    @abstractmethod
    def rows(self, statement: str, *values: Any) -> list[Row]:
        """Read outside of any transaction; never waits for a writer.

        Raises:
            StoreError: the database cannot be read.
        """

    def row(self, statement: str, *values: Any) -> Row | None:
        """Return the first row of :meth:`rows`."""
        found = self.rows(statement, *values)
        return found[0] if found else None

    @abstractmethod
    def writing(self) -> AbstractContextManager[Transaction]:
        """Begin a write; the end of the block commits it durably, an exception undoes it.

        Raises:
            StoreError: it cannot begin, or its commit failed: then nothing of it is there.
        """

    @abstractmethod
    def now(self) -> float:
        """Return Unix seconds by the clock that all users of the database share."""

    @abstractmethod
    def many(self, values: Collection[int] | Collection[str]) -> Any:
        """Return values as the one parameter ``{numbers}`` and ``{texts}`` take."""

    @abstractmethod
    def give_back(self) -> None:
        """Give the room of deleted rows back to the system, as far as the database can; takes a while."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections. May be called twice."""

    @abstractmethod
    def abandon(self) -> None:
        """Forget all connections: in a forked child without sending anything, because they are the parent's.

        In the process that opened them they are cut, as its death would cut them.
        """
