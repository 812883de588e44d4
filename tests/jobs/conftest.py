"""What tests of jobs share: a client of a service with a Batch API, all in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs.remote import Remote

from smartbatch.client import BatchingClient


@pytest.fixture
def client(client_of: Callable[..., BatchingClient], remote: Remote, store: str) -> BatchingClient:
    return client_of(remote, store=store)
