"""Warn before an account's file storage is full, and pause its uploads when it is full."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from smartbatch.errors import ProviderError
from smartbatch.jobs.records import MINUTE
from smartbatch.jobs.shard_records import BEFORE_UPLOAD, ShardRow
from smartbatch.jobs.steps.step import Step, is_overdue
from smartbatch.jobs.storage_pause import NO_PAUSE, StoragePause, change_pause, read_pause
from smartbatch.jobs.wiring import JobRuntime

NEARLY_FULL_SHARE = 0.9  # of what an account may store, before a warning
LOOK_SECONDS = MINUTE  # between checks for a pause that has ended early
# "The quota for files without expiry is reached." is Azure's (Azure/azure-sdk-for-java#47401)
_FULL = re.compile(
    r"storage.{0,40}(?:quota|limit|exceed|full)|(?:quota|limit|exceed).{0,40}storage|"
    r"(?:maximum|limit|too many|exceed).{0,40}\bnumber of files|\btoo many files|\bquota for files\b",
    re.I | re.S,
)


def is_full(error: ProviderError) -> bool:
    """Whether an upload was refused because the account stores too many bytes or files."""
    refused = error.status is not None and 400 <= error.status < 500 and not error.maybe_billed
    return refused and _FULL.search(error.message) is not None


def warn_if_nearly_full(step: Step, shard: ShardRow) -> None:
    """Record an incident, once per job, if the shard's input nearly fills the account's storage."""
    most = step.api.abilities
    if math.isinf(min(most.storage, most.input_files)):
        return
    stored = step.store.remote_objects.stored(shard.scope, at=step.wall)
    if stored.bytes + shard.bytes > NEARLY_FULL_SHARE * most.storage:
        exceeded = f"{most.storage / 1e9:,.0f} GB"
    elif stored.inputs + 1 > NEARLY_FULL_SHARE * most.input_files:
        exceeded = f"{most.input_files:,.0f} input files"
    else:
        return
    step.incident(
        "storage_nearly_full",
        f"the files of this store take more than {NEARLY_FULL_SHARE:.0%} of the {exceeded} that the account "
        "may store at the provider; delete those of finished jobs with smartbatch jobs clean --remote before "
        "uploads are rejected",
        None,
    )


# -- the pause of an account ---------------------------------------------------------------------------------


def without_waiting(step: Step, shards: Sequence[ShardRow]) -> tuple[Sequence[ShardRow], float]:
    """Leave out shards whose upload waits, and return the Unix time of the next check of them (or infinity).

    Shards that are no longer to be sent, or are to be sent in real time, do not wait.
    """
    if step.job.cancel_requested:
        return shards, math.inf
    unsent = [shard for shard in shards if shard.state in BEFORE_UPLOAD and not is_overdue(step, shard)]
    pause = read_pause(step.store, step.job.scope) if unsent else None
    if pause is None or not (left := pause.seconds_left(step.wall)) or not _needs_uploads(step):
        return shards, math.inf
    return [shard for shard in shards if shard not in unsent], step.wall + min(left, LOOK_SECONDS)


def _needs_uploads(step: Step) -> bool:
    """Whether shards need an input file, or files of their requests that are not uploaded."""
    job = step.job
    return step.api.abilities.files or bool(step.store.uploads.missing(job.id, job.scope, step.wall))


def may_upload(step: Step) -> bool:
    """Whether an upload may start now. After a pause, only one at a time may."""
    scope, wall = step.job.scope, step.wall
    if read_pause(step.store, scope) is None:
        return True

    def begin_trial(pause: StoragePause | None) -> StoragePause | None:
        return pause if pause is None or pause.seconds_left(wall) else pause.during_trial(wall)

    before = change_pause(step.store, scope, begin_trial)
    return before is None or not before.seconds_left(wall)


def accepted(step: Step) -> None:
    """End the pause, because an upload was accepted."""
    if read_pause(step.store, step.job.scope) is not None:
        change_pause(step.store, step.job.scope, lambda _: None)


def refused(step: Step, shard: ShardRow, error: ProviderError, began: float) -> ShardRow:
    """Pause the uploads of the account, and record an incident when the pause begins.

    Args:
        began: Unix time at which the refused upload began.
    """
    scope, wall, rng = step.job.scope, step.wall, step.runtime.rng
    before = change_pause(
        step.store,
        scope,
        lambda pause: (pause or NO_PAUSE).after_refusal(error.message, began, wall, rng),
    )
    if before is None and (pause := read_pause(step.store, scope)) is not None:
        step.incident("storage_full", pause.note, None)
    return step.reschedule(shard, 0.0)


def freed(runtime: JobRuntime, scope: str) -> None:
    """End an account's pause early, because a file was deleted."""
    if read_pause(runtime.store, scope) is not None:
        change_pause(runtime.store, scope, lambda pause: pause and pause.after_deletion())
