"""Uploads of files that many requests contain: the calls for one file, and its use in real-time requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from attrs import define, field, frozen

from smartbatch._clock import Clock, Monitor
from smartbatch.core.file_uses import FileUses, local_files, with_file_ids
from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError, StoreError
from smartbatch.jobs.store import SqlStore
from smartbatch.jobs.store.uploads import FileRef, Sending, UploadTable
from smartbatch.jobs.threads import wait_while
from smartbatch.media import Media
from smartbatch.media_content import extension_of
from smartbatch.media_in_prompts import files_of
from smartbatch.observe import logs
from smartbatch.providers.base import Provider
from smartbatch.providers.file_api import FileApi, RemoteUpload, is_about_missing_file
from smartbatch.types import Request

BUSY_SECONDS = 2.0  # pause while another thread or process sends the file, or the provider processes it
KNOWN_SECONDS = 60.0
"""How long a process uses an id without checking the store. After a failed upload, it sends the file in its
requests for as long."""
MARGIN_SECONDS = 600.0  # an upload for a request in real time lasts this much longer than its timeout
MAX_UPLOAD_SECONDS = 600.0  # less than the time after which another process takes over an upload
MAX_COUNTED_FILES = 10_000
"""Real-time requests are counted per file; with more different files, counting starts again."""


def send(
    uploads: UploadTable, files: FileApi, media: Media, sending: Sending, *, find: float, upload: float
) -> RemoteUpload | None:
    """Make the one call that an upload needs next, and store its outcome.

    Args:
        find, upload: timeouts in seconds.

    Returns:
        the upload, which may not be ready; ``None`` if the file must be sent again.

    Raises:
        InvalidRequest: the file has changed or is missing.
        ProviderError: the call failed. Its outcome is searched for later if it is unknown.
    """
    found: RemoteUpload | None
    try:
        content = media.content("prompt")
    except InvalidRequest:
        if sending.is_new:
            uploads.not_sent(sending)
        else:
            uploads.not_found(sending)
        raise
    try:
        if sending.is_new:
            found = files.upload(sending.name, media.sent_type, content, upload)
        else:
            found = files.find(sending.name, find)
    except Exception as raised:
        error = files.classify(raised)
        if error.maybe_billed or not sending.is_new:
            uploads.leave_uncertain(sending)
        else:
            uploads.not_sent(sending)
        raise error from None
    except BaseException:  # Ctrl-C: any owner may search for the file now, even while this process lives
        with suppress(StoreError):
            uploads.leave_uncertain(sending)
        raise
    if found is None or found.size not in (None, len(content)):
        uploads.not_found(sending)
        if found is None or not sending.is_new:  # the result of an interrupted call
            return None
        raise ProviderError(
            f"the provider stored {found.size:,} bytes of an uploaded file of {len(content):,}",
            kind=ErrorKind.SERVER_ERROR,
            code="upload_size",
        )
    if found.ready:
        uploads.complete(sending, found, len(content))
    else:
        uploads.leave_uncertain(sending)
    return found


@frozen
class _Known:
    file_id: str | None  # None: it is sent in the request
    at: float  # monotonic seconds
    is_final: bool  # False if further uses may make it worth an upload


@define(eq=False, repr=False)
class RealtimeUploads:
    """Replaces files by the ids of their uploads in requests that are sent in real time.

    A file is uploaded if an unfinished job uploads it, or once enough requests of this process have contained
    it. Requests with the same file wait for its upload. If it fails, the file is sent in the requests.

    Args:
        store: opens the store, where uploads are recorded.
        retention: seconds after the last use until an upload is deleted; ``None`` keeps it.
    """

    _clock: Clock
    _store: Callable[[], SqlStore]
    _retention: float | None
    _uses: FileUses = field(factory=FileUses, init=False)
    _known: dict[tuple[str, str], _Known] = field(factory=dict, init=False)  # by scope and key
    _changes: int = field(default=0, init=False)  # uploads that ended
    _monitor: Monitor = field(init=False)

    @_monitor.default
    def _new_monitor(self) -> Monitor:
        return self._clock.monitor()

    def refer(self, provider: Provider, model: str, request: Request, deadline: float) -> Request:
        """Return ``request`` with ids. ``model`` has no prefix; ``deadline`` is in monotonic seconds."""
        if not any(local_files(request)):
            return request
        files = provider.files()
        if files is None:
            return request
        label, ids = f"{provider.name}:{model}", {}
        for media in {media.upload_key: media for media in local_files(request)}.values():
            if files.accepts(media) and (found := self._id_of(files, label, media, deadline)) is not None:
                ids[media.upload_key] = found
        return with_file_ids(request, lambda media: ids.get(media.upload_key) if files.takes(media) else None)

    def forget_lost(self, provider: Provider, sent: Sequence[Request], error: Exception) -> bool:
        """If ``error`` reports that a file no longer exists, forget the uploads in ``sent``."""
        if isinstance(error, InvalidRequest) or not is_about_missing_file(provider.classify(error)):
            return False
        files = (file for request in sent for file in files_of(request) if isinstance(file, Media))
        ids = {file.file_id for file in files if file.file_id is not None}
        with self._monitor:
            self._known = {at: known for at, known in self._known.items() if known.file_id not in ids}
        try:
            for file_id in ids:
                self._store().uploads.lost(provider.scope, file_id)
        except StoreError as failed:  # the request fails with the provider's error, which says more
            logs.warn("upload_not_forgotten", error=type(failed).__name__)
            return False
        return True

    def _id_of(self, files: FileApi, model: str, media: Media, deadline: float) -> str | None:
        at, now = (files.scope, media.upload_key), self._clock.now()
        with self._monitor:
            if len(self._uses) >= MAX_COUNTED_FILES:
                self._uses = FileUses()
                self._known.clear()
            is_worth = self._uses.add(media, account=files.scope).is_worth_uploading
            known = self._known.get(at)
        if known is not None and now - known.at < KNOWN_SECONDS and (known.is_final or not is_worth):
            return known.file_id
        found = None
        try:
            uploads = self._store().uploads
            is_worth = is_worth or uploads.is_chosen(*at)
            if is_worth:
                found = self._uploaded(files, model, media, deadline)
        except (StoreError, ProviderError, InvalidRequest) as error:
            logs.warn("upload_failed", model=model, error=type(error).__name__)
        with self._monitor:
            self._known[at] = _Known(found, now, is_worth)
        return found

    def _uploaded(self, files: FileApi, model: str, media: Media, deadline: float) -> str | None:
        uploads, suffix = self._store().uploads, extension_of(media.sent_type)
        while (left := deadline - self._clock.now()) > 0:
            wall, seconds, before = self._clock.wall(), left + MARGIN_SECONDS, self._changes
            until = wall + seconds
            ref = FileRef(
                files.scope, model, media.upload_key, suffix, until, self._retention, in_use=seconds
            )
            found = uploads.obtain(ref, at=wall)
            if isinstance(found, str):
                return found
            if found is not None:
                timeout = min(left, MAX_UPLOAD_SECONDS)
                try:
                    sent = send(uploads, files, media, found, find=timeout, upload=timeout)
                finally:
                    with self._monitor:
                        self._changes += 1
                        self._monitor.notify_all()
                if sent is None or sent.ready:
                    continue
                before = self._changes
            self._wait(before, min(BUSY_SECONDS, left))
        return None

    def _wait(self, before: int, seconds: float) -> None:
        """Wait until more than ``before`` uploads have ended, at most ``seconds``."""
        with self._monitor:
            wait_while(lambda: self._changes == before, self._monitor, self._clock, seconds)
