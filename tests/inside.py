"""What tests of a room look at inside a client; everything else goes through the public API."""

from __future__ import annotations

from smartbatch.client import BatchingClient
from smartbatch.running import RunningState

__all__ = ["inside"]


def inside(client: BatchingClient) -> RunningState:
    """Return what the client has running in this process."""
    return client._running
