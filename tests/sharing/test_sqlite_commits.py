"""What a file of shared limits writes to disk before an exchange is answered."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from smartbatch.core.limits.shared_limit import LeaseAsk, MemberLimits, QuotaKind
from smartbatch.sharing import sqlite_back_end
from smartbatch.sharing.addresses import open_back_end

NORMAL, FULL = 1, 2
"""The log is synced before it is written to the file; the log is also synced at each commit."""


def test_money_is_on_disk_before_it_is_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []

    class Noting(sqlite3.Connection):
        """Records how each transaction is written when it is committed."""

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                levels.append(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(statement, *values)

    def connect(path: str, *, timeout: float) -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=timeout, isolation_level=None, check_same_thread=False, factory=Noting
        )

    monkeypatch.setattr(sqlite_back_end, "connect_sqlite", connect)
    back_end = open_back_end(f"sqlite:///{tmp_path}/limits.db", lambda: 0.0)
    back_end.prepare()
    levels.clear()
    for money in (0, 1, 0):
        back_end.exchange(
            f"key {money}",
            LeaseAsk(
                member="one",
                limits=MemberLimits(caps=[1.0, 0, 0, 0]),
                kind=QuotaKind.BUDGET if money else QuotaKind.RATE,
            ),
        )
    back_end.publish("one", '{"sums": {}}', {})
    back_end.close()
    assert levels == [NORMAL, FULL, NORMAL, NORMAL]
