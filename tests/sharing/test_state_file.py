"""Where the processes of one user share limits by default: a file in the user's state folder."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing

import pytest

from smartbatch import BatchingClient
from smartbatch.core.limits.shared_limit import LeaseAsk, MemberLimits
from smartbatch.events import Event, SharedLimitsLost
from smartbatch.sharing.addresses import open_back_end
from smartbatch.sharing.back_end import BackEndUnavailable
from smartbatch.testing import Emulator, emulator


@pytest.fixture(scope="module")
def server():
    with emulator(latency=0.001) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_told(monkeypatch):
    """Other tests disable sharing."""
    monkeypatch.delenv("SMARTBATCH_SHARED")


@pytest.fixture
def umask_of_none():
    """New files are readable by all unless their creator decides otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def asked(server: Emulator, seen: list[Event]) -> str:
    """Have a client with default settings answer requests; return the summary of its state."""
    options = {"base_url": server.base_url, "api_key": "any"}
    with BatchingClient("openai:gpt-5-mini", provider_options=options, observers=[seen.append]) as client:
        assert client.generate(map(str, range(20))).failed == 0
        return client.status_summary()


def test_only_the_owner_can_read_it(server, tmp_path, monkeypatch, umask_of_none):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seen: list[Event] = []
    assert "not shared" not in asked(server, seen)
    assert [event for event in seen if isinstance(event, SharedLimitsLost)] == []
    [made] = (tmp_path / "state").rglob("limits-*.db")
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("record", ["[" * 100_000, "{", "[]", "{}"])
def test_a_damaged_record_is_unavailable_and_stays(record, tmp_path):
    place = tmp_path / "limits.db"
    back_end = open_back_end(f"sqlite:///{place}", lambda: 100.0)
    back_end.prepare()
    ask = LeaseAsk("one", limits=MemberLimits(caps=[1.0, 0.0, 0.0, 0.0], rates=[0.0] * 4))
    back_end.exchange("damaged", ask)
    with closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("UPDATE records SET record = ?", (record,))
    for _ in range(2):
        with pytest.raises(BackEndUnavailable, match="contains a damaged record"):
            back_end.exchange("damaged", ask)
    assert back_end.exchange("other", ask).members == 1
    back_end.close()
    with closing(sqlite3.connect(place)) as connection:
        assert connection.execute("SELECT record FROM records WHERE key = 'damaged'").fetchone() == (record,)


def test_a_file_that_cannot_be_created_is_not_shared(server, tmp_path, monkeypatch):
    (tmp_path / "state").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    seen: list[Event] = []
    assert "1 not shared: their store is unavailable" in asked(server, seen)
    [lost] = [event for event in seen if isinstance(event, SharedLimitsLost)]
    assert lost.place.startswith(str(tmp_path / "state"))
    assert lost.processes == 0
