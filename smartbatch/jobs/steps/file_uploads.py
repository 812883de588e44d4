"""Upload the files that many requests of a job contain, before a shard with them is sent.

These files were chosen when the job was stored. Each step makes at most one call about a file.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from smartbatch.core.file_uses import local_files, with_file_ids
from smartbatch.core.prefixes.batch_marks import with_batch_mark
from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.jobs.payload import decode_request
from smartbatch.jobs.records import DAY, OpenItem
from smartbatch.jobs.shard_records import ShardRow, ShardState
from smartbatch.jobs.steps import storage
from smartbatch.jobs.steps.step import Step
from smartbatch.jobs.store.uploads import FileRef, Sending
from smartbatch.jobs.uploading import BUSY_SECONDS, send
from smartbatch.media import Media
from smartbatch.media_content import extension_of
from smartbatch.observe import logs
from smartbatch.providers.file_api import FileApi
from smartbatch.types import Request

BATCH_SECONDS = DAY
"""A new batch refers only to files that do not expire within this time, in which most batches end. Gemini
keeps files for 48 hours, so an upload older than 24 hours is replaced. A request that runs after its file has
expired fails and is sent again with another upload."""
MAX_UPLOAD_TRIES = 4  # consecutive failures before a file is sent in the requests instead
_ID_BYTES = 128
_PLACEHOLDER = "f" * _ID_BYTES  # at least as long as the ids and addresses of all providers
_TRANSIENT_KINDS = frozenset(
    {ErrorKind.RATE_LIMIT, ErrorKind.TIMEOUT, ErrorKind.NETWORK_ERROR, ErrorKind.SERVER_ERROR}
)


def upload_missing(step: Step, shard: ShardRow) -> ShardRow | None:
    """Upload one file that the shard's requests need; ``None`` if all of them are uploaded."""
    needed_until = step.wall + BATCH_SECONDS
    files, found = _files(step), _missing_file(step, shard, needed_until, first=shard.remote.files_ready)
    if files is None or found is None:
        return None
    position, media = found
    shard = evolve(shard, remote=evolve(shard.remote, files_ready=position))
    # 1. the account's file storage is full: wait
    if not storage.may_upload(step):
        return step.reschedule(shard, 0.0)
    job, key, suffix = step.job, media.upload_key, extension_of(media.sent_type)
    file = FileRef(job.scope, job.model, key, suffix, needed_until, job.policy.retention)
    sending = step.store.uploads.obtain(file, at=step.wall, lease=step.lease)
    # 2. another job or process has uploaded it
    if isinstance(sending, str):
        return step.reschedule(shard, 0.0, remote=shard.remote)
    # 3. it is being uploaded elsewhere: wait
    if sending is None:
        return step.reschedule(
            shard, BUSY_SECONDS, note="waits for the upload of a file", remote=shard.remote
        )
    # 4. search for it, or upload it
    return _send(step, shard, files, media, sending)


def expires_soon(step: Step, shard: ShardRow) -> bool:
    """Whether a shard has waited so long that a file it refers to has expired or soon will."""
    return _missing_file(step, shard, step.wall + BATCH_SECONDS / 2) is not None


def _missing_file(
    step: Step, shard: ShardRow, needed_until: float, *, first: int = 0
) -> tuple[int, Media] | None:
    """Return a file of the shard's requests that is to be uploaded, and is not or expires too early, and the
    position of its request. The search begins at the request ``first``.
    """
    uploads, files = step.store.uploads, _files(step)
    if files is None:
        return None
    for start in dict.fromkeys((first, 0)):  # the files before ``first`` may have expired or been lost
        if start == 0 and not uploads.missing(step.job.id, step.job.scope, needed_until):
            return None
        uploaded: set[str] = set()
        for position, request in step.requests_of(shard, first=start):
            for media in local_files(request):
                key = media.upload_key
                if key in uploaded or not files.accepts(media):
                    continue
                if uploads.lacks(step.job.id, step.job.scope, key, needed_until):
                    return position, media
                uploaded.add(key)
    return None


def sendable(step: Step, request: Request, ids: dict[str, str]) -> Request:
    """Return ``request`` with the ids of uploaded files, by their keys."""
    files = _files(step) if ids else None
    if files is None:
        return request
    return with_file_ids(request, lambda media: ids.get(media.upload_key) if files.takes(media) else None)


def forget_uploads(step: Step, request: Request) -> bool:
    """Upload the files of ``request`` again, because the provider no longer has one of them; return whether
    the request refers to any upload.
    """
    uploads, keys = step.store.uploads, {media.upload_key for media in local_files(request)}
    for key, file_id in uploads.ids_of(step.job.id).items():
        if key in keys:
            uploads.lost(step.job.scope, file_id)
    return not keys.isdisjoint(uploads.keys_of(step.job.id))


def with_sent_sizes(step: Step, items: Sequence[OpenItem]) -> Sequence[OpenItem]:
    """Return items with the sizes of their lines, in which uploaded files are ids.

    Stored sizes are those of lines that contain all files.
    """
    ids = dict.fromkeys(step.store.uploads.keys_of(step.job.id), _PLACEHOLDER)
    if not ids or _files(step) is None:
        return items
    shared, sized = step.shared(), []
    rules = step.caching_rules()
    for page, bodies in step.with_bodies(items):
        for item in page:
            request = with_batch_mark(decode_request(bodies[item.ix], shared, id=None), rules, item.ix)
            referring = sendable(step, request, ids)
            if referring is not request:
                item = evolve(item, size=_size_of(step, referring, item.size))
            sized.append(item)
    return sized


def _size_of(step: Step, request: Request, known: int) -> int:
    try:
        return len(step.api.encode(request, model=step.model, wire_id="0" * 40))
    except InvalidRequest:  # another of its files has changed, so it fails when its shard is written
        return known


def _send(step: Step, shard: ShardRow, files: FileApi, media: Media, sending: Sending) -> ShardRow:
    uploads, limits, began = step.store.uploads, step.limits, step.wall
    try:
        sent = send(uploads, files, media, sending, find=limits.call_timeout, upload=limits.file_timeout)
    except InvalidRequest:  # its requests fail when their lines are written
        uploads.send_inline(step.lease, media.upload_key)
        return step.reschedule(shard, 0.0)
    except ProviderError as error:
        if storage.is_full(error):
            return storage.refused(step, shard, error, began)
        return _failed(step, shard, media, error)
    storage.accepted(step)
    if sent is not None and not sent.ready:
        return step.reschedule(shard, BUSY_SECONDS, note="waits for the provider to process a file")
    return step.reschedule(shard, 0.0, tries=0, note=None, remote=shard.remote)


def _failed(step: Step, shard: ShardRow, media: Media, error: ProviderError) -> ShardRow:
    may_succeed = error.kind in _TRANSIENT_KINDS or error.maybe_billed
    # 1. it may succeed later
    if may_succeed and shard.tries + 1 < MAX_UPLOAD_TRIES:
        return step.retry_later(shard, error)
    # 2. the provider rejects the file: send it in the requests, which are divided into shards again
    logs.warn("upload_failed", job_id=step.job.id, kind=error.kind.value)
    step.store.uploads.send_inline(step.lease, media.upload_key)
    reason = f"a file could not be uploaded and is sent in its requests: {error.message}"
    others = step.store.shards.of_job(step.job.id, states={ShardState.PLANNED})
    for other in others:
        if other.id != shard.id:
            step.discard(other, reason)
    return step.discard(shard, reason)


def _files(step: Step) -> FileApi | None:
    provider = step.runtime.provider_of(step.job)
    return None if provider is None else provider.files()
