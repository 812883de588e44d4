"""What the parts of real time share: settings, time, random numbers, the user's hooks, and who is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from attrs import Factory, define, field, frozen

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.failures import Classifier, Classifiers
from smartbatch.core.preparation.preparer import Preprocess
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.errors import ErrorKind, SmartbatchError
from smartbatch.events import Event, Observer
from smartbatch.observe import logs
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.call import Middleware
from smartbatch.types import Kind, Result, RunCallback, call_now, evolve

PostProcess = Callable[[Result], "Result | None"]
"""Takes an answered result and returns it, or a changed one."""


class HookParams(TypedDict, total=False):
    """What a client takes besides settings, as keywords; see :class:`~smartbatch.BatchingClient`."""

    preprocess: Sequence[Preprocess]
    post_process: PostProcess | None
    middleware: Sequence[Middleware]
    observers: Sequence[Observer]
    classifiers: Sequence[Classifier]
    run_callback: RunCallback


@frozen
class UserHooks:
    """What the user of a client adds to each call and result.

    Attributes:
        post_process: called with each answered result on a worker; returns it, or a changed one.
        middleware: layers around each call, outermost first.
        classifiers: own verdicts on errors, asked before the provider's.
        run_callback: calls ``post_process`` and callbacks.
        shareable: whether one call may answer several who ask the same: every middleware says so itself.
    """

    post_process: PostProcess | None = None
    middleware: tuple[Middleware, ...] = ()
    classifiers: Classifiers = field(factory=lambda: Classifiers(()))
    run_callback: RunCallback = call_now
    shareable: bool = field(init=False)

    @shareable.default
    def _all_shareable(self) -> bool:
        return all(getattr(layer, "shareable", False) is True for layer in self.middleware)

    def process(self, result: Result) -> Result:
        """Return what ``post_process`` makes of an answered result; where it fails, a failed one."""
        if self.post_process is None:
            return result
        cause: object = None
        try:
            returned: object = self.run_callback(partial(self.post_process, result))
        except BaseException as error:
            problem, cause = f"raised {type(error).__name__}", error
            logs.user_error("post_process", error)
        else:
            if returned is None:
                return result
            if not isinstance(returned, Result):
                problem = f"returned {type(returned).__name__} instead of a Result"
            else:
                found: object = returned.error
                if found is None or isinstance(found, SmartbatchError):
                    return returned
                problem, cause = f"returned an error of type {type(found).__name__}", found
        failure = SmartbatchError(
            f"post_process {problem}; the answer was paid for",
            kind=ErrorKind.UNKNOWN,
            request_id=result.request_id,
        )
        failure.__cause__ = cause if isinstance(cause, BaseException) else None
        return evolve(result, error=failure)


@define(eq=False, repr=False)
class Parallelism:
    """How many calls a client makes at once: one value for all its parts, which may change while they run."""

    calls: int


@frozen(eq=False, repr=False)
class RealtimeSetup:
    """What real time is made of; the same for all its parts and runs.

    Attributes:
        config: checked settings.
        clock: time and waiting.
        rng: jitter of retries, backoff and pauses.
        tell: tells an event to all observers; never raises.
        report: told what a user's callback raised.
        hooks: what the user adds.
        calibration: returns what is known of a model's tokens, by ``provider:model`` and kind of request;
            lanes go on teaching it. It may read a file.
        fallback: answers while the breaker of another model is open; ``None`` where there is none.
        metrics: the client's figures, for processes that share limits; ``None`` for no client's.
        read_controls: has what people set for models read anew; it may read a store, and never raises.
        parallelism: calls in flight at most; that of ``config`` at first.
    """

    config: BatchingConfig
    clock: Clock
    rng: random.Random = field(factory=random.Random)
    tell: Callable[[Event], None] = lambda _: None
    report: Callable[[BaseException], None] = lambda _: None
    hooks: UserHooks = field(factory=UserHooks)
    calibration: Callable[[str, Kind], Calibration] = lambda _model, _kind: Calibration()
    fallback: OpenedModel | None = None
    metrics: BatchMetrics | None = None
    read_controls: Callable[[], object] = lambda: None
    parallelism: Parallelism = Factory(lambda self: Parallelism(self.config.parallelism), takes_self=True)
