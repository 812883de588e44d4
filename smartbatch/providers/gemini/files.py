"""Gemini's files: uploads under names chosen here, so that a second upload finds the first.

The SDK's upload method resends parts after a pause and reads only the last response, so it is not used.

Sources: Google's guide and reference for the Files API (November 2026): 2 GB per file, 20 GB per project,
kept for 48 hours; and the requests that ``google-genai`` 3.4 sends.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.media import Audio, Image, Media
from smartbatch.providers.batch_api import RemoteFile
from smartbatch.providers.error_reader import ErrorReader, error_in
from smartbatch.providers.file_api import FileAbilities, FileApi, RemoteUpload
from smartbatch.providers.foreign_text import plain, unix_seconds, unusable
from smartbatch.providers.gemini.errors import mark_over_quota
from smartbatch.providers.gemini.parts import AUDIO_TYPES, IMAGE_TYPES
from smartbatch.providers.http.batch_calls import CheckedCalls, check_id
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.transport import Body

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

_FILE = re.compile(r"files/[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_ADDRESS = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?/[\x21-\x7e]{1,4096}", re.ASCII)
_MISSING = re.compile(r"may not exist", re.I)
_MAX_DISPLAY_NAME = 512  # characters
_LIFETIME_SECONDS = 48 * 3600.0


@frozen
class NamedFile:
    file: RemoteFile
    address: str  # what prompts refer to


class NamedFileCalls:
    """Uploads, searches and deletions, for batches and for prompts."""

    def __init__(self, errors: ErrorReader, sdk: Callable[[], GeminiSdk]) -> None:
        self._sdk = sdk
        self._calls = CheckedCalls(errors, is_own_error, refine=refine_error)

    def upload(self, name: str, media_type: str, content: Body, timeout: float) -> NamedFile:
        """Upload ``content`` in two calls within ``timeout``, neither of which is repeated.

        An error between them leaves a file that the service never shows; a second upload starts from the
        beginning.
        """
        deadline = time.monotonic() + timeout
        file_id = file_id_of(name)
        # 1. Announce the upload; if the name is taken, return the existing file.
        headers = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(len(content)),
            "X-Goog-Upload-Header-Content-Type": media_type,
        }
        file = {"name": file_id, "display_name": name[:_MAX_DISPLAY_NAME], "mime_type": media_type}
        body = {"file": {**file, "size_bytes": len(content)}}
        try:
            reply = self._sdk().ask("post", "upload/{api_version}/files", timeout, body=body, headers=headers)
            self._calls.checked(reply)
        except ProviderError as error:
            taken = error.status == 409 or error.code == "ALREADY_EXISTS"
            if taken and (found := self.find(name, _left(deadline))) is not None:
                return found
            raise
        address = reply.headers.get("x-goog-upload-url")
        if address is None or not _ADDRESS.fullmatch(address):
            raise unusable("the service did not return an upload address", status=200)
        # 2. Send the file while reading it from disk; the answer must confirm that all of it arrived.
        headers = {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "0"}
        reply = self._sdk().ask("post", address, _left(deadline), headers=headers, spooled=content)
        if self._calls.checked(reply).headers.get("x-goog-upload-status") != "final":
            text = "the upload was interrupted: the service does not confirm that it has all bytes"
            raise unusable(text, status=200)
        return self._read(self._calls.decoded(reply).get("file"), name)

    def find(self, name: str, timeout: float) -> NamedFile | None:
        """The id is derived from the name, so one call is enough."""
        reply = self._sdk().ask("get", file_id_of(name), timeout)
        try:
            return self._read(self._calls.decoded(reply), name)
        except ProviderError as error:
            if _is_no_file(error):
                return None
            raise

    def delete(self, file_id: str, timeout: float) -> None:
        reply = self._sdk().ask("delete", check_file(file_id), timeout)
        try:
            self._calls.checked(reply)
        except ProviderError as error:
            if not _is_no_file(error):
                raise

    def _read(self, data: Any, name: str) -> NamedFile:
        file = _read_file(data, name)
        uri = data.get("uri")
        is_usable = isinstance(uri, str) and _ADDRESS.fullmatch(uri) is not None
        return NamedFile(file, uri if is_usable else self._sdk().url_of(file.id))


class GeminiFiles(FileApi):
    abilities = FileAbilities(max_bytes=2_000_000_000, lifetime=_LIFETIME_SECONDS)

    def __init__(self, scope: str, errors: ErrorReader, sdk: Callable[[], GeminiSdk]) -> None:
        self.scope = scope
        self._files = NamedFileCalls(errors, sdk)

    def takes(self, media: Media) -> bool:
        if isinstance(media, Image):
            return media.sent_type in IMAGE_TYPES
        return not isinstance(media, Audio) or media.media_type in AUDIO_TYPES

    def upload(self, name: str, media_type: str, content: bytes, timeout: float) -> RemoteUpload:
        media_type = AUDIO_TYPES.get(media_type, media_type)
        return _uploaded(self._files.upload(name, media_type, content, timeout))

    def find(self, name: str, timeout: float) -> RemoteUpload | None:
        found = self._files.find(name, timeout)
        return None if found is None else _uploaded(found)

    def delete(self, file_id: str, timeout: float) -> None:
        """``file_id`` is an address that ends in the id."""
        self._files.delete("/".join(file_id.split("/")[-2:]), timeout)


def _uploaded(named: NamedFile) -> RemoteUpload:
    return RemoteUpload(named.address, named.file.expires_at, named.file.size, named.file.ready)


def is_own_error(reply: Reply) -> bool:
    return error_in(reply.json()).get("code") == reply.status


def refine_error(error: ProviderError) -> None:
    mark_over_quota(error)
    # a missing file is a 403 as well, although the key is valid
    if error.status == 403 and _is_no_file(error):
        error.kind, error.code = ErrorKind.CLIENT_ERROR, "no_such_file"


def file_id_of(name: str) -> str:
    """Derive the id of the file uploaded under ``name``.

    Ids have at most 40 lower-case letters, digits and dashes. A hash of 176 bits represents the name,
    because lower-casing could give two names the same id.
    """
    digest = hashlib.sha256(name.encode()).digest()[:22]
    return f"files/sb-{base64.b32encode(digest).decode().rstrip('=').lower()}"


def check_file(value: Any) -> str:
    return check_id(value, _FILE, "a file's id")


def _is_no_file(error: ProviderError) -> bool:
    if error.maybe_billed:  # not the service's own error
        return False
    # 403 "You do not have permission to access the File … or it may not exist.", as for other projects' files
    return error.status == 404 or (error.status == 403 and bool(_MISSING.search(error.message)))


def _read_file(data: Any, name: str) -> RemoteFile:
    if not isinstance(data, dict):
        raise unusable("the service returned an invalid file", status=200)
    if data.get("state") == "FAILED":
        raise ProviderError(
            "the service could not process the uploaded file", kind=ErrorKind.CLIENT_ERROR, code="file_failed"
        )
    size = plain(data.get("sizeBytes"))
    return RemoteFile(
        id=check_file(data.get("name")),
        name=name,
        size=int(size) if re.fullmatch(r"[0-9]{1,15}", size) else None,
        expires_at=unix_seconds(data.get("expirationTime")) or math.inf,
        ready=data.get("state") in (None, "ACTIVE", "STATE_UNSPECIFIED"),
    )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ProviderError(
            "the upload took longer than its timeout", kind=ErrorKind.TIMEOUT, code="deadline"
        )
    return left
