"""How a process hears of acts that others did to a store: one indexed read, by a thread that it has anyway.

Acts have numbers in the order of their commits. What a process has not seen begins after the last number that
it read, whatever the clocks of the machines say, and whenever the act was done: a pause goes on
when the processes that were told of it have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from attrs import frozen

from smartbatch._clock import Clock
from smartbatch.core.limits.model_controls import ModelControls
from smartbatch.events import Event, LimitChanged, PauseChanged
from smartbatch.jobs.records import Act
from smartbatch.jobs.store import SqlStore

PAGE = 1_000
"""Acts that are read at a time."""
_OF_MODELS = frozenset({"pause_model", "resume_model", "set_limit"})
_MAY_BE_FREE = frozenset({"resume", "retry_failed"})
"""Acts after which a job that nobody carries on may go on."""


@frozen
class News:
    """What was done since the last look.

    Attributes:
        models: pauses or limits changed.
        jobs: ids of jobs that were acted on by themselves.
        any_job: jobs were acted on by a selection, so that any may be meant.
        claims: some may wait for somebody to carry them on.
    """

    models: bool
    jobs: frozenset[str]
    any_job: bool
    claims: bool


class LiveControls:
    """What people set for models, as this process knows it, and their acts on jobs. Safe from any thread.

    Args:
        store: returns the store, which is opened by that.
        control: given all pauses and limits whenever one of them changed, with no lock held.
        tell: takes events.

    Attributes:
        current: pauses and limits, as they were read last.
    """

    def __init__(
        self,
        store: Callable[[], SqlStore],
        clock: Clock,
        control: Callable[[ModelControls], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._control = control
        self._tell = tell
        self._lock = threading.Lock()
        self._seen: int | None = None
        self._gap = False
        self._new: list[Act] = []
        self.current = ModelControls()

    def read(self) -> ModelControls:
        """Return pauses and limits as they stand in the store now.

        Raises:
            StoreError, ConfigError: it cannot be used.
        """
        self._look()
        return self.current

    def news(self) -> News | None:
        """Return what was done since the last call; ``None`` for nothing. Errors as :meth:`read`."""
        before = self.current
        self._look()
        with self._lock:
            new, self._new = self._new, []
            gap, self._gap = self._gap, False
        if not new and not gap and self.current is before:
            return None
        return News(
            models=gap or self.current is not before or any(act.name in _OF_MODELS for act in new),
            jobs=frozenset(act.job_id for act in new if act.job_id is not None),
            any_job=gap or any(act.job_id is None and act.name not in _OF_MODELS for act in new),
            claims=gap or any(act.name in _MAY_BE_FREE for act in new),
        )

    def _look(self) -> None:
        """Read the acts that are new, and where they concern models, all that is set for these. The cases:

        1. The first look: what was done to jobs before is seen in their rows.
        2. Acts are missing, as they were many while this process slept: everything may have changed.
        3. Otherwise what the acts say.

        Nothing is taken for seen before all of it was read.
        """
        with self._lock:
            controls = self._store().controls
            seen = controls.last() if self._seen is None else self._seen
            new = [] if self._seen is None else _after(controls.after, seen)
            gap = bool(new) and new[0].number > seen + 1
            before = after = self.current
            if self._seen is None or gap or any(act.name in _OF_MODELS for act in new):
                found = controls.controls()
                after = before if found == before else found
            self._seen = new[-1].number if new else seen
            self._gap = self._gap or gap
            self._new += new
            self.current = after
        if after is not before:
            self._control(after)
            for event in changes(before, after, self._clock.now()):
                self._tell(event)


def changes(before: ModelControls, after: ModelControls, now: float) -> list[Event]:
    """Return the events that lead from one state to the other; ``now`` is the time of the client's clock."""
    told: list[Event] = []
    for model in {**before.pauses, **after.pauses}:
        pause = after.pauses.get(model)
        if pause != before.pauses.get(model):
            reason, by = (None, None) if pause is None else (pause.reason, pause.by)
            told.append(PauseChanged(at=now, model=model, paused=pause is not None, reason=reason, by=by))
    for model in {**before.limits, **after.limits}:
        limit = after.limits.get(model)
        if limit != before.limits.get(model):
            rpm, tpm = (None, None) if limit is None else (limit.requests_per_minute, limit.tokens_per_minute)
            by = None if limit is None else limit.by
            told.append(
                LimitChanged(at=now, model=model, requests_per_minute=rpm, tokens_per_minute=tpm, by=by)
            )
    return told


def _after(read: Callable[..., list[Act]], seen: int) -> list[Act]:
    """Return all acts after a number."""
    found: list[Act] = []
    page = read(seen, limit=PAGE)
    while page:
        found += page
        page = read(found[-1].number, limit=PAGE) if len(page) == PAGE else []
    return found
