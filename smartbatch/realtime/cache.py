"""Answers stored in an SQLite file, so that later runs need no calls for identical requests.

The file contains answers in plain text, so only its owner may read it; prompts are stored as fingerprints.
A damaged entry counts as a miss. An intact entry that an internal error makes unreadable does not, because
its answer was paid for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from smartbatch._clock import RealClock
from smartbatch._database import SqliteConnections, connect_sqlite
from smartbatch._files import check_logs
from smartbatch.chats import PART_FORMS
from smartbatch.core.preparation.structured import MAX_READINGS
from smartbatch.errors import AnswerUnread, ConfigError, StoreError
from smartbatch.events import CacheUnavailable, Event
from smartbatch.providers.answer_parts import from_base64, to_base64
from smartbatch.types import Answer

CACHE_VERSION = 1
"""Version of the table. A file with another version is rejected, never overwritten."""
WRITE_WAIT_SECONDS = 2.0
"""Maximum time for which a write, and with it the worker that received the answer, waits for another process.
"""
WRITE_PAUSE_SECONDS = 30.0
"""Pause after a failed write, so that further writes do not delay the workers."""
STORED_FINISH_REASONS = ("stop", "tool_calls")
WRITES_PER_TRIM = 100
"""Number of writes between checks of the total size, each of which reads the whole index. The first write
also checks, because many processes may each write only a few answers.
"""
TRIMMED_SHARE = 0.9
"""Share of the allowed size that remains after trimming."""

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
    """Complete answers by fingerprint. Thread- and process-safe.

    Args:
        path: the file, created if missing. Its folder must exist.
        ttl: seconds until an answer expires.
        max_bytes: maximum total size of the answers. The oldest answers are deleted first.
        wall: returns Unix seconds, for the ages of answers.
        now: returns monotonic seconds.
        publish_event: receives an event if the file or an entry cannot be read or written. Never raises.

    Raises:
        ConfigError: the folder is missing, or the file is damaged or not a cache.
    """

    def __init__(
        self,
        path: str,
        *,
        ttl: float,
        max_bytes: int,
        wall: Callable[[], float],
        now: Callable[[], float] = RealClock.now,
        publish_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._path = Path(path).expanduser()
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._wall = wall
        self._now = now
        self._publish_event = publish_event
        self._writes = 0
        self._paused_until = -math.inf
        self._failing = False
        self._damage_reported = False
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
        """Return the stored answer.

        A damaged entry or unreadable file counts as a miss and is reported once.

        Raises:
            AnswerUnread: the entry is intact, but an internal error prevents reading it.
        """
        statement = "SELECT created, digest, body FROM answers WHERE key = ?"
        try:
            with self._connections.reading():
                found = self._connections.reader().execute(statement, (key,)).fetchone()
        except (OSError, sqlite3.Error, ValueError) as error:
            # the error's text may quote the answer
            return self._missed(getattr(error, "sqlite_errorname", type(error).__name__))
        if found is None:
            return None
        created, digest, body = found
        if not (isinstance(created, float) and isinstance(body, bytes)):
            return self._missed("it is damaged")
        # dated in the future, because the clock was set back
        if abs(self._wall() - created) >= self._ttl:
            return None
        if hashlib.sha256(key + body).digest() != digest:
            return self._missed("it is damaged")
        return self._whole(body)

    def _whole(self, body: bytes) -> Answer | None:
        for _ in range(MAX_READINGS):
            try:
                kept = _form(body)
                return self._missed("it is damaged") if kept is None else _read(kept)
            except Exception as error:
                failure = type(error).__name__
        raise AnswerUnread(
            f"smartbatch itself failed to read a cached answer ({failure}); the request was not sent "
            "again. Please report this as a bug in smartbatch. The answer remains in the cache "
            f"{self._path}. To get a new one, send the request with deduplicate=False or delete the file"
        )

    def _missed(self, reason: str) -> Answer | None:
        if not self._damage_reported:
            self._damage_reported = True
            reported = f"an entry cannot be read ({reason}); its request is sent again"
            self._publish_event(CacheUnavailable(at=self._now(), path=str(self._path), reason=reported))
        return None

    def put(self, key: bytes, answer: Answer) -> bool:
        """Store ``answer``. Return False if it is truncated, is a refusal or an object, has files, or could
        not be stored.

        After a failed write, nothing is written for ``WRITE_PAUSE_SECONDS``.
        """
        whole = answer.finish_reason in STORED_FINISH_REASONS and answer.value is None
        if not whole or answer.files or self._now() < self._paused_until:
            return False
        body = _written(answer)
        row = (key, self._wall(), len(body), hashlib.sha256(key + body).digest(), body)
        with self._connections.writing():
            if self._now() < self._paused_until:  # a write by another thread has failed
                return False
            try:
                if not self._connections.has_writer:
                    self._writes = 0
                self._write(self._connections.writer(), row)
                self._failing = False
                return True
            except (OSError, sqlite3.Error) as error:
                first, self._failing = not self._failing, True
                self._paused_until = self._now() + WRITE_PAUSE_SECONDS
                reason = f"{type(error).__name__}: {error}"
        if first:  # reported once, until a write succeeds
            self._publish_event(CacheUnavailable(at=self._now(), path=str(self._path), reason=reason))
        return False

    def _write(self, connection: sqlite3.Connection, row: tuple[object, ...]) -> None:
        try:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", row)
            if self._writes % WRITES_PER_TRIM == 0:
                self._trim(connection)
            self._writes += 1
        except BaseException:
            self._connections.undo()
            raise

    def _connect(self) -> sqlite3.Connection:
        # only SQLite may open an existing file: closing another handle would release its locks
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            check_logs(str(self._path))
        except StoreError as error:
            raise OSError(error.message) from None
        connection = connect_sqlite(str(self._path), timeout=WRITE_WAIT_SECONDS)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != CACHE_VERSION and (version or tables):
            connection.close()
            raise sqlite3.DatabaseError(f"it is not a cache of version {CACHE_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # losing an entry costs only one call
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {CACHE_VERSION}")
        return connection

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Delete expired answers, then the oldest ones until the size is within the limit.

        Entries dated in the future are deleted first, because they were stored before the clock was set back.
        """
        wall = self._wall()
        uncounted = "DELETE FROM answers WHERE created < ? OR created >= ?"
        connection.execute(uncounted, (wall - self._ttl, wall + self._ttl))
        total = connection.execute("SELECT coalesce(sum(size), 0) FROM answers").fetchone()[0]
        if total <= self._max_bytes:
            return
        surplus = total - TRIMMED_SHARE * self._max_bytes
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


def _form(body: bytes) -> dict[str, Any] | None:
    """Return an entry as a dictionary, or ``None`` if :func:`_written` cannot have written it."""
    try:
        kept = json.loads(body)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(kept, dict) and "text" in kept and "model" in kept
    return kept if whole else None


def _read(kept: Mapping[str, Any]) -> Answer:
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
