"""Answers kept from run to run: a SQLite file that spares the same request its second call.

Off unless ``cache`` names a file. The file holds answers in the clear, so it is made readable for its owner
only; prompts are not in it, only their fingerprints. A damaged or foreign entry counts as a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from smartbatch._clock import RealClock
from smartbatch._files import check_logs
from smartbatch._sqlite import SqliteConnections, connect_sqlite
from smartbatch.chats import PART_FORMS
from smartbatch.errors import ConfigError, StoreError
from smartbatch.events import CacheUnavailable, Event
from smartbatch.providers.vectors import from_base64, to_base64
from smartbatch.types import Answer

VERSION = 1
"""Form of the table and of its entries; a file of another version is refused, not overwritten."""
PATIENCE = 2.0
"""Seconds that a write waits for another process: a worker waits with it, and its answer is there."""
PAUSE = 30.0
"""Seconds without writes after one that failed: each would cost a worker the same wait."""
WHOLE = ("stop", "tool_calls")
"""Finish reasons of the answers that are kept."""
TRIM_EVERY = 100
"""Writes over a connection from one look at the size, which reads the whole index, to the next. The first
looks, as many processes may write a few answers each."""
TRIM_TO = 0.9
"""Part of the allowed size that is left after trimming, so that not every write trims."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY,
    created REAL NOT NULL,
    size INTEGER NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON answers (created);
"""


class ResponseCache:
    """Whole answers by fingerprint. Safe from any thread and process.

    Args:
        path: the file; made when it is not there, in a folder that is.
        ttl: seconds after which an answer counts no more.
        max_bytes: most bytes of answers; the oldest go first.
        wall: Unix seconds, for the ages of answers.
        now: monotonic seconds.
        tell: takes an event when the file cannot be written; never raises.

    Raises:
        ConfigError: the file cannot be used: its folder is missing, it is not a cache, or it is damaged.
    """

    def __init__(
        self,
        path: str,
        *,
        ttl: float,
        max_bytes: int,
        wall: Callable[[], float],
        now: Callable[[], float] = RealClock.now,
        tell: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._path = Path(path).expanduser()
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._wall = wall
        self._now = now
        self._tell = tell
        self._writes = 0
        self._paused_until = -math.inf
        self._failing = False
        self._connections = SqliteConnections(self._connect)
        try:
            with self._connections.reading():
                self._connections.reader()
        except (OSError, sqlite3.Error, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"cache: the file {self._path} cannot be used ({reason}); name another or delete it"
            ) from None

    def get(self, key: bytes) -> Answer | None:
        """Return the answer kept under ``key``, or ``None``; whatever is wrong with the file is a miss."""
        statement = "SELECT created, digest, body FROM answers WHERE key = ?"
        try:
            with self._connections.reading():
                found = self._connections.reader().execute(statement, (key,)).fetchone()
            # kept in the future: the clock was set back since, and must not have it paid for again
            if found is None or abs(self._wall() - found[0]) >= self._ttl:
                return None
            whole = hashlib.sha256(key + found[2]).digest() == found[1]
            return _read(found[2]) if whole else None
        except (OSError, sqlite3.Error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def put(self, key: bytes, answer: Answer) -> bool:
        """Keep ``answer``; False when it is not to be kept (cut, refused, an object) or could not be.

        After a write that failed the file is left alone for a while: it must not slow what it is to spare.
        """
        whole = answer.finish_reason in WHOLE and answer.value is None
        if not whole or self._now() < self._paused_until:
            return False
        body = _written(answer)
        row = (key, self._wall(), len(body), hashlib.sha256(key + body).digest(), body)
        with self._connections.writing():
            if self._now() < self._paused_until:  # looked at again: others waited while one failed
                return False
            try:
                if not self._connections.has_writer:
                    self._writes = 0
                self._write(self._connections.writer(), row)
                self._failing = False
                return True
            except (OSError, sqlite3.Error) as error:
                first, self._failing = not self._failing, True
                self._paused_until = self._now() + PAUSE
                reason = f"{type(error).__name__}: {error}"
        if first:  # once, until a write succeeds
            self._tell(CacheUnavailable(at=self._now(), path=str(self._path), reason=reason))
        return False

    def _write(self, connection: sqlite3.Connection, row: tuple[object, ...]) -> None:
        try:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", row)
            if self._writes % TRIM_EVERY == 0:
                self._trim(connection)
            self._writes += 1
        except BaseException:
            self._connections.undo()
            raise

    def _connect(self) -> sqlite3.Connection:
        # one that is there is opened by SQLite only, see its locks
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            check_logs(str(self._path))
        except StoreError as error:
            raise OSError(error.message) from None
        connection = connect_sqlite(str(self._path), timeout=PATIENCE)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != VERSION and (version or tables):
            connection.close()
            raise sqlite3.DatabaseError(f"it is no cache of version {VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a lost entry costs one call, no more
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        return connection

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Delete what counts no more, then the oldest until the size is right.

        Those of the future go first: they were kept before the clock was set, and are older than they say.
        """
        wall = self._wall()
        uncounted = "DELETE FROM answers WHERE created < ? OR created >= ?"
        connection.execute(uncounted, (wall - self._ttl, wall + self._ttl))
        total = connection.execute("SELECT coalesce(sum(size), 0) FROM answers").fetchone()[0]
        if total <= self._max_bytes:
            return
        surplus = total - TRIM_TO * self._max_bytes
        oldest = []
        by_age = "SELECT key, size FROM answers WHERE created {} ? ORDER BY created"
        for key, size in chain(*(connection.execute(by_age.format(side), (wall,)) for side in (">", "<="))):
            oldest.append((key,))
            surplus -= size
            if surplus <= 0:
                break
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM answers WHERE key = ?", oldest)
        connection.execute("COMMIT")


def _written(answer: Answer) -> bytes:
    kept: dict[str, Any] = {"text": answer.text, "model": answer.model}
    if answer.embedding is not None:
        kept["embedding"] = to_base64(answer.embedding)
    if answer.dropped:
        kept["dropped"] = answer.dropped
    if answer.finish_reason != "stop":
        kept["finish_reason"] = answer.finish_reason
    for name, (write, _) in PART_FORMS.items():
        if value := getattr(answer, name):
            kept[name] = write(value)
    return json.dumps(kept).encode()


def _read(body: bytes) -> Answer:
    kept = json.loads(body)
    raw = kept.get("embedding")
    vector = None if raw is None else from_base64(raw)
    dropped = tuple((name, reason) for name, reason in kept.get("dropped", ()))
    parts = {name: read(kept[name]) for name, (_, read) in PART_FORMS.items() if name in kept}
    return Answer(
        text=kept["text"],
        model=kept["model"],
        embedding=vector,
        dropped=dropped,
        finish_reason=kept.get("finish_reason", "stop"),
        **parts,
    )
