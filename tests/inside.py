"""What tests of a room look at inside a client; everything else goes through the public API."""

from __future__ import annotations

from smartbatch.client import BatchingClient
from smartbatch.realtime.engine import RealtimeEngine
from smartbatch.running import RunningState

__all__ = ["engine_of", "inside"]


def inside(client: BatchingClient) -> RunningState:
    """Return what the client has running in this process."""
    return client._running


def engine_of(client: BatchingClient) -> RealtimeEngine:
    """Return the threads, the queue and the gates of a client, which is started for it."""
    engine = inside(client.start()).realtime.engine
    assert engine is not None
    return engine
