"""From a planned shard to a batch at the provider: upload, intent, one create.

The order is the protocol's. What will be sent is on disk before the first byte leaves: the shard is
``SUBMITTING`` in the store before its create is sent, and the create is sent once. What came of it is
``SUBMITTED``, certainly nothing (back to ``READY``), or unknown (``UNCERTAIN``, see
:mod:`smartbatch.jobs.steps.recover`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.jobs import enqueued_quota
from smartbatch.jobs.payload import decode_params, decode_request, encode_error
from smartbatch.jobs.records import ItemState, ShardRow, ShardState
from smartbatch.jobs.spool_files import write_whole
from smartbatch.jobs.steps import orphan_watch
from smartbatch.jobs.steps.context import MINUTE, Work, report
from smartbatch.jobs.steps.redaction import hushed
from smartbatch.jobs.steps.shard import most_key
from smartbatch.jobs.wire_ids import file_name, wire_id
from smartbatch.providers.batch_api import Creation, RemoteBatch
from smartbatch.types import Kind

__all__ = ["adopt", "begin", "submit", "tries_of", "upload"]

_REPEAT = frozenset(
    {ErrorKind.RATE_LIMIT, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR, ErrorKind.SERVER_ERROR}
)
_ACCOUNT = frozenset({ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR})
_UNSETTLED = (ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.PROVISIONAL)
_TURN = "waits until another create of this account is settled"
_UPLOADS = "uploads"
"""What a shard remembers: how often its input was sent again, each time under a name of its own."""
FILE_PAUSE = 2.0
"""Seconds between two looks at a file the provider still processes; it takes a few."""


def begin(work: Work, shard: ShardRow) -> ShardRow:
    """``PLANNED``: go to the upload, or where the input travels inline, straight to the create."""
    if not work.api.abilities.files:
        return work.move(shard, ShardState.READY)
    shard = work.move(shard, ShardState.UPLOADING)
    return _send_file(work, shard)  # nothing of it was ever sent, so there is nothing to look for


def upload(work: Work, shard: ShardRow) -> ShardRow:
    """``UPLOADING`` as it was found: an upload may have been under way, so its file is looked for first."""
    try:
        found = work.api.find_file(_input_name(shard), work.limits.call_timeout)
    except Exception as error:
        return _upload_failed(work, shard, hushed(work, shard, work.api.classify(error)))
    if found is None:
        # an upload may still be under way, of a process that stands still: were its name used again, it could
        # bring the input of a late create back after the fence. What it leaves is no batch's, and expires
        uploads = int(shard.remote.get(_UPLOADS) or 0) + 1
        return _send_file(work, work.later(shard, 0.0, remote={**shard.remote, _UPLOADS: uploads}))
    size = _spool(work, shard).stat().st_size
    if found.size is not None and found.size != size:
        # half an upload that landed as a whole: its name, like its nonce, is never used again
        return _give_up(work, shard, "its input file is another than the one meant", file_id=found.id)
    if not found.ready:
        return work.later(shard, FILE_PAUSE)
    return work.move(shard, ShardState.READY, file_id=found.id)


def _input_name(shard: ShardRow) -> str:
    return file_name(shard.nonce, int(shard.remote.get(_UPLOADS) or 0))


def _send_file(work: Work, shard: ShardRow) -> ShardRow:
    source = _spool(work, shard)
    try:
        file = work.api.upload(_input_name(shard), source, work.limits.transfer_timeout)
    except Exception as error:
        return _upload_failed(work, shard, hushed(work, shard, work.api.classify(error)))
    if not file.ready:
        return work.later(shard, FILE_PAUSE)
    return work.move(shard, ShardState.READY, file_id=file.id)


def _upload_failed(work: Work, shard: ShardRow, error: ProviderError) -> ShardRow:
    """An upload costs nothing, so whatever may pass is tried again."""
    if error.kind in _REPEAT or error.kind is ErrorKind.INVALID_RESPONSE or error.maybe_billed:
        return work.stumbled(shard, error)
    return _refused(work, shard, error)


def submit(work: Work, shard: ShardRow) -> ShardRow:
    """``READY``: take the watermark, store the intent, send the one create."""
    wait = enqueued_quota.room_for(work, shard)
    if wait > 0:
        return work.later(shard, wait, note="waits for the quota of enqueued tokens")
    if work.api.abilities.files and shard.file_id is None:
        return work.move(shard, ShardState.UPLOADING)
    if (wait := _turn(work, shard)) > 0:
        return work.later(shard, wait, note=_TURN)
    source = None if work.api.abilities.files else _spool(work, shard)
    try:
        page = work.api.page(None, work.limits.call_timeout)
    except Exception as error:
        return _list_failed(work, shard, hushed(work, shard, work.api.classify(error)))
    orphan_watch.notice(work, page.batches)
    began = work.clock.now()
    now = work.wall
    intended = work.store.intend(
        work.grip,
        shard,
        exclusive=not work.api.abilities.labels,
        watermark=page.batches[0].id if page.batches else "",
        server_time=page.server_time,
        submitted_at=now,
        due_at=now,
    )
    if intended is None:
        return work.later(shard, max(_turn(work, shard), 1.0), note=_TURN)
    work.told(shard, intended)
    if max(work.clock.now() - began, work.wall - now) > work.limits.send_within:
        # the process was frozen, or the machine slept: another may own the job, and nothing was sent yet
        return work.move(intended, ShardState.READY, "its intent was too old to be sent")
    creation = Creation(
        mark=shard.nonce,
        model=work.model,
        kind=Kind(work.job.kind),
        size=shard.size,
        file_id=shard.file_id,
        lines=source,
    )
    try:
        batch = work.api.create(creation, work.limits.transfer_timeout)
    except Exception as error:
        return _create_failed(work, intended, hushed(work, intended, work.api.classify(error)))
    return adopt(work, intended, batch)


def adopt(work: Work, shard: ShardRow, batch: RemoteBatch, reason: str = "") -> ShardRow:
    """Record the batch that is this shard's."""
    work.spooled(shard, "in").unlink(missing_ok=True)
    submitted = shard.submitted_at or work.wall
    return work.move(
        shard,
        ShardState.SUBMITTED,
        reason,
        batch_id=batch.id,
        candidate=None,
        remote={"word": batch.word},
        results_until=submitted + work.api.abilities.retention,
        due_at=work.wall + min(work.limits.poll_interval, MINUTE),
    )


def _turn(work: Work, shard: ShardRow) -> float:
    """Return the seconds after which it may be the shard's turn, 0 when it may be now.

    Where batches have no labels, one create of an account is settled before the next is sent. The store knows
    of it, so that nobody is asked meanwhile: one whose answer is lost takes half an hour and more.
    """
    if work.api.abilities.labels:
        return 0.0
    others = [
        other.state
        for other in work.store.shards_in_scope(shard.scope, states=_UNSETTLED)
        if other.id != shard.id
    ]
    if not others:
        return 0.0
    long = any(state is not ShardState.SUBMITTING for state in others)
    return work.limits.poll_interval if long else min(work.limits.poll_interval, 5.0)


def _list_failed(work: Work, shard: ShardRow, error: ProviderError) -> ShardRow:
    """Without a watermark nothing is created; a server without batches says so here already."""
    if error.kind in _REPEAT or error.kind is ErrorKind.INVALID_RESPONSE or error.maybe_billed:
        return work.stumbled(shard, error)
    return _refused(work, shard, error)


def _create_failed(work: Work, shard: ShardRow, error: ProviderError) -> ShardRow:
    if error.maybe_billed:
        now = work.wall
        return work.move(
            shard,
            ShardState.UNCERTAIN,
            f"the answer to its create is lost ({error.kind.value})",
            uncertain_since=now,
            due_at=now + 1.0,
        )
    reason = f"its create was refused ({error.kind.value})"
    back = work.move(shard, ShardState.READY, reason, tries=shard.tries)
    if enqueued_quota.is_quota(error.code) or error.kind is ErrorKind.RATE_LIMIT:
        # what is refused to one shard is refused to all: they wait together, and do not each try on
        if enqueued_quota.refused(work, back, error, error.message):
            return _give_up(
                work, back, "more than the quota of enqueued tokens; it goes again in smaller parts"
            )
        return work.stumbled(back, error, at_least=enqueued_quota.room_for(work, back))
    if error.kind in _REPEAT:
        return work.stumbled(back, error)
    if error.kind is ErrorKind.CLIENT_ERROR and _input_is_gone(work, back):
        # its name is used up with it: the items go again in a shard with a name of its own
        return _give_up(work, back, "its input file is gone; its requests go again", tried=True)
    return _refused(work, back, error)


def _input_is_gone(work: Work, shard: ShardRow) -> bool:
    """Whether a refusal is explained by an input file that expired or was deleted, and not too often."""
    if shard.file_id is None or tries_of(work, shard) + 1 >= work.limits.max_tries:
        return False
    try:
        return work.api.find_file(_input_name(shard), work.limits.call_timeout) is None
    except Exception:  # the refusal stands as it is
        return False


def tries_of(work: Work, shard: ShardRow) -> int:
    """Return how often the items of a shard were sent before, at most."""
    return max((item.tries for item in work.store.unsettled(shard.id)), default=0)


def _refused(work: Work, shard: ShardRow, error: ProviderError) -> ShardRow:
    """Nothing exists and asking again would change nothing: hold, go smaller, go alone, or fail."""
    if error.kind in _ACCOUNT:
        work.hold(error)
        return work.later(shard, 0.0, note=error.message)  # goes on as soon as the job is resumed
    if error.status == 413 and shard.size > 1:
        return _halve(work, shard)
    if work.falls_back:
        return _give_up(work, shard, f"refused: {error.message}", to=ItemState.DIRECT)
    now = work.wall
    dead = work.store.fail_shard(work.grip, shard, encode_error(error), note=error.message, at=now)
    work.told(shard, dead, error.message)
    report(work.store, work.job, work.tell, work.clock)
    return dead


def _halve(work: Work, shard: ShardRow) -> ShardRow:
    """Too big for the server: its items go again in shards of half the size, from now on for this model."""
    work.store.remember(most_key(work), max(1, shard.size // 2))
    return _give_up(work, shard, "too big for the server; it goes again in halves")


def _give_up(
    work: Work,
    shard: ShardRow,
    reason: str,
    *,
    to: ItemState = ItemState.OPEN,
    file_id: str | None = None,
    tried: bool = False,
) -> ShardRow:
    """End a shard that certainly has no batch; its file is deleted when it is tidied."""
    if file_id is not None:
        shard = work.later(shard, 0.0, file_id=file_id)
    dead = work.store.bury(work.grip, shard, items=to, tried=tried, note=reason, at=work.wall)
    work.told(shard, dead, reason)
    return dead


def _spool(work: Work, shard: ShardRow) -> Path:
    """Return the file of the shard's lines; made again where it is missing, with the very same bytes.

    Raises:
        InvalidRequest: never for requests that were accepted; their lines were encoded once already.
        StoreError: the disk is full.
    """
    path = work.spooled(shard, "in")
    if path.exists():
        return path
    write_whole(path, work.partial(path), _lines(work, shard))
    return path


def _lines(work: Work, shard: ShardRow) -> Iterator[bytes]:
    shared = decode_params(work.job.params)
    position = -1
    while page := work.store.payloads(shard.id, after=position, limit=1000):
        for item in page:
            request = decode_request(item.payload, shared, id=None)
            wire = wire_id(shard.nonce, item.position)
            yield work.api.encode(request, model=work.model, wire_id=wire) + b"\n"
        position = page[-1].position
    if position < 0:
        raise InvalidRequest("a shard without requests cannot be sent")
