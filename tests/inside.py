"""What tests of a room look at inside a client; everything else goes through the public API."""

from __future__ import annotations

import gc
import math
import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest

from smartbatch.client import BatchingClient
from smartbatch.jobs.job import Job
from smartbatch.providers import registry
from smartbatch.realtime.engine import RealtimeEngine
from smartbatch.realtime.text_stream import TextStream
from smartbatch.realtime.ticket import Ticket
from smartbatch.running import RunningState
from smartbatch.stored_jobs import StoredJobs

__all__ = [
    "callback_threads",
    "engine_of",
    "held",
    "inside",
    "is_read",
    "own_registry",
    "sleeps",
    "store_of",
    "tickets_in_memory",
]


def inside(client: BatchingClient) -> RunningState:
    """Return what the client has running in this process."""
    return client._running


def engine_of(client: BatchingClient) -> RealtimeEngine:
    """Return the threads, the queue and the gates of a client, which is started for it."""
    engine = inside(client.start()).realtime.engine
    assert engine is not None
    return engine


def tickets_in_memory() -> int:
    """Return how many requests on their way, or at their end, something still holds."""
    gc.collect()
    return sum(isinstance(one, Ticket) for one in gc.get_objects())


def callback_threads() -> set[threading.Thread]:
    """Return the threads that run callbacks of users now."""
    return {thread for thread in threading.enumerate() if thread.name == "smartbatch-callbacks"}


def sleeps(client: BatchingClient) -> bool:
    """Whether the collector of a client has looked, and waits for a notification."""
    return engine_of(client).dispatcher._wakes_at == math.inf


def has_looked(client: BatchingClient, now: float) -> bool:
    """Whether the collector of a client has looked, and waits for a time that has not come."""
    return engine_of(client).dispatcher._wakes_at > now


def is_read(stream: TextStream) -> bool:
    """Whether a thread waits for the next chunk of a stream, on a clock of the machine."""
    filled: Any = stream._box._filled
    return bool(filled._waiters)


def store_of(job: Job) -> StoredJobs:
    """Return what carries a job on that was taken without a client."""
    stored: Any = job._engine_of
    assert isinstance(stored.__self__, StoredJobs)
    return stored.__self__


def held(stream: TextStream) -> AbstractContextManager[object]:
    """Hold the lock of a stream, as a worker may at any moment."""
    return stream._box._filled


def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is registered from now on be forgotten at the end of the test."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
