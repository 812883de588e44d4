"""What the jobs of a client need of it: its providers, its real-time way to an answer, its listeners."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from attrs import frozen

from smartbatch.core.limits.budget import Budget
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.rescue import Speed, assumed_speed
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import Event
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.realtime_runner import Ask
from smartbatch.jobs.records import JobRow
from smartbatch.jobs.steps.context import unlearned
from smartbatch.providers.base import Provider
from smartbatch.types import Result

__all__ = ["JobDependencies", "unknown_outcome"]


@frozen(kw_only=True)
class JobDependencies:
    """What the service needs of its client.

    Attributes:
        own: the client's providers.
        opened: called with a provider that was made for a job, before it is used.
        ask, drop: see :class:`~smartbatch.jobs.realtime_runner.RealtimeRunner`.
        process: the user's post-processing of a result.
        new_future: makes a future whose callbacks run where they hold up nobody.
        tell: takes events.
        report: told of what went wrong: the job's id, where it is about one, and the error.
        speed: says how fast requests of a job are answered in real time.
        calibration: says what was learned of the tokens of a job's model.
        outer: returns the budget from which requests of a job with a budget spend as well, when asked alone.
    """

    own: tuple[Provider, ...]
    opened: Callable[[Provider], None]
    ask: Ask
    drop: Callable[[Future[Result]], None]
    process: Callable[[Result], Result]
    new_future: Callable[[], Any]
    tell: Callable[[Event], None]
    report: Callable[[str | None, BaseException], None]
    speed: Callable[[JobRow], Speed] = assumed_speed
    calibration: Callable[[JobRow], Calibration] = unlearned
    outer: Callable[[JobRow], Budget | None] = lambda _: None


def unknown_outcome(row: JobRow) -> bytes | None:
    """Return how items end that were half asked when their process ended; ``None``: they are asked again."""
    if row.policy.on_unknown != "hold":
        return None
    return encode_error(
        ProviderError(
            "the process that asked this request ended before its answer came, so the outcome is unknown, "
            "and it may be billed; the job's policy is hold, so it was not asked again: submit it anew",
            kind=ErrorKind.UNKNOWN,
            code="outcome_unknown",
            maybe_billed=True,
        )
    )
