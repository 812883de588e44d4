"""What a PostgreSQL server writes to disk before it answers: money, but not rates."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg.rows import scalar_row
from sharing.servers import address_of

from smartbatch._database import Address
from smartbatch.core.limits.shared_limit import LeaseAsk, MemberLimits, QuotaKind
from smartbatch.sharing.addresses import open_back_end

_NOTES = """
CREATE TABLE {schema}.noted (place serial, commits text);
CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {schema}.noted (commits) VALUES (current_setting('synchronous_commit')); RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER noted AFTER UPDATE ON {schema}.shared_limits
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.note();
"""
"""Records how each exchange commits."""


def test_no_process_waits_for_the_disk_for_a_rate(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    text = address_of("postgresql", request, tmp_path)
    address = Address.of(text, "shared")
    back_end = open_back_end(text, lambda: 0.0)
    back_end.prepare()
    with psycopg.connect(**address.parameters, autocommit=True, row_factory=scalar_row) as session:
        session.execute(_NOTES.format(schema=address.schema).encode())
        for money in (0, 1, 0):
            back_end.exchange(
                f"key {money}",
                LeaseAsk(
                    member="one",
                    limits=MemberLimits(caps=[1.0, 0, 0, 0]),
                    kind=QuotaKind.BUDGET if money else QuotaKind.RATE,
                ),
            )
        noted = session.execute(f"SELECT commits FROM {address.schema}.noted ORDER BY place".encode())
        assert noted.fetchall() == ["off", "on", "off"]
    back_end.close()
