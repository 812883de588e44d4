"""A client and a provider with a Batch API in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs.remote import Remote

from smartbatch.client import BatchingClient


@pytest.fixture
def client(client_of: Callable[..., BatchingClient], remote: Remote, store: str) -> BatchingClient:
    return client_of(remote, store=store)
