"""Dependencies that all parts of the real-time path share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from attrs import Factory, define, field, frozen

from smartbatch._clock import Clock
from smartbatch.config import BatchingConfig
from smartbatch.core.limits.failures import Classifier, Classifiers
from smartbatch.core.preparation.calibration import Calibration
from smartbatch.core.preparation.preparer import Preprocess
from smartbatch.errors import ErrorKind, SmartbatchError
from smartbatch.events import Event, Observer
from smartbatch.observe import logs
from smartbatch.observe.metrics import BatchMetrics
from smartbatch.providers.registry import OpenedModel
from smartbatch.realtime.call import CacheReferences, Middleware, References
from smartbatch.types import Kind, Result, RunCallback, call_now, evolve

PostProcess = Callable[[Result], "Result | None"]
"""Receives a successful result and returns it or a changed one."""


class HookParams(TypedDict, total=False):
    """Keyword arguments of :class:`~smartbatch.BatchingClient` that are not settings."""

    preprocess: Sequence[Preprocess]
    post_process: PostProcess | None
    middleware: Sequence[Middleware]
    observers: Sequence[Observer]
    classifiers: Sequence[Classifier]
    run_callback: RunCallback


@frozen
class UserHooks:
    # runs on a worker for each successful result
    post_process: PostProcess | None = None
    middleware: tuple[Middleware, ...] = ()  # the first one is outermost
    # user classifiers, tried before the provider's
    classifiers: Classifiers = field(factory=lambda: Classifiers(()))
    run_callback: RunCallback = call_now  # calls post_process and callbacks
    # True if every middleware allows one call to answer identical requests
    shareable: bool = field(init=False)

    @shareable.default
    def _all_shareable(self) -> bool:
        return all(getattr(layer, "shareable", False) is True for layer in self.middleware)

    def process(self, result: Result) -> Result:
        """Apply ``post_process``. The result is failed if the hook fails."""
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
    """Maximum concurrent calls of a client; may change while it runs."""

    calls: int


@frozen(eq=False, repr=False)
class RealtimeSetup:
    config: BatchingConfig
    clock: Clock
    rng: random.Random = field(factory=random.Random)
    publish_event: Callable[[Event], None] = lambda _: None  # sends an event to all observers; never raises
    report: Callable[[BaseException], None] = lambda _: None  # receives exceptions from user callbacks
    hooks: UserHooks = field(factory=UserHooks)
    # known token counts by model and kind of request; may read a file
    calibration: Callable[[str, Kind], Calibration] = lambda model, _kind: Calibration(model=model)
    fallback: OpenedModel | None = None  # answers while the breaker of another model is open
    metrics: BatchMetrics | None = None
    # reloads the user's settings for models; may read a store, never raises
    read_controls: Callable[[], object] = lambda: None
    parallelism: Parallelism = Factory(lambda self: Parallelism(self.config.parallelism), takes_self=True)
    references: References | None = None  # None sends all files in their requests
    caches: CacheReferences | None = None  # None creates no explicit caches
