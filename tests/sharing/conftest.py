"""Fixtures of tests of shared limits."""

from __future__ import annotations

import pytest
from realtime.scenes import Scripted
from sharing.servers import redis_server

__all__ = ["redis_server"]  # a fixture


@pytest.fixture
def address(tmp_path):
    return f"sqlite:///{tmp_path / 'limits.db'}"


@pytest.fixture
def provider(clock):
    return Scripted(clock, lambda prompt, attempt: "yes", latency=0.01)


@pytest.fixture
def unreadable(tmp_path):
    """The file of the back end, which is no database."""
    place = tmp_path / "limits.db"
    place.write_text("this is no database, and long enough to be read as one" * 20)
    return place
