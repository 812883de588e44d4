"""Short ways to write events in tests, and a clock set by hand."""

from __future__ import annotations

from typing import Any

from smartbatch.events import CallFinished, CallStarted, RequestFinished, RequestSubmitted, RetryScheduled
from smartbatch.types import Priority, Result, Route, Usage


def submitted(
    request_id: str = "r1", priority: Priority = Priority.NORMAL, joined: bool = False, at: float = 0.0
) -> RequestSubmitted:
    return RequestSubmitted(at=at, request_id=request_id, priority=priority, model="sim:small", joined=joined)


def started(size: int = 1, at: float = 0.0, model: str = "sim:small") -> CallStarted:
    return CallStarted(at=at, batch_id="b1", model=model, size=size, attempt=1, in_flight=1, waited=0.0)


def called(size: int = 1, at: float = 1.0, seconds: float = 1.0, **changed: Any) -> CallFinished:
    values: dict[str, Any] = {"model": "sim:small", "usage": Usage(), "cost": None, "error": None} | changed
    return CallFinished(at=at, batch_id="b1", size=size, seconds=seconds, **values)


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
    return RequestFinished(at=1.0, request_id=request_id, **(values | changed))


def retry(counted: bool = True, maybe_billed: bool = False) -> RetryScheduled:
    return RetryScheduled(
        at=1.0,
        request_id="r1",
        model="sim:small",
        kind="timeout",
        attempt=1,
        delay=0.5,
        counted=counted,
        maybe_billed=maybe_billed,
    )


def answer(cost: float | None = 0.01) -> Result:
    return Result("r1", text="yes", cost=cost)


class ManualClock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time
