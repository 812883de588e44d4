"""What one step of a job works with: the store, the provider's Batch API, the limits, and events."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from attrs import evolve, frozen

from smartbatch._clock import Clock, SteadyWall
from smartbatch._files import sync_folder
from smartbatch.core.limits.backoff import backoff
from smartbatch.core.limits.budget import Budget
from smartbatch.core.limits.model_controls import Pause
from smartbatch.core.limits.shared_record import LeaseAsk, LeaseGrant
from smartbatch.core.preparation.tokens import Calibration
from smartbatch.core.routing.rescue import Speed
from smartbatch.errors import ErrorKind, ProviderError, SmartbatchError, StoreError
from smartbatch.events import Event, JobFinished, JobIncident, JobProgress, ShardChanged
from smartbatch.jobs.payload import decode_params, decode_request, encode_error
from smartbatch.jobs.records import (
    IncidentRow,
    ItemState,
    JobLease,
    JobRow,
    JobState,
    LeaseLost,
    NewResult,
    NewShard,
    ShardRow,
    ShardState,
)
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.versioned_records import JobPolicy
from smartbatch.jobs.wire_ids import new_nonce
from smartbatch.observe import logs
from smartbatch.prices import PriceBook
from smartbatch.providers.base import Provider
from smartbatch.providers.batch_api import BatchApi
from smartbatch.types import Request

ACCOUNT_ERRORS = frozenset({ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR})
"""The account cannot be used: the job is held until a person resumes it."""
PAGE = 1000
"""Requests read at a time."""
REREAD_GROWTH = 4
"""How much longer each pause is before results are read again: few large downloads, and the first soon."""
MINUTE = 60.0
HOUR = 3600.0


EnqueuedExchange = Callable[[str, str, LeaseAsk], LeaseGrant | None]
"""Makes an exchange with what processes share of a provider's scope and a model."""


@frozen(kw_only=True)
class StepLimits:
    """How the engine waits, and how much it puts into a batch. All times are seconds.

    Attributes:
        poll_interval: between two polls of a batch.
        timeout: after it, a job that may go on in real time has its batches cancelled.
        settle: how long a batch whose creation is uncertain is searched for before its items are sent again.
            30 minutes is the longest delay seen of a late create, with a margin.
        visibility: how long a batch that exists may be missing from the provider's list; seen: 15 s.
        max_requests: most requests of a shard.
        enqueued_tokens: most tokens of one model in batches that have not ended; ``None`` learns it.
        call_timeout: of a small remote call.
        transfer_timeout: of an upload, a download, or a create that carries its input.
        send_within: a create that could not be sent this soon after its intent was stored is not sent: the
            process was frozen, and another may own the job.
        max_tries: how often an item is sent before its last failure stands.
        reread_pause: before results that lack lines are read again; each further pause is four times as long.
        reread_time: most of these pauses together.
        orphan_watch: how long the list is searched for a batch that was given up, and one that is known is
            looked at while it runs. 26 hours: by then every batch that could exist has ended.
        longest_pause: between two tries of a call that fails.
    """

    poll_interval: float
    timeout: float
    settle: float
    max_requests: int
    enqueued_tokens: int | None
    visibility: float = 2 * MINUTE
    call_timeout: float = MINUTE
    transfer_timeout: float = HOUR
    send_within: float = 5.0
    max_tries: int = 3
    reread_pause: float = 2.0
    reread_time: float = MINUTE
    orphan_watch: float = 26 * HOUR
    longest_pause: float = 10 * MINUTE


@frozen(kw_only=True, eq=False, repr=False)
class JobRuntime:
    """What carrying jobs on takes, the same for all jobs of a process; made in one place.

    Attributes:
        provider_of: the provider of a job, of the very scope it was submitted in; ``None`` when this process
            does not have its key: then only what needs no provider is done.
        rng: for nonces and backoff.
        wall: Unix seconds by which the jobs of a client wait and are late: that the clock of the machine is
            set must not move them.
        pause_of: says whether a person paused a model, ``provider:model``, as far as this process knows.
        tell, report, speed, calibration, outer_budget, exchange_enqueued: as in
            :class:`~smartbatch.jobs.dependencies.JobDependencies`.
    """

    store: SqlStore
    clock: Clock
    rng: Random
    wall: SteadyWall
    prices: PriceBook
    limits: StepLimits
    provider_of: Callable[[JobRow], Provider | None]
    pause_of: Callable[[str], Pause | None]
    tell: Callable[[Event], None]
    report: Callable[[str | None, BaseException], None]
    speed: Callable[[JobRow], Speed]
    calibration: Callable[[JobRow], Calibration]
    outer_budget: Callable[[JobRow], Budget | None]
    exchange_enqueued: EnqueuedExchange | None

    def tell_progress(self, before: JobRow, *, running: int = 0) -> JobRow:
        """Tell the progress of a job after results were stored, and its end after the last one.

        Returns:
            the job as it stands.
        """
        job = self.store.jobs.get(before.id) or before
        now = self.clock.now()
        self.tell(
            JobProgress(
                at=now,
                job_id=job.id,
                model=job.model,
                total=job.total,
                succeeded=job.succeeded,
                failed=job.failed,
                cancelled=job.cancelled,
                running=running,
                cost=job.cost,
                realtime_cost=job.realtime_cost,
            )
        )
        # where failed rows were asked again, "before" may be the end before that
        if job.state is JobState.DONE and _ended(job) != _ended(before):
            self.tell(
                JobFinished(
                    at=now,
                    job_id=job.id,
                    model=job.model,
                    traceparent=job.policy.traceparent,
                    succeeded=job.succeeded,
                    failed=job.failed,
                    cancelled=job.cancelled,
                    seconds=max(0.0, (job.finished_at or self.wall()) - job.created_at),
                    cost=job.cost,
                    realtime_cost=job.realtime_cost,
                    unpriced=job.unpriced,
                )
            )
        return job


def _ended(job: JobRow) -> tuple[float | None, int, int, int] | None:
    """Return when and with what a job has ended; ``None`` while it goes on."""
    if job.state is not JobState.DONE:
        return None
    return job.finished_at, job.succeeded, job.failed, job.cancelled


@frozen(kw_only=True, eq=False, repr=False)
class StepContext:
    """The circumstances of one step. Made anew for every step; holds nothing that lasts.

    Attributes:
        job: as it was at the beginning of the step.
        model: the job's model without the provider's prefix.
    """

    runtime: JobRuntime
    api: BatchApi
    job: JobRow
    lease: JobLease

    @property
    def store(self) -> SqlStore:
        return self.runtime.store

    @property
    def limits(self) -> StepLimits:
        return self.runtime.limits

    @property
    def now(self) -> float:
        """Monotonic seconds, for events and spans of time."""
        return self.runtime.clock.now()

    @property
    def wall(self) -> float:
        """Unix seconds, now."""
        return self.runtime.wall()

    @property
    def model(self) -> str:
        return self.job.model.partition(":")[2]

    def for_model(self, label: str) -> StepContext:
        """Return the circumstances of a step for requests of one model of the job, as ``provider:model``."""
        return self if label == self.job.model else evolve(self, job=evolve(self.job, model=label))

    @property
    def policy(self) -> JobPolicy:
        return self.job.policy

    @property
    def falls_back(self) -> bool:
        """Whether items that a batch has not run may be sent in real time."""
        return self.policy.fallback == "individual"

    @property
    def timeout(self) -> float:
        """The limit of that name, unless the job's policy sets its own."""
        return self.limits.timeout if self.policy.timeout is None else self.policy.timeout

    @property
    def settle_time(self) -> float:
        """The limit ``settle``, unless the job's policy sets its own."""
        return self.limits.settle if self.policy.settle is None else self.policy.settle

    def advance(self, shard: ShardRow, to: ShardState, reason: str = "", **changes: Any) -> ShardRow:
        """Commit a change of state and tell it; the next step is due now, unless ``changes`` says when."""
        moved = self.store.shards.advance(
            self.lease, shard, to, **{"due_at": self.wall, "tries": 0, "note": None, **changes}
        )
        self.tell_change(shard, moved, reason)
        return moved

    def tell_change(self, before: ShardRow, after: ShardRow, reason: str = "") -> None:
        self.runtime.tell(
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
        """Commit that the shard's next step is due in ``seconds``."""
        return self.store.shards.advance(
            self.lease, shard, shard.state, **{"due_at": self.wall + seconds, **changes}
        )

    def plan(self, ixs: Iterable[int], *, bytes: int = 0, tokens: int = 0, reserved: float = 0.0) -> ShardRow:
        """Put open items into a new shard with a nonce of its own.

        Raises:
            OverJobBudget: the job's budget has no room for what it can cost.
        """
        nonce = new_nonce(self.runtime.rng)
        model = self.job.model
        new = NewShard(f"shard-{nonce}", nonce, tuple(ixs), bytes, tokens, self.wall, reserved, model)
        return self.store.shards.plan(self.lease, new)

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
        self.tell_change(shard, dead, reason)
        return dead

    def give_up(self, shard: ShardRow, error: SmartbatchError, note: str, *, tried: bool = False) -> ShardRow:
        """End a shard that was refused for good: its items run in real time where the job may fall back, else
        they fail with ``error``.
        """
        if self.falls_back:
            return self.discard(shard, note, tried=tried, to=ItemState.REALTIME)
        dead = self.store.shards.fail(self.lease, shard, encode_error(error), note=note, at=self.wall)
        self.tell_change(shard, dead, note)
        self.runtime.tell_progress(self.job)
        return dead

    def fail_open(self, ixs: Collection[int], error: SmartbatchError) -> None:
        """End open items, of which no batch is made, as failed with ``error``."""
        self.store.items.fail_open(self.lease, ixs, encode_error(error), at=self.wall)
        self.runtime.tell_progress(self.job)

    def reread_pause(self, rereads: int) -> float | None:
        """Return the pause before results are read again that were read ``rereads`` times more than once;
        ``None`` when the time for that is over.
        """
        pause, whole = self.limits.reread_pause, self.limits.reread_time
        for _ in range(rereads):
            whole -= pause
            pause *= REREAD_GROWTH
        return min(pause, whole) if whole > 0 else None

    def retry_later(
        self, shard: ShardRow, error: ProviderError, *, at_least: float = 0.0, note: str = "", **changes: Any
    ) -> ShardRow:
        """Commit that a remote call failed and is tried again after a growing pause; ``note`` says why, where
        the error does not say enough.
        """
        tries = shard.tries + 1
        wait = backoff(
            tries, self.runtime.rng, first=2.0, longest=self.limits.longest_pause, asked=error.retry_after
        )
        why = note or f"{error.kind.value}: {error.message}"
        return self.reschedule(shard, max(wait, at_least), tries=tries, note=why, **changes)

    def incident(self, kind: str, detail: str, shard: ShardRow | None, money: float | None = None) -> None:
        """Store an incident, and tell it when it is new.

        Raises:
            LeaseLost: another process owns the job now, and may know better.
        """
        shard_id = None if shard is None else shard.id
        row = IncidentRow(kind, self.job.id, shard_id, detail, money, self.wall)
        if self.store.facts.add_incident(self.lease, row):
            at, job_id = self.now, self.job.id
            self.runtime.tell(
                JobIncident(at=at, job_id=job_id, shard_id=shard_id, kind=kind, detail=detail, money=money)
            )

    @contextlib.contextmanager
    def provider_calls(self) -> Iterator[None]:
        """Raise whatever a provider's adapter raises inside as a ``ProviderError``, for which
        :func:`~smartbatch.jobs.steps.runner.run_step` has the step tried again later; errors of the store
        stay what they are.
        """
        try:
            yield
        except (LeaseLost, StoreError):
            raise
        except Exception as error:
            raise self.api.classify(error) from error

    def ignored(self, call: str, error: Exception) -> None:
        """Log a failed remote call that the protocol can do without; its cause may be tried again later."""
        kind = self.api.classify(error).kind.value
        logs.warn("job_call_ignored", job_id=self.job.id, call=call, kind=kind)

    def hold(self, error: ProviderError) -> None:
        """Hold the job until a person resumes it: the account cannot be used."""
        self.store.jobs.note(self.lease, held_note(error), hold=True)

    def spool_path(self, shard: ShardRow, what: str) -> Path:
        """Return the path of a local file of a shard, whose content can always be made again."""
        return Path(self.store.spool) / f"{shard.id}.{what}"

    def requests_of(self, shard: ShardRow) -> Iterator[tuple[int, Request]]:
        """Yield the requests of a shard with their positions in it."""
        shared = decode_params(self.job.params)
        position = -1
        while page := self.store.shards.payloads(shard.id, after=position, limit=PAGE):
            for position, item in page.items():
                yield position, decode_request(item.payload, shared, id=None)

    def write_file(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Write a local file; see :func:`write_whole`.

        Each owner of a job writes into a file of its own until that is whole: a process that was suspended,
        and goes on, must not write into its successor's.
        """
        write_whole(path, path.with_name(f"{path.name}.{self.lease.epoch}.part"), pieces)


def write_whole(path: Path, partial: Path, pieces: Iterable[bytes]) -> None:
    """Write ``pieces`` into ``partial``, for its owner only, and rename it to ``path`` when all of it is on
    the disk.

    Where the pieces or the disk fail, ``partial`` is deleted: on a full disk the store needs the room.

    Raises:
        StoreError: the disk is full, or the folder cannot be written.
        FileNotFoundError: ``partial`` was deleted by a process that took the job over and has finished it.
        Exception: whatever ``pieces`` raise.
    """
    with _disk_errors(path):
        partial.unlink(missing_ok=True)  # of a process that died: it is made anew, and never through a link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = open(os.open(partial, flags, 0o600), "wb")  # noqa: SIM115
    try:
        for piece in pieces:
            with _disk_errors(path):
                file.write(piece)
        with _disk_errors(path):
            file.flush()
            os.fsync(file.fileno())  # else a loss of power may leave a name with half of its content
            file.close()
            partial.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # writes what is buffered, which may fail again
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Raise what a system call fails with as a StoreError; a file that is gone stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"the folder {path.parent} cannot be written ({error.strerror}): files on their way to and "
            "from the provider lie there; make room for it, and the job goes on by itself"
        ) from None


def held_note(error: SmartbatchError) -> str:
    """Return the note of a job whose account cannot be used."""
    what = "the account has no credit" if error.kind is ErrorKind.NO_MONEY else "the key is refused"
    return f"held: {what} ({error.message}); fix it, then resume the job"


@frozen
class StepResult:
    """What a job needs next.

    Attributes:
        next_at: Unix seconds when the next step is due; ``None`` when nothing comes due by itself.
        realtime: there are items to run in real time now.
        finished: everything is done and cleaned up; the job may be released.
    """

    next_at: float | None = None
    realtime: bool = False
    finished: bool = False


def is_paused(runtime: JobRuntime, job: JobRow) -> bool:
    """Whether somebody paused the job's model."""
    return runtime.pause_of(job.model) is not None


def has_realtime(runtime: JobRuntime, job: JobRow) -> bool:
    """Whether a job has items to run in real time now."""
    return (
        job.state is JobState.ACTIVE
        and not is_paused(runtime, job)
        and bool(runtime.store.items.in_state(job.id, state=ItemState.REALTIME, limit=1))
    )
