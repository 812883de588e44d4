"""Internals of a client that tests look at; everything else goes through the public API."""

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
    return client._running


def engine_of(client: BatchingClient) -> RealtimeEngine:
    engine = inside(client.start()).realtime.engine
    assert engine is not None
    return engine


def tickets_in_memory() -> int:
    gc.collect()
    return sum(type(one) is Ticket for one in gc.get_objects())


def callback_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "smartbatch-callbacks"}


def sleeps(client: BatchingClient) -> bool:
    """Whether the collector waits for a notification only."""
    return engine_of(client).dispatcher._wakes_at == math.inf


def has_looked(client: BatchingClient, now: float) -> bool:
    """Whether the collector waits until a time in the future."""
    return engine_of(client).dispatcher._wakes_at > now


def is_read(stream: TextStream) -> bool:
    """Whether a thread waits for the next chunk, in real time."""
    filled: Any = stream._box._filled
    return bool(filled._waiters)


def store_of(job: Job) -> StoredJobs:
    stored: Any = job._engine_of
    assert isinstance(stored.__self__, StoredJobs)
    return stored.__self__


def held(stream: TextStream) -> AbstractContextManager[object]:
    return stream._box._filled


def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget registered providers at the end of the test."""
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
