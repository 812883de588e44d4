"""A client and a provider with a Batch API in virtual time."""

from __future__ import annotations

import pytest


@pytest.fixture
def client(client_of, remote, store):
    return client_of(remote, store=store)
