"""A look at a store past its objects, on either database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from attrs import frozen


@frozen
class StoreView:
    """Reads a store; a connection for each look."""

    place: str

    @property
    def is_file(self) -> bool:
        return "://" not in self.place

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        if self.is_file:
            with closing(sqlite3.connect(f"file:{self.place}?mode=ro", uri=True, timeout=0.3)) as connection:
                return connection.execute(statement).fetchall()
        import psycopg

        address, _, rest = self.place.partition("schema=")
        schema = rest.partition("&")[0]
        with psycopg.connect(address.rstrip("?&")) as session:
            session.execute(f"SET search_path TO {schema}".encode())
            return session.execute(statement.encode()).fetchall()
