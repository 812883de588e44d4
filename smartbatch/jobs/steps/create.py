"""Create batches: cut open items into shards, upload each shard, and send its create call once.

The intent is stored before anything is sent: a shard is ``SUBMITTING`` in the store before its create call.
The outcome of the call is ``SUBMITTED``, a definite refusal (``READY`` or ``DEAD``), or unknown
(``UNCERTAIN``, see :mod:`smartbatch.jobs.steps.recover`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from attrs import evolve

from smartbatch.core.batching.sharding import GroupPath, cut
from smartbatch.core.prefixes.batch_marks import with_batch_mark
from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError, SmartbatchError
from smartbatch.jobs.batch_caching import marks_pay
from smartbatch.jobs.job_budget import (
    TINY_USD,
    CostCeiling,
    exceeded,
    is_under_way,
    remaining_budget,
)
from smartbatch.jobs.payload import encode_error, model_of, prefixes_of
from smartbatch.jobs.records import ACCOUNT_ERRORS, MINUTE, ItemState, NewResult, OpenItem, OverJobBudget
from smartbatch.jobs.shard_records import (
    BEGUN_SHARDS,
    OPEN_SHARDS,
    NewShard,
    RemoteProgress,
    ShardRow,
    ShardState,
    file_name,
    new_nonce,
    wire_id,
)
from smartbatch.jobs.steps import file_uploads, poll, refusals, storage
from smartbatch.jobs.steps.orphans import find_orphans
from smartbatch.jobs.steps.step import Step
from smartbatch.providers.batch_api import Creation, RemoteBatch
from smartbatch.types import Kind

MAX_PLANNED_ITEMS = 100_000  # items cut into shards at a time (about 10 MB of numbers)

_TRANSIENT_KINDS = frozenset(
    {ErrorKind.RATE_LIMIT, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR, ErrorKind.SERVER_ERROR}
)
_PENDING_CREATES = (ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.PROVISIONAL)
_TURN_NOTE = "waits until the outcome of another create call of this account is known"
FILE_POLL_SECONDS = 2.0  # pause between polls of an input file that the provider is processing
MAX_FILE_TRIES = 6  # consecutive refusals (about a minute) while waiting for an input file to become usable
_FILE_NOT_YET = re.compile(
    r"\bfiles?\b.{0,80}(?:not (?:yet|found|ready|available|exist|active|processed|visible|uploaded)|"
    r"no longer|n't exist|being processed|processing|pending|unknown|not in (?:an? )?\w+ state)|"
    r"(?:no such|unknown|missing|could not find|cannot find|no batch|wait for the).{0,30}\bfile\b",
    re.I | re.S,
)
INCIDENT_TRIES = 6  # consecutive failures (about a minute) before a missing Batch API becomes an incident
FALLBACK_TRIES = 3  # failures before a job that may fall back sends its requests in real time
SERVER_ERROR_TRIES = 8  # consecutive server errors (about eight minutes) before such a job avoids batches
_NO_SUCH_PATH = (404, 405, 410, 501)
_NOT_OFFERED = (403, *_NO_SUCH_PATH)  # HTTP statuses of an account or a server without a Batch API


class UnsendableRequests(Exception):
    """Requests that can no longer be written, because their files have changed or are missing."""

    def __init__(self, shard: ShardRow, errors: Mapping[int, InvalidRequest]) -> None:
        self.shard = shard
        self.errors = errors  # by position in the shard


# -- open items become shards --------------------------------------------------------------------------------


def plan_shards(step: Step) -> bool:
    """Cut the job's open items into shards, as far as its budget allows; return whether anything changed.

    Each shard is stored with all its wire ids in one transaction before any part of it is sent. If batches
    have no labels (Anthropic), no two open shards have the same size, so that sizes identify them.
    """
    items = step.store.items.in_state(step.job.id, state=ItemState.OPEN, limit=MAX_PLANNED_ITEMS)
    # 1. there are no open items: nothing changes
    if not items:
        return False
    costs: dict[int, float] = {}
    marked = cache(lambda label: _marks_pay(step.for_model(label)))
    if step.policy.budget is not None:
        costs = _affordable(step, items, marked)
        # 2. the job's budget has no room for any of them: they fail, or wait for room
        if not costs:
            return _end_unaffordable(step, items, marked)
        items = [item for item in items if item.ix in costs]
    # 3. they are cut into shards within the limits of API, server and settings, stored one by one. If
    # real-time items use up the budget in the meantime, the next step cuts the rest
    groups = _groups(step, items)
    items = sorted(items, key=lambda item: groups.get(item.ix, ()))
    for label, members in _by_model(step, items).items():
        if not _plan_model(step.for_model(label), members, groups, costs, marked=marked(label)):
            break
    return True


def _affordable(step: Step, items: Sequence[OpenItem], marked: Callable[[str], bool]) -> dict[int, float]:
    """Return the maximum cost of each open item that fits into the budget.

    While batches are running, no item fits: batches that cost less than their reservations free budget, and a
    few large batches finish sooner than many small ones.
    """
    if step.store.shards.of_job(step.job.id, states=BEGUN_SHARDS):
        return {}
    left = remaining_budget(step.store.jobs.get(step.job.id) or step.job)
    chosen: dict[int, float] = {}
    for item, most in _priced(step, items, marked):
        if most <= left + TINY_USD:
            chosen[item.ix] = most
            left -= most
    return chosen


def _end_unaffordable(step: Step, items: Sequence[OpenItem], marked: Callable[[str], bool]) -> bool:
    # work in progress may cost less than its reservation and free budget: wait until it is done
    row = step.store.jobs.get(step.job.id)
    if row is None or is_under_way(step.store, row):
        return False
    least = min(most for _, most in _priced(step, items, marked))
    if least <= remaining_budget(row) + TINY_USD:
        return True  # budget was freed just now
    _fail_open(step, [item.ix for item in items], exceeded(row, len(items), least))
    return True


def _priced(
    step: Step, items: Sequence[OpenItem], marked: Callable[[str], bool]
) -> Iterator[tuple[OpenItem, float]]:
    """Yield items with their maximum cost. ``marked`` says whether batches of a model may be marked."""
    ceiling = CostCeiling.of(step.runtime, step.job)
    for page, bodies in step.with_bodies(items):
        for item in page:
            body = bodies[item.ix]
            yield item, ceiling.in_batch(body, marked=marked(_label_of(step, body)))


def _label_of(step: Step, body: bytes) -> str:
    """Return the ``provider:model`` of an encoded request."""
    name = model_of(body) if step.policy.models else None
    return step.job.model if name is None else f"{step.job.model.partition(':')[0]}:{name}"


def _by_model(step: Step, items: Sequence[OpenItem]) -> dict[str, Sequence[OpenItem]]:
    if not step.policy.models:
        return {step.job.model: items}
    groups: dict[str, list[OpenItem]] = {}
    for page, bodies in step.with_bodies(items):
        for item in page:
            groups.setdefault(_label_of(step, bodies[item.ix]), []).append(item)
    return dict(groups)


def _groups(step: Step, items: Sequence[OpenItem]) -> Mapping[int, GroupPath]:
    """Return the groups of items that share a prefix, numbered in the order of their first items.

    Sorting items by these numbers makes the items of each group neighbors.
    """
    groups: dict[int, GroupPath] = {}
    if not step.policy.groups:
        return groups
    numbers: dict[str, int] = {}
    for page, bodies in step.with_bodies(items):
        for item in page:
            keys = (prefix.key for prefix in prefixes_of(bodies[item.ix]))
            groups[item.ix] = tuple(numbers.setdefault(key, len(numbers)) for key in keys)
    return groups


def _plan_model(
    step: Step,
    items: Sequence[OpenItem],
    groups: Mapping[int, GroupPath],
    costs: Mapping[int, float],
    *,
    marked: bool,
) -> bool:
    """Store shards for items of one model; return false if the job's budget ran out."""
    abilities, server = step.api.abilities, refusals.server_limits(step)
    items = file_uploads.with_sent_sizes(step, items)
    most = min(
        step.policy.max_requests or step.limits.max_requests,
        abilities.max_requests,
        int(min(server.requests, abilities.max_requests)),
        refusals.max_shard_requests(step, abilities.max_requests),
    )
    taken = (
        ()
        if abilities.labels
        else {shard.size for shard in step.store.shards.in_scope(step.job.scope, states=OPEN_SHARDS)}
    )
    pieces = cut(
        items,
        max_requests=most,
        max_bytes=abilities.max_bytes - step.api.overhead(most),
        max_tokens=refusals.enqueued_token_limit(step),
        groups=groups,
        shared_bytes=server.bytes,
        shared_tokens=server.tokens,
        taken_sizes=taken,
        distinct=not abilities.labels,
    )
    by_ix = {item.ix: item for item in items}
    for ixs in pieces.shards:
        members = [by_ix[ix] for ix in ixs]
        nonce = new_nonce(step.runtime.rng)
        new = NewShard(
            f"shard-{nonce}",
            nonce,
            tuple(ixs),
            bytes=sum(item.size + 1 for item in members),
            tokens=sum(item.tokens for item in members),
            due_at=step.wall,
            reserved=sum(costs.get(ix, 0.0) for ix in ixs),
            model=step.job.model,
            marked=marked,
        )
        try:
            step.store.shards.plan(step.lease, new)
        except OverJobBudget:  # real-time items have used up the budget
            return False
    if pieces.too_big:
        _refuse_too_big(step, pieces.too_big)
    return True


def _refuse_too_big(step: Step, ixs: tuple[int, ...]) -> None:
    if step.falls_back:
        step.store.items.move_to_realtime(step.lease, ixs)
        return
    limit = refusals.enqueued_token_limit(step)
    tokens = "" if math.isinf(limit) else f" and {limit:,.0f} enqueued tokens"
    error = InvalidRequest(
        f"the request alone exceeds the limits of a batch ({step.api.abilities.max_bytes:,} bytes{tokens}); "
        "shorten it or send it in real time"
    )
    _fail_open(step, ixs, error)


def _fail_open(step: Step, ixs: Collection[int], error: SmartbatchError) -> None:
    step.store.items.fail_open(step.lease, ixs, encode_error(error), at=step.wall)
    step.runtime.publish_progress(step.job)


# -- upload --------------------------------------------------------------------------------------------------


def begin(step: Step, shard: ShardRow) -> ShardRow:
    """Upload the input of a ``PLANNED`` shard, unless the create call contains the input.

    The files that its requests refer to are uploaded first.

    A shard that exceeds a limit discovered since it was cut is cut again.
    """
    if refusals.exceeds_limits(step, shard):
        return step.discard(shard, refusals.OVER_LIMIT_NOTE)
    if (waiting := file_uploads.upload_missing(step, shard)) is not None:
        return waiting
    omitted = step.api.omitted(model=step.model)
    marked = shard.remote.marked and _marks_pay(step)
    remote = evolve(shard.remote, omitted=omitted, marked=marked)
    if not step.api.abilities.files:
        return step.advance(shard, ShardState.READY, remote=remote)
    storage.warn_if_nearly_full(step, shard)
    shard = step.advance(shard, ShardState.UPLOADING, remote=remote)
    return _send_file(step, shard)  # nothing has been sent yet, so there is no file to search for


def _marks_pay(step: Step) -> bool:
    rules = step.caching_rules()
    return rules is None or marks_pay(step.store, step.job.scope, step.job.model, rules, step.wall)


def resume_upload(step: Step, shard: ShardRow) -> ShardRow:
    """Continue after a crash or a failed call: the file may be at the provider, in whole or in part."""
    try:
        found = step.api.find_file(_input_name(shard), step.limits.call_timeout)
    except Exception as error:
        return _call_failed(step, shard, error)
    # 1. the file was uploaded and is not listed yet: look again a few times
    if found is None and shard.file_id is not None and shard.tries + 1 < MAX_FILE_TRIES:
        return step.reschedule(shard, FILE_POLL_SECONDS, tries=shard.tries + 1)
    # 2. the file is missing: upload it under a new name. A suspended process may still upload the old one; if
    # both had the same name, that upload could restore the input of a late create call after the fence. The
    # leftover file belongs to no batch and expires
    if found is None:
        remote = evolve(shard.remote, uploads=shard.remote.uploads + 1)
        return _send_file(step, step.reschedule(shard, 0.0, remote=remote, file_id=None))
    # 3. the file has a different size: the provider stored a partial upload. Its name, like its nonce, must
    # not be reused, so the shard ends and its items go into a new one
    size = _input_file(step, shard).stat().st_size
    if found.size is not None and found.size != size:
        shard = step.reschedule(shard, 0.0, file_id=found.id)  # cleaned up together with the shard
        return step.discard(shard, "its uploaded input file is incomplete")
    # 4. the provider still processes the file: wait
    if not found.ready:
        return step.reschedule(shard, FILE_POLL_SECONDS)
    # 5. the file is ready: proceed to the create call
    return step.advance(shard, ShardState.READY, file_id=found.id)


def _input_name(shard: ShardRow) -> str:
    return file_name(shard.nonce, shard.remote.uploads)


def _send_file(step: Step, shard: ShardRow) -> ShardRow:
    source, began = _input_file(step, shard), step.wall
    # the account's file storage is full: wait
    if not storage.may_upload(step):
        return step.reschedule(shard, 0.0)
    try:
        file = step.api.upload(_input_name(shard), source, step.limits.transfer_timeout)
    except Exception as error:
        return _call_failed(step, shard, error, upload_began=began)
    storage.accepted(step)
    if not file.ready:
        return step.reschedule(shard, FILE_POLL_SECONDS, file_id=file.id)
    return step.advance(shard, ShardState.READY, file_id=file.id)


def _input_file(step: Step, shard: ShardRow) -> Path:
    """Return the file with the shard's lines. If it is missing, it is written again with the same bytes.

    Raises:
        StoreError: the disk is full.
        UnsendableRequests: requests whose files have changed.
    """
    path = step.spool_path(shard, "in")
    if path.exists():
        return path
    unsendable: dict[int, InvalidRequest] = {}
    rules = step.caching_rules()
    ids = step.store.uploads.ids_of(step.job.id)

    def lines() -> Iterator[bytes]:
        for position, request in step.requests_of(shard):
            name = wire_id(shard.nonce, position)
            try:
                request = with_batch_mark(request, rules, position, marked=shard.remote.marked)
                request = file_uploads.sendable(step, request, ids)
                yield step.api.encode(request, model=step.model, wire_id=name) + b"\n"
            except InvalidRequest as error:
                unsendable[position] = error

    step.write_file(path, lines())
    if unsendable:
        path.unlink()
        raise UnsendableRequests(shard, unsendable)
    return path


def end_unsendable(step: Step, found: UnsendableRequests) -> ShardRow:
    """Fail these requests; the others go into a new shard."""
    items = step.store.shards.items_at(found.shard.id, found.errors)
    failed = [
        NewResult(item.ix, "failed", encode_error(found.errors[position]), cost=0.0)
        for position, item in items.items()
    ]
    dead = step.discard(found.shard, "files of its requests have changed or are missing", ended=failed)
    step.runtime.publish_progress(step.job)
    return dead


# -- the create call -----------------------------------------------------------------------------------------


def send_create(step: Step, shard: ShardRow) -> ShardRow:
    # 1. it exceeds a limit that was discovered since it was cut: cut it again
    if refusals.exceeds_limits(step, shard):
        return step.discard(shard, refusals.OVER_LIMIT_NOTE)
    if file_uploads.expires_soon(step, shard):
        return step.discard(shard, "files of its requests expire; they are uploaded again")
    # 2. the quota of enqueued tokens has no room: wait
    wait = refusals.quota_wait(step, shard)
    if wait > 0:
        return step.reschedule(shard, wait, note="waits for the quota of enqueued tokens")
    # 3. it has waited, and the results of other batches show by now that its marks do not pay off: write it
    # again without them
    if shard.remote.marked and not _marks_pay(step) and _shares_prefixes(step, shard):
        return step.discard(
            shard, "caching its prefixes does not pay off; its requests are sent without marks"
        )
    # 4. the input file is missing: upload first
    if step.api.abilities.files and shard.file_id is None:
        return step.advance(shard, ShardState.UPLOADING)
    # 5. batches have no labels, and the outcome of another create call of the account is unknown: wait
    if (wait := _seconds_until_turn(step, shard)) > 0:
        return step.reschedule(shard, wait, note=_TURN_NOTE)
    source = None if step.api.abilities.files else _input_file(step, shard)
    try:
        page = step.api.page(None, step.limits.call_timeout)
    # 6. the list of batches, which provides the watermark, cannot be read: create nothing
    except Exception as error:
        return _call_failed(step, shard, error)
    find_orphans(step, page.batches)
    began = step.now
    now, set_to = step.wall, step.runtime.clock.wall()
    intended = step.store.shards.mark_submitting(
        step.lease,
        shard,
        exclusive=not step.api.abilities.labels,
        watermark=page.batches[0].id if page.batches and step.api.abilities.newest_first else "",
        server_time=page.server_time,
        submitted_at=now,
        due_at=now,
    )
    # 7. another shard stored its intent first: wait for this shard's turn
    if intended is None:
        return step.reschedule(shard, max(_seconds_until_turn(step, shard), 1.0), note=_TURN_NOTE)
    step.report_change(shard, intended)
    # 8. the process was suspended while it stored the intent, so another process may own the job now. Nothing
    # was sent, and the shard is READY again. The wall clock is checked too, since monotonic clocks may stop
    # while a machine sleeps
    if max(step.now - began, step.runtime.clock.wall() - set_to) > step.limits.send_within:
        return step.advance(intended, ShardState.READY, "its intent was too old to be sent")
    # 9. send the create call: the batch is adopted, refused, or its existence is unknown
    creation = Creation(
        mark=shard.nonce,
        model=step.model,
        kind=Kind(step.job.kind),
        size=shard.size,
        file_id=shard.file_id,
        lines=source,
        callback_url=step.runtime.webhook_url,
    )
    try:
        batch = step.api.create(creation, step.limits.transfer_timeout)
    except Exception as error:
        return _create_failed(step, intended, refusals.redacted(step, intended, error))
    return adopt(step, intended, batch)


def _shares_prefixes(step: Step, shard: ShardRow) -> bool:
    return any(request.cache is not None for _, request in step.requests_of(shard))


def adopt(step: Step, shard: ShardRow, batch: RemoteBatch, reason: str = "") -> ShardRow:
    step.spool_path(shard, "in").unlink(missing_ok=True)
    submitted = shard.submitted_at or step.wall
    before = shard.remote
    return step.advance(
        shard,
        ShardState.SUBMITTED,
        reason,
        batch_id=batch.id,
        candidate=None,
        remote=RemoteProgress(
            status=batch.word, held_job=before.held_job, omitted=before.omitted, marked=before.marked
        ),
        results_until=submitted + step.api.abilities.retention,
        due_at=step.wall
        + poll.seconds_to_poll(step, shard, batch.id, min(step.limits.poll_interval, MINUTE)),
    )


def _seconds_until_turn(step: Step, shard: ShardRow) -> float:
    """Return the seconds to wait before the shard may be created; 0 if it may be created now.

    If batches have no labels, an account has only one create in progress at a time. Resolving a lost response
    takes half an hour or more; until then, only the store is read, not the provider.
    """
    if step.api.abilities.labels:
        return 0.0
    others = [
        other.state
        for other in step.store.shards.in_scope(shard.scope, states=_PENDING_CREATES)
        if other.id != shard.id
    ]
    if not others:
        return 0.0
    long = any(state is not ShardState.SUBMITTING for state in others)
    return step.limits.poll_interval if long else min(step.limits.poll_interval, 5.0)


# -- calls that failed ---------------------------------------------------------------------------------------


def _create_failed(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    about_file = shard.file_id is not None and _is_about_file(error)
    # 1. the batch may exist: UNCERTAIN. In all other cases it does not exist, so the shard is READY again.
    # This includes a refusal of the input file, which proves that the server created nothing
    if error.maybe_billed and not about_file:
        now = step.wall
        return step.advance(
            shard,
            ShardState.UNCERTAIN,
            f"the response to its create call was lost ({error.kind.value})",
            uncertain_since=now,
            due_at=now + 1.0,
        )
    reason = f"its create call was refused ({error.kind.value})"
    back = step.advance(shard, ShardState.READY, reason, tries=shard.tries)
    # 2. the quota of enqueued tokens, or a rate limit: all shards of the model wait together. A shard that
    # exceeds the quota on its own ends, and its items go into smaller shards
    if error.code in refusals.QUOTA_CODES or error.kind is ErrorKind.RATE_LIMIT:
        if refusals.quota_refused(step, back, error, error.message):
            reason = "exceeds the quota of enqueued tokens; its requests are sent again in smaller batches"
            return step.discard(back, reason)
        return step.retry_later(back, error, at_least=refusals.quota_wait(step, back))
    # 3. the input file is unknown or not ready yet: try again a few times
    if about_file and back.tries + 1 < MAX_FILE_TRIES:
        return step.retry_later(back, error, note=f"waits for its input file: {error.message}")
    # 4. a transient error: try again
    if error.kind in _TRANSIENT_KINDS:
        return step.retry_later(back, error)
    # 5. the input file expired or was deleted: put the items into a new shard, since its name cannot be
    # reused
    if error.kind is ErrorKind.CLIENT_ERROR and _input_is_gone(step, back):
        return step.discard(back, "its input file is gone; its requests are sent again", tried=True)
    # 6. any other refusal is final
    return _refused(step, back, error)


def _is_about_file(error: ProviderError) -> bool:
    """Whether the input file may be unknown or not ready, since files and batches are separate services."""
    if error.status == 404 or error.code == "no_such_file":
        return True
    return error.status in (400, 409, 422) and _FILE_NOT_YET.search(error.message) is not None


def _input_is_gone(step: Step, shard: ShardRow) -> bool:
    if shard.file_id is None or refusals.max_tries_of(step, shard) + 1 >= step.limits.max_tries:
        return False
    try:
        return step.api.find_file(_input_name(shard), step.limits.call_timeout) is None
    except Exception as error:  # the original refusal applies
        step.log_ignored("search for an input file", error)
        return False


def _call_failed(
    step: Step, shard: ShardRow, failure: Exception, *, upload_began: float | None = None
) -> ShardRow:
    """Handle the failure of a call that precedes the create call and costs nothing."""
    error, tries = refusals.redacted(step, shard, failure), shard.tries + 1
    # 1. the account's file storage is full: pause all its uploads
    if upload_began is not None and storage.is_full(error):
        return storage.refused(step, shard, error, upload_began)
    # 2. a web page with 404, 405, 410 or 501 comes from a server without batches, or from a gateway whose
    # server is unavailable. Both look alike, so try again; after some tries use real time if the job may fall
    # back, otherwise record an incident that says what to do
    missing = error.status in _NO_SUCH_PATH and error.maybe_billed
    failing = (
        error.kind is ErrorKind.SERVER_ERROR and (error.status or 0) >= 500 and tries >= SERVER_ERROR_TRIES
    )
    if step.falls_back and ((missing and tries >= FALLBACK_TRIES) or failing):
        return _do_without(step, shard, error)
    if missing and tries >= INCIDENT_TRIES:
        detail = (
            f"waits for the Batch API: the server answers with a web page ({error.status}). If it has no "
            "batches, cancel the job and send its requests in real time"
        )
        step.incident("no_batch_api", detail, shard)
        return step.retry_later(shard, error, note=detail)
    # 3. a transient error, or a call that may have succeeded: try again
    if error.kind in _TRANSIENT_KINDS or error.kind is ErrorKind.INVALID_RESPONSE or error.maybe_billed:
        return step.retry_later(shard, error)
    # 4. otherwise it is refused
    return _refused(step, shard, error)


def _refused(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    # 1. the account has no Batch API, and the job may fall back: use real time
    if step.falls_back and error.status in _NOT_OFFERED and error.kind is not ErrorKind.NO_MONEY:
        return _do_without(step, shard, error)
    # 2. the account cannot be used: hold the job; the shard continues when it is resumed
    if error.kind in ACCOUNT_ERRORS:
        step.hold(error)
        return step.reschedule(shard, 0.0, note=error.message)
    # 3. the refusal names wrong lines or an exceeded limit, which can be handled; otherwise it is final
    return refusals.handle_known_refusal(step, shard, error) or step.give_up(shard, error, error.message)


def _do_without(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow:
    reason = f"the Batch API cannot be used ({error.status})"
    step.incident("no_batch_api", f"{reason}: {shard.size:,} requests are sent in real time", shard)
    return step.discard(shard, f"{reason}: {error.message}", to=ItemState.REALTIME)
