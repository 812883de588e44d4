"""User actions: changes to jobs, and how processes notice each other's actions.

Actions are numbered in commit order. A process reads the actions after the last number it has seen, with one
indexed query, so the clocks of different machines do not matter.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from functools import partial

from attrs import evolve, frozen

from smartbatch._clock import Clock
from smartbatch._words import duration, money, usd_in
from smartbatch.core.limits.model_controls import ModelControls
from smartbatch.core.routing.options import seconds_until
from smartbatch.errors import InvalidRequest, ListStopped, UnusableAnswer
from smartbatch.events import Event, LimitChanged, PauseChanged
from smartbatch.jobs.job_budget import remaining_budget
from smartbatch.jobs.payload import decode_result
from smartbatch.jobs.records import (
    MAX_ROWS_PER_ACTION,
    Action,
    JobPolicy,
    JobRow,
    NewResult,
    RetriedRows,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wiring import JobWiring, Reopening, reopen_without_client
from smartbatch.types import Deadline

PAGE_ROWS = 1_000

# -- changes to a job ----------------------------------------------------------------------------------------


def change_deadline(store: SqlStore, job_id: str, deadline: Deadline | None, by: str) -> None:
    now = store.actions.db.now()
    left = seconds_until(deadline, now)
    until = None if left is None else now + left
    detail = "none" if left is None else f"in {duration(left)}"

    def change(policy: JobPolicy) -> JobPolicy:
        return evolve(policy, deadline=until, fallback="batch" if until is None else "individual")

    store.actions.change_policy(job_id, change, "set_deadline", detail, by)


def change_budget(store: SqlStore, job_id: str, budget: float | str | None, by: str) -> float:
    """Change the budget of a job and return the USD left in it."""
    most = None if budget is None else usd_in(budget)
    number = isinstance(most, int | float) and not isinstance(most, bool)
    if most is not None and not (number and 0 <= most <= sys.float_info.max):
        raise InvalidRequest(f"budget = {budget!r:.60} is not an amount of USD", field="budget")
    limit = None if most is None else float(most)
    detail = "none" if limit is None else money(limit)
    row = store.actions.change_policy(
        job_id, lambda policy: evolve(policy, budget=limit), "set_budget", detail, by
    )
    return remaining_budget(row)


def has_stopped(store: SqlStore, job: JobRow) -> bool:
    """True if sending stopped because the first rows of the job failed with the same error."""
    after, page = -1, store.actions.failed(job.id, rows=None, after=-1, limit=PAGE_ROWS) if job.failed else []
    while page:
        if any(isinstance(decode_result(row.body, request_id="").error, ListStopped) for row in page):
            return True
        after = page[-1].ix
        more = len(page) == PAGE_ROWS
        page = store.actions.failed(job.id, rows=None, after=after, limit=PAGE_ROWS) if more else []
    return False


def retry_failed(
    store: SqlStore,
    job_id: str,
    rows: Collection[int] | None,
    by: str,
    *,
    billed: bool,
    reopening: Reopening = reopen_without_client,
) -> RetriedRows:
    """Send failed rows of a job again. Their earlier results and costs are kept.

    Args:
        rows: positions; all failed rows if ``None``.
        billed: include rows that were, or may have been, paid for; rows named in ``rows`` are always
            included.
        reopening: runs the change within the budget of a client.

    Raises:
        JobNotFound: the store has no such job.
        StoreError: the job is being cancelled.
        InvalidRequest: ``rows`` contains an invalid position.
    """
    if rows is not None and (wrong := [ix for ix in rows if isinstance(ix, bool) or not isinstance(ix, int)]):
        raise InvalidRequest(f"rows must be positions from 0; {wrong[0]!r:.60} is not", field="rows")
    named = None if rows is None else sorted({ix for ix in rows if 0 <= ix < 1 << 32})
    again: dict[int, NewResult | None] = {}
    paid: list[int] = []
    left: list[int] = []
    after = -1
    while max(len(again), len(left)) < MAX_ROWS_PER_ACTION:
        page = store.actions.failed(job_id, rows=named, after=after, limit=PAGE_ROWS)
        for row in page:
            after = row.ix
            result = decode_result(row.body, request_id="")
            unsure = getattr(result.error, "maybe_billed", False)
            used = bool(result.usage.total_tokens)
            may_be_paid = row.cost is None or bool(row.cost) or row.tried or unsure or used
            # 1. it may have been billed, and neither its position nor ``billed`` was given: skip it
            if may_be_paid and named is None and not billed:
                left.append(row.ix)
                continue
            # 2. send it again; if it was billed, keep its result as an earlier try
            again[row.ix] = None
            if may_be_paid:
                refused = isinstance(result.error, UnusableAnswer) and result.text is not None
                outcome = "again" if refused else "unrun"
                again[row.ix] = NewResult(row.ix, outcome, row.body, cost=row.cost, usage=result.usage)
                paid.append(row.ix)
        if len(page) < PAGE_ROWS:
            break
    count, left_out = reopening(job_id, partial(store.actions.reopen, job_id, again, paid, by))
    return RetriedRows(count, left_out, tuple(left or paid))


# -- actions of other processes ----------------------------------------------------------------------------

_MODEL_ACTIONS = frozenset({"pause_model", "resume_model", "set_limit"})
_RESTARTING_ACTIONS = frozenset({"resume", "retry_failed"})
"""Actions that let a job without an owner continue."""


@frozen
class NewActions:
    models: bool  # pauses or limits changed
    jobs: frozenset[str]  # ids of the jobs named by the actions
    any_job: bool  # some jobs were selected by their properties, so any job may be affected
    claims: bool  # jobs may be waiting for an owner


class LiveControls:
    """The latest model settings and user actions that this process has read. Thread-safe.

    Args:
        store: returns the store, opening it if necessary.
        wiring: its ``control`` is called with all pauses and limits after each change, while no lock is held.

    Attributes:
        current: the most recently read pauses and limits.
    """

    def __init__(self, store: Callable[[], SqlStore], clock: Clock, wiring: JobWiring) -> None:
        self._store = store
        self._clock = clock
        self._wiring = wiring
        self._lock = threading.Lock()
        self._seen: int | None = None
        self._gap = False
        self._new: list[Action] = []
        self.current = ModelControls()

    def read(self) -> ModelControls:
        self._look()
        return self.current

    def new_actions(self) -> NewActions | None:
        """Return the actions since the last call, or ``None`` if there are none."""
        before = self.current
        self._look()
        with self._lock:
            new, self._new = self._new, []
            gap, self._gap = self._gap, False
        if not new and not gap and self.current is before:
            return None
        return NewActions(
            models=gap or self.current is not before or any(action.name in _MODEL_ACTIONS for action in new),
            jobs=frozenset(action.job_id for action in new if action.job_id is not None),
            any_job=gap or any(action.job_id is None and action.name not in _MODEL_ACTIONS for action in new),
            claims=gap or any(action.name in _RESTARTING_ACTIONS for action in new),
        )

    def _look(self) -> None:
        """Read new actions and, if they concern models, all pauses and limits.

        The first read skips actions on jobs, because the rows of the jobs already reflect them. A gap in the
        numbers means that old actions were deleted while this process slept, so anything may have changed.
        """
        with self._lock:
            controls = self._store().controls
            seen = controls.last() if self._seen is None else self._seen
            new = [] if self._seen is None else _all_after(controls.after, seen)
            gap = bool(new) and new[0].number > seen + 1
            before = after = self.current
            if self._seen is None or gap or any(action.name in _MODEL_ACTIONS for action in new):
                found = controls.controls()
                after = before if found == before else found
            self._seen = new[-1].number if new else seen
            self._gap = self._gap or gap
            self._new += new
            self.current = after
        if after is not before:
            self._wiring.control(after)
            for event in _changes(before, after, self._clock.now()):
                self._wiring.publish_event(event)


def _changes(before: ModelControls, after: ModelControls, now: float) -> list[Event]:
    events: list[Event] = []
    for model in {**before.pauses, **after.pauses}:
        pause = after.pauses.get(model)
        if pause != before.pauses.get(model):
            reason, by = (None, None) if pause is None else (pause.reason, pause.by)
            events.append(PauseChanged(at=now, model=model, paused=pause is not None, reason=reason, by=by))
    for model in {**before.limits, **after.limits}:
        limit = after.limits.get(model)
        if limit != before.limits.get(model):
            rpm, tpm = (None, None) if limit is None else (limit.requests_per_minute, limit.tokens_per_minute)
            by = None if limit is None else limit.by
            events.append(
                LimitChanged(at=now, model=model, requests_per_minute=rpm, tokens_per_minute=tpm, by=by)
            )
    return events


def _all_after(read: Callable[..., list[Action]], seen: int) -> list[Action]:
    found: list[Action] = []
    page = read(seen, limit=PAGE_ROWS)
    while page:
        found += page
        page = read(found[-1].number, limit=PAGE_ROWS) if len(page) == PAGE_ROWS else []
    return found
