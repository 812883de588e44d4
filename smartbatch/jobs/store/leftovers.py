"""What forgotten jobs and killed processes left in a store: names of requests, and temporary files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from smartbatch.jobs.records import DAY
from smartbatch.jobs.store.database import DAMAGES, Database, Transaction

NAMED_ITEM_PREFIX = "named-item "  # prefix of the facts that store the places of named items
_AFTER_NAMES = b"named-item!"  # the first name that cannot begin with the prefix
_PAGE = 500
_NAMES = "SELECT name, value FROM fact WHERE name > ? AND name < ? ORDER BY name LIMIT ?"


def forgotten_names(db: Database) -> Iterator[list[bytes]]:
    """Yield pages of facts with the names of items whose jobs were deleted."""
    last = NAMED_ITEM_PREFIX.encode()
    while page := db.rows(_NAMES, last, _AFTER_NAMES, _PAGE):
        jobs = {bytes(name): _job_of(value) for name, value in page}
        rows = db.rows("SELECT id FROM job WHERE id IN {texts}", sorted(set(jobs.values())))
        known = {job_id for (job_id,) in rows}
        yield [name for name, job_id in jobs.items() if job_id not in known]
        last = bytes(page[-1][0])


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # its process has just deleted it
        return math.inf


def delete_names(tx: Transaction, names: Iterable[bytes]) -> None:
    for name in names:
        tx.change("DELETE FROM fact WHERE name = ?", name)


def _job_of(value: str) -> str:
    try:
        return str(json.loads(value)[0])
    except DAMAGES:
        return ""


def stale_files(db: Database, spool: str, *, at: float) -> list[Path]:
    """Return the temporary files of batches that have ended or whose jobs were deleted.

    Files that were written in the day before ``at`` are left out: they may belong to another database that
    had the same address.
    """
    files: dict[str, list[Path]] = {}
    for name in sorted(os.listdir(spool)):
        shard_id, dot, _ = name.partition(".")
        path = Path(spool) / name
        of_shard = dot and shard_id.startswith("shard-") and shard_id.isascii()
        if of_shard and _written_at(path) < at - DAY:
            files.setdefault(shard_id, []).append(path)
    ids = list(files)
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        needed = "SELECT id FROM shard WHERE id IN {texts} AND cleaned_up = 0"
        for (shard_id,) in db.rows(needed, page):
            del files[shard_id]
    return [path for paths in files.values() for path in paths]
