"""The context of one step: the store, the provider's Batch API, the limits and the events of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from smartbatch._files import write_whole
from smartbatch.core.limits.cooldown import backoff
from smartbatch.errors import ProviderError, SmartbatchError, StoreError
from smartbatch.events import JobIncident, ShardChanged
from smartbatch.jobs.payload import Shared, decode_params, decode_request, encode_error
from smartbatch.jobs.records import (
    IncidentRow,
    ItemState,
    JobLease,
    JobPolicy,
    JobRow,
    JobState,
    LeaseLost,
    NewResult,
    OpenItem,
    held_note,
)
from smartbatch.jobs.shard_records import ShardRow, ShardState
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.wiring import JobRuntime, StepLimits
from smartbatch.observe import logs
from smartbatch.providers.batch_api import BatchApi
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Request

PAGE_REQUESTS = 1000  # requests of a job read at a time
REREAD_GROWTH = 4  # factor by which pauses between rereads of results grow


@frozen
class StepResult:
    next_at: float | None = None  # Unix time of the next step; None if none is scheduled
    realtime: bool = False  # there are items to send in real time now
    finished: bool = False  # everything is done and cleaned up; the lease can be released


def is_paused(runtime: JobRuntime, job: JobRow) -> bool:
    return runtime.pause_of(job.model) is not None


def has_realtime(runtime: JobRuntime, job: JobRow) -> bool:
    return (
        job.state is JobState.ACTIVE
        and not is_paused(runtime, job)
        and bool(runtime.store.items.in_state(job.id, state=ItemState.REALTIME, limit=1))
    )


@frozen(kw_only=True, eq=False, repr=False)
class Step:
    """The context of a single step; it holds no lasting state."""

    runtime: JobRuntime
    api: BatchApi
    job: JobRow  # as read at the beginning of the step
    lease: JobLease

    @property
    def store(self) -> SqlStore:
        return self.runtime.store

    @property
    def limits(self) -> StepLimits:
        return self.runtime.limits

    @property
    def policy(self) -> JobPolicy:
        return self.job.policy

    @property
    def now(self) -> float:
        """Monotonic seconds, for events and durations."""
        return self.runtime.clock.now()

    @property
    def wall(self) -> float:
        """Unix seconds."""
        return self.runtime.wall()

    @property
    def model(self) -> str:
        """The job's model without the provider's prefix."""
        return self.job.model.partition(":")[2]

    def for_model(self, label: str) -> Step:
        """Return a copy for another model of the job; ``label`` is ``provider:model``."""
        return self if label == self.job.model else evolve(self, job=evolve(self.job, model=label))

    @property
    def falls_back(self) -> bool:
        """Whether items that a batch did not process may be sent in real time."""
        return self.policy.fallback == "individual"

    @property
    def timeout(self) -> float:
        return self.limits.timeout if self.policy.timeout is None else self.policy.timeout

    @property
    def settle_time(self) -> float:
        return self.limits.settle if self.policy.settle is None else self.policy.settle

    # -- changes to a shard ----------------------------------------------------------------------------------

    def advance(self, shard: ShardRow, to: ShardState, reason: str = "", **changes: Any) -> ShardRow:
        """Commit and report a change of state; the next step is due now unless ``changes`` sets a time."""
        moved = self.store.shards.advance(
            self.lease, shard, to, **{"due_at": self.wall, "tries": 0, "note": None, **changes}
        )
        self.report_change(shard, moved, reason)
        return moved

    def report_change(self, before: ShardRow, after: ShardRow, reason: str = "") -> None:
        self.runtime.publish_event(
            ShardChanged(
                at=self.now,
                job_id=self.job.id,
                shard_id=after.id,
                batch_id=after.batch_id,
                model=self.job.model,
                before=before.state.value,
                after=after.state.value,
                size=after.size,
                reason=reason,
            )
        )

    def reschedule(self, shard: ShardRow, seconds: float, **changes: Any) -> ShardRow:
        return self.store.shards.advance(
            self.lease, shard, shard.state, **{"due_at": self.wall + seconds, **changes}
        )

    def retry_later(
        self, shard: ShardRow, error: ProviderError, *, at_least: float = 0.0, note: str = "", **changes: Any
    ) -> ShardRow:
        """Record a failed remote call, and repeat it after a growing pause of at least ``at_least`` seconds.

        ``note`` replaces the error's message.
        """
        tries = shard.tries + 1
        wait = backoff(
            tries, self.runtime.rng, first=2.0, longest=self.limits.longest_pause, asked=error.retry_after
        )
        why = note or f"{error.kind.value}: {error.message}"
        return self.reschedule(shard, max(wait, at_least), tries=tries, note=why, **changes)

    def reread_pause(self, rereads: int) -> float | None:
        """Return the pause before results are read again; ``None`` once the time limit is reached.

        ``rereads`` is the number of additional reads so far.
        """
        pause, whole = self.limits.reread_pause, self.limits.reread_time
        for _ in range(rereads):
            whole -= pause
            pause *= REREAD_GROWTH
        return min(pause, whole) if whole > 0 else None

    def discard(
        self,
        shard: ShardRow,
        reason: str,
        *,
        to: ItemState = ItemState.OPEN,
        tried: bool = False,
        maybe_billed: bool = False,
        ended: Sequence[NewResult] = (),
        orphan: str | None = None,
    ) -> ShardRow:
        """End a shard without results; see :meth:`.ShardTable.discard`."""
        dead = self.store.shards.discard(
            self.lease,
            shard,
            items=to,
            tried=tried,
            note=reason,
            at=self.wall,
            maybe_billed=maybe_billed,
            ended=ended,
            orphan=orphan,
        )
        self.report_change(shard, dead, reason)
        return dead

    def give_up(self, shard: ShardRow, error: SmartbatchError, note: str, *, tried: bool = False) -> ShardRow:
        """End a permanently refused shard: send its items in real time if allowed, otherwise fail them."""
        if self.falls_back:
            return self.discard(shard, note, tried=tried, to=ItemState.REALTIME)
        dead = self.store.shards.fail(self.lease, shard, encode_error(error), note=note, at=self.wall)
        self.report_change(shard, dead, note)
        self.runtime.publish_progress(self.job)
        return dead

    def hold(self, error: ProviderError) -> None:
        """Hold the job until a person resumes it, because the account cannot be used."""
        self.store.jobs.note(self.lease, held_note(error), hold=True)

    def incident(self, kind: str, detail: str, shard: ShardRow | None, money: float | None = None) -> None:
        """Store an incident, and report it if it is new.

        Raises:
            LeaseLost: another process owns the job now and may have newer information.
        """
        shard_id = None if shard is None else shard.id
        row = IncidentRow(kind, self.job.id, shard_id, detail, money, self.wall)
        if self.store.facts.add_incident(self.lease, row):
            at, job_id = self.now, self.job.id
            self.runtime.publish_event(
                JobIncident(at=at, job_id=job_id, shard_id=shard_id, kind=kind, detail=detail, money=money)
            )

    # -- remote calls ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def provider_calls(self) -> Iterator[None]:
        """Convert exceptions of the provider's adapter to ``ProviderError``, so that the step is retried.

        Errors of the store are not converted.
        """
        try:
            yield
        except (LeaseLost, StoreError):
            raise
        except Exception as error:
            raise self.api.classify(error) from error

    def log_ignored(self, call: str, error: Exception) -> None:
        """Log a failed remote call that is not essential."""
        kind = self.api.classify(error).kind.value
        logs.warn("job_call_ignored", job_id=self.job.id, call=call, kind=kind)

    # -- local files -----------------------------------------------------------------------------------------

    def spool_path(self, shard: ShardRow, what: str) -> Path:
        """A missing file can always be written again with the same content."""
        return Path(self.store.spool) / f"{shard.id}.{what}"

    def write_file(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write a local file; see :func:`write_whole`.

        Each owner of the job first writes to a file of its own: a process that was suspended must not write
        to its successor's file when it resumes.
        """
        write_whole(path, path.with_name(f"{path.name}.{self.lease.epoch}.part"), pieces)

    def clear_files(self, shard: ShardRow) -> None:
        for path in Path(self.store.spool).glob(f"{shard.id}.*"):
            path.unlink(missing_ok=True)

    def caching_rules(self) -> CachingRules | None:
        """Return how the API caches shared prefixes of the job's prompts; ``None`` if it does not."""
        return self.api.caching(model=self.model) if self.policy.caching else None

    def shared(self) -> Shared:
        """Return the common parameters of the job's requests, and the folder of their files."""
        return decode_params(self.job.params, self.store.files.folder(self.job.id))

    def with_bodies(
        self, items: Sequence[OpenItem]
    ) -> Iterator[tuple[Sequence[OpenItem], Mapping[int, bytes]]]:
        """Yield pages of items, with their encoded requests by index."""
        for start in range(0, len(items), PAGE_REQUESTS):
            page = items[start : start + PAGE_REQUESTS]
            yield page, self.store.items.bodies(self.job.id, [item.ix for item in page])

    def requests_of(self, shard: ShardRow, *, first: int = 0) -> Iterator[tuple[int, Request]]:
        shared = self.shared()
        position = first - 1
        while page := self.store.shards.payloads(shard.id, after=position, limit=PAGE_REQUESTS):
            for position, item in page.items():
                yield position, decode_request(item.payload, shared, id=None)


def is_overdue(step: Step, shard: ShardRow) -> bool:
    """Whether a shard takes so long that its requests should be sent in real time.

    The time is measured from its create call or, if none was sent, from the submission of the job. Jobs with
    a deadline follow other rules.
    """
    since = step.job.created_at if shard.submitted_at is None else shard.submitted_at
    timed = step.falls_back and step.policy.deadline is None and not step.job.cancel_requested
    return timed and step.wall - since >= step.timeout
