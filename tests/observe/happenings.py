"""Short ways to write events in tests."""

from __future__ import annotations

from typing import Any

from smartbatch.events import CallFinished, CallStarted, RequestFinished, RequestSubmitted, RetryScheduled
from smartbatch.types import Priority, Result, Route, Usage


def submitted(
    request_id: str = "r1", priority: Priority = Priority.NORMAL, joined: bool = False, at: float = 0.0
) -> RequestSubmitted:
    return RequestSubmitted(at, request_id, priority, "sim:small", joined)


def started(size: int = 1, at: float = 0.0) -> CallStarted:
    return CallStarted(at, "b1", "sim:small", size, 1, 1, 0.0)


def called(size: int = 1, at: float = 1.0, seconds: float = 1.0, **changed: Any) -> CallFinished:
    values: dict[str, Any] = {"usage": Usage(), "cost": None, "error": None} | changed
    return CallFinished(at, "b1", "sim:small", size, seconds, **values)


def ended(request_id: str = "r1", **changed: Any) -> RequestFinished:
    values: dict[str, Any] = {
        "priority": Priority.NORMAL,
        "model": "sim:small",
        "ok": True,
        "cancelled": False,
        "error": None,
        "attempts": 1,
        "queued": 0.5,
        "seconds": 1.5,
        "usage": Usage(),
        "cost": 0.0,
        "route": Route.INDIVIDUAL,
        "deduplicated": False,
    }
    return RequestFinished(1.0, request_id, **(values | changed))


def retry(counted: bool = True, maybe_billed: bool = False) -> RetryScheduled:
    return RetryScheduled(1.0, "r1", "sim:small", "timeout", 1, 0.5, counted, maybe_billed)


def answer(cost: float | None = 0.01) -> Result:
    return Result("r1", text="yes", cost=cost)
