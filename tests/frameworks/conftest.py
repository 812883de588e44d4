"""What the tests of frameworks share: a store of either database, which a test's own processes open."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def store(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    address: str = request.getfixturevalue("postgres_address")
    return f"{address}{'&' if '?' in address else '?'}schema={tmp_path.name[-50:].lower()}"
