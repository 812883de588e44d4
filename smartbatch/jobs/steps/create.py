"""Creation of a batch from a planned shard: upload, intent, one create.

The intent is stored before anything is sent: the shard is ``SUBMITTING`` in the store before its create, and
the create is sent once. Its outcome is ``SUBMITTED``, a definite refusal (``READY`` or ``DEAD``), or unknown
(``UNCERTAIN``, see :mod:`smartbatch.jobs.steps.recover`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.records import ACCOUNT_ERRORS, ItemState
from smartbatch.jobs.shard_records import RemoteProgress, ShardRow, ShardState, file_name, wire_id
from smartbatch.jobs.steps import enqueued_quota, refusals
from smartbatch.jobs.steps.context import Step
from smartbatch.jobs.steps.listing import find_orphans
from smartbatch.jobs.wiring import MINUTE
from smartbatch.providers.batch_api import Creation, RemoteBatch
from smartbatch.types import Kind

_REPEAT = frozenset(
    {ErrorKind.RATE_LIMIT, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR, ErrorKind.SERVER_ERROR}
)
_UNSETTLED = (ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.PROVISIONAL)
_TURN = "waits until another create of this account is settled"
FILE_PAUSE = 2.0
"""Seconds between two polls of a file that the provider still processes; it takes a few."""
FILE_TRIES = 6
"""Refusals in a row, a minute in all, for which an input file is waited for."""
_FILE_NOT_YET = re.compile(
    r"\bfiles?\b.{0,80}(?:not (?:yet|found|ready|available|exist|active|processed|visible|uploaded)|"
    r"no longer|n't exist|being processed|processing|pending|unknown|not in (?:an? )?\w+ state)|"
    r"(?:no such|unknown|missing|could not find|cannot find|no batch|wait for the).{0,30}\bfile\b",
    re.I | re.S,
)
PAGE_TRIES = 6
"""Failed tries in a row, a minute in all, before a page instead of an answer is noted as an incident."""
MISSING_TRIES = 3
"""The same of a job that may fall back, before its requests go in real time."""
FAILING_TRIES = 8
"""Failures of a server in a row, some eight minutes in all, before such a job does without batches."""
_NO_SUCH_PATH = (404, 405, 410, 501)
_NOT_OFFERED = (403, *_NO_SUCH_PATH)
"""Statuses of an account or a server without a Batch API."""
_PAGE = "waits for the Batch API: the server answers with a web page"
_PAGE_REMEDY = "If it has no batches, cancel the job and send its requests in real time"


def begin(step: Step, shard: ShardRow) -> ShardRow:
    """``PLANNED``: upload the input, or go on to the create where the input is part of it.

    A shard above a limit that another one has met since it was cut is cut anew.
    """
    if refusals.is_above_limits(step, shard):
        return step.discard(shard, refusals.ABOVE)
    remote = evolve(shard.remote, omitted=step.api.omitted(model=step.model))
    if not step.api.abilities.files:
        return step.advance(shard, ShardState.READY, remote=remote)
    shard = step.advance(shard, ShardState.UPLOADING, remote=remote)
    return _send_file(step, shard)  # nothing was sent before, so no file is searched for


def resume_upload(step: Step, shard: ShardRow) -> ShardRow:
    """``UPLOADING`` as it was found: an earlier upload may have been under way."""
    try:
        found = step.api.find_file(_input_name(shard), step.limits.call_timeout)
    except Exception as error:
        return _call_failed(step, shard, error)
    # 1. the file was uploaded, and is not listed yet: look again, some times
    if found is None and shard.file_id is not None and shard.tries + 1 < FILE_TRIES:
        return step.reschedule(shard, FILE_PAUSE, tries=shard.tries + 1)
    # 2. the file is not there: upload again under a new name. The old upload may still be under way, of a
    # process that is suspended: with the same name it could bring the input of a late create back after the
    # fence. What it leaves belongs to no batch, and expires
    if found is None:
        remote = evolve(shard.remote, uploads=shard.remote.uploads + 1)
        return _send_file(step, step.reschedule(shard, 0.0, remote=remote, file_id=None))
    # 3. the file has another size: half an upload arrived as a whole. Its name, like its nonce, is never used
    # again, so the shard ends and its items go into a new one
    size = _spool(step, shard).stat().st_size
    if found.size is not None and found.size != size:
        shard = step.reschedule(shard, 0.0, file_id=found.id)  # it is deleted when the shard is cleaned up
        return step.discard(shard, "its input file is another than the one meant")
    # 4. the provider still processes the file: later
    if not found.ready:
        return step.reschedule(shard, FILE_PAUSE)
    # 5. the file is ready: go on to the create
    return step.advance(shard, ShardState.READY, file_id=found.id)


def _input_name(shard: ShardRow) -> str:
    return file_name(shard.nonce, shard.remote.uploads)


def _send_file(step: Step, shard: ShardRow) -> ShardRow:
    source = _spool(step, shard)
    try:
        file = step.api.upload(_input_name(shard), source, step.limits.transfer_timeout)
    except Exception as error:
        return _call_failed(step, shard, error)
    if not file.ready:
        return step.reschedule(shard, FILE_PAUSE, file_id=file.id)
    return step.advance(shard, ShardState.READY, file_id=file.id)


def _call_failed(step: Step, shard: ShardRow, failure: Exception) -> ShardRow:
    """Go on after a call that costs nothing, before anything is created."""
    error, tries = refusals.redacted(step, shard, failure), shard.tries + 1
    # 1. a page with 404, 405, 410 or 501: from a server without batches, but also from a gateway whose server
    # is unavailable. Nothing tells them apart, so it is tried again; after some tries the requests go in real
    # time where the job may fall back, and else an incident says what to do
    missing = error.status in _NO_SUCH_PATH and error.maybe_billed
    failing = error.kind is ErrorKind.SERVER_ERROR and (error.status or 0) >= 500 and tries >= FAILING_TRIES
    if step.falls_back and ((missing and tries >= MISSING_TRIES) or failing):
        return _do_without(step, shard, error)
    if missing and tries >= PAGE_TRIES:
        detail = f"{_PAGE} ({error.status}). {_PAGE_REMEDY}"
        step.incident("no_batch_api", detail, shard)
        return step.retry_later(shard, error, note=detail)
    # 2. what may pass, or may have been done: try again. A server that fails again and again is given up
    # where the job may fall back
    if error.kind in _REPEAT or error.kind is ErrorKind.INVALID_RESPONSE or error.maybe_billed:
        return step.retry_later(shard, error)
    # 3. otherwise it is refused
    return _refused(step, shard, error)


def submit(step: Step, shard: ShardRow) -> ShardRow:
    """``READY``: send the one create."""
    # 1. it is above a limit that another shard has met since it was cut: it is cut anew
    if refusals.is_above_limits(step, shard):
        return step.discard(shard, refusals.ABOVE)
    # 2. the quota of enqueued tokens has no room: later
    wait = enqueued_quota.room_for(step, shard)
    if wait > 0:
        return step.reschedule(shard, wait, note="waits for the quota of enqueued tokens")
    # 3. the input file is missing: upload first
    if step.api.abilities.files and shard.file_id is None:
        return step.advance(shard, ShardState.UPLOADING)
    # 4. batches have no labels, and another create of the account is not settled: wait for the turn
    if (wait := _turn(step, shard)) > 0:
        return step.reschedule(shard, wait, note=_TURN)
    source = None if step.api.abilities.files else _spool(step, shard)
    try:
        page = step.api.page(None, step.limits.call_timeout)
    # 5. the list cannot be read: without a watermark nothing is created
    except Exception as error:
        return _call_failed(step, shard, error)
    find_orphans(step, page.batches)
    began = step.now
    now, set_to = step.wall, step.runtime.clock.wall()
    intended = step.store.shards.mark_submitting(
        step.lease,
        shard,
        exclusive=not step.api.abilities.labels,
        watermark=page.batches[0].id if page.batches else "",
        server_time=page.server_time,
        submitted_at=now,
        due_at=now,
    )
    # 6. the intent cannot be stored because another shard has the turn now: later
    if intended is None:
        return step.reschedule(shard, max(_turn(step, shard), 1.0), note=_TURN)
    step.tell_change(shard, intended)
    # 7. the intent is too old when it is stored (the process was suspended): another process may own the job,
    # nothing was sent, so the shard goes back to READY; by the wall clock as well, as the others may stand
    # where the machine slept
    if max(step.now - began, step.runtime.clock.wall() - set_to) > step.limits.send_within:
        return step.advance(intended, ShardState.READY, "its intent was too old to be sent")
    # 8. the create is sent, and its outcome is adopted, refused, or unknown
    creation = Creation(
        mark=shard.nonce,
        model=step.model,
        kind=Kind(step.job.kind),
        size=shard.size,
        file_id=shard.file_id,
        lines=source,
    )
    try:
        batch = step.api.create(creation, step.limits.transfer_timeout)
    except Exception as error:
        return _create_failed(step, intended, refusals.redacted(step, intended, error))
    return adopt(step, intended, batch)


def adopt(step: Step, shard: ShardRow, batch: RemoteBatch, reason: str = "") -> ShardRow:
    """Record the batch of a shard: ``SUBMITTED``."""
    step.spool_path(shard, "in").unlink(missing_ok=True)
    submitted = shard.submitted_at or step.wall
    before = shard.remote
    return step.advance(
        shard,
        ShardState.SUBMITTED,
        reason,
        batch_id=batch.id,
        candidate=None,
        remote=RemoteProgress(status=batch.word, held_job=before.held_job, omitted=before.omitted),
        results_until=submitted + step.api.abilities.retention,
        due_at=step.wall + min(step.limits.poll_interval, MINUTE),
    )


def _turn(step: Step, shard: ShardRow) -> float:
    """Return the seconds after which the shard may be created, 0 for now.

    Where batches have no labels, one create of an account is settled before the next is sent. One whose
    answer is lost takes half an hour and more; until then only the store is read, not the provider.
    """
    if step.api.abilities.labels:
        return 0.0
    others = [
        other.state
        for other in step.store.shards.in_scope(shard.scope, states=_UNSETTLED)
        if other.id != shard.id
    ]
    if not others:
        return 0.0
    long = any(state is not ShardState.SUBMITTING for state in others)
    return step.limits.poll_interval if long else min(step.limits.poll_interval, 5.0)


def _create_failed(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    """Go on after a create that raised."""
    about_file = shard.file_id is not None and _is_about_file(error)
    # 1. the batch may exist: UNCERTAIN. In all other cases it certainly does not: back to READY. A
    # conflict over the input file is such a case, since the server names what it refuses
    if error.maybe_billed and not about_file:
        now = step.wall
        return step.advance(
            shard,
            ShardState.UNCERTAIN,
            f"the answer to its create is lost ({error.kind.value})",
            uncertain_since=now,
            due_at=now + 1.0,
        )
    reason = f"its create was refused ({error.kind.value})"
    back = step.advance(shard, ShardState.READY, reason, tries=shard.tries)
    # 2. the quota of enqueued tokens, or a rate limit: all shards of the model wait together. A shard that is
    # too large by itself ends, and its items go into smaller ones
    if error.code in enqueued_quota.QUOTA_CODES or error.kind is ErrorKind.RATE_LIMIT:
        if enqueued_quota.refused(step, back, error, error.message):
            reason = "more than the quota of enqueued tokens; it goes again in smaller parts"
            return step.discard(back, reason)
        return step.retry_later(back, error, at_least=enqueued_quota.room_for(step, back))
    # 3. the input file is not known yet, or not ready: try again, some times
    if about_file and back.tries + 1 < FILE_TRIES:
        return step.retry_later(back, error, note=f"waits for its input file: {error.message}")
    # 4. an error that may pass: try again
    if error.kind in _REPEAT:
        return step.retry_later(back, error)
    # 5. the input file expired or was deleted: its name is used up, so the items go into a new shard
    if error.kind is ErrorKind.CLIENT_ERROR and _input_is_gone(step, back):
        return step.discard(back, "its input file is gone; its requests go again", tried=True)
    # 6. any other refusal stands
    return _refused(step, back, error)


def _is_about_file(error: ProviderError) -> bool:
    """Whether a refusal may be explained by an input file that the provider does not know yet, or that is not
    ready: files and batches are kept by different services."""
    if error.status == 404 or error.code == "no_such_file":
        return True
    return error.status in (400, 409, 422) and _FILE_NOT_YET.search(error.message) is not None


def _input_is_gone(step: Step, shard: ShardRow) -> bool:
    """Whether a refusal is explained by an input file that expired or was deleted, and not too often."""
    if shard.file_id is None or refusals.tries_of(step, shard) + 1 >= step.limits.max_tries:
        return False
    try:
        return step.api.find_file(_input_name(shard), step.limits.call_timeout) is None
    except Exception as error:  # the refusal stands as it is
        step.ignored("search for an input file", error)
        return False


def _refused(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    """End a shard that was refused for good."""
    # 1. there is no Batch API for this account, and the job may fall back: real time
    if step.falls_back and error.status in _NOT_OFFERED and error.kind is not ErrorKind.NO_MONEY:
        return _do_without(step, shard, error)
    # 2. the account cannot be used: the job is held, and the shard goes on when it is resumed
    if error.kind in ACCOUNT_ERRORS:
        step.hold(error)
        return step.reschedule(shard, 0.0, note=error.message)  # goes on as soon as the job is resumed
    # 3. it names wrong lines, or a limit that the batch exceeds; otherwise the refusal stands
    return refusals.sort_out(step, shard, error) or step.give_up(shard, error, error.message)


def _do_without(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    """Send the requests of a shard in real time, because there is no Batch API, or it does not work."""
    reason = f"the Batch API cannot be used ({error.status})"
    step.incident("no_batch_api", f"{reason}: {shard.size:,} requests go in real time", shard)
    return step.discard(shard, f"{reason}: {error.message}", to=ItemState.REALTIME)


def _spool(step: Step, shard: ShardRow) -> Path:
    """Return the file of the shard's lines; made again with the same bytes where it is missing.

    Raises:
        StoreError: the disk is full.
    """
    path = step.spool_path(shard, "in")
    if path.exists():
        return path
    step.write_file(path, _lines(step, shard))
    return path


def _lines(step: Step, shard: ShardRow) -> Iterator[bytes]:
    for position, request in step.requests_of(shard):
        wire = wire_id(shard.nonce, position)
        yield step.api.encode(request, model=step.model, wire_id=wire) + b"\n"


# -- texts of the provider -----------------------------------------------------------------------------------
