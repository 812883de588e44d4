"""Files of the Gemini API: named by us, uploaded in pieces, looked up, deleted.

A file's name may be chosen, so a second upload meets the first. Source: Google's Files API (November 2026)
and the uploads of ``google-genai`` 3.4, whose own method repeats pieces after a pause, and reads no answer
but the last.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import RemoteFile
from smartbatch.providers.foreign_text import unusable
from smartbatch.providers.http.batch_calls import BatchCalls, check_id
from smartbatch.providers.http.replies import Reply

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

__all__ = ["GeminiFiles", "check_file", "file_id_of", "is_no_file"]

PIECE = 8 * 1024 * 1024
"""Bytes of a piece of an upload, as the SDK sends them; the service takes multiples of 256 kB."""

_TYPE = "application/jsonl"
_FILE = re.compile(r"files/[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_ADDRESS = re.compile(r"https?://[\x21-\x7e]{1,4096}")
_MISSING = re.compile(r"may not exist", re.I)
_DISPLAY = 512  # most characters of a display name


class GeminiFiles:
    """Uploads, looks and deletions; one file each."""

    def __init__(self, sdk: Callable[[], GeminiSdk], calls: BatchCalls) -> None:
        self._sdk = sdk
        self._calls = calls

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload ``source``; see :meth:`BatchApi.upload <smartbatch.providers.batch_api.BatchApi.upload>`.

        Two calls and one for every 8 MiB, all within ``timeout``; none is repeated. In order:

        1. the upload is announced; where the name is taken, the file that has it is returned;
        2. the pieces are sent; each answer must say that the service has all bytes so far;
        3. the last answer is about the file.

        An error in between leaves a file that the service never shows: a second upload begins anew.
        """
        deadline = time.monotonic() + timeout
        size = source.stat().st_size
        file_id = file_id_of(name)
        try:
            address = self._start(file_id, name, size, timeout)
        except ProviderError as error:
            taken = error.status == 409 or error.code == "ALREADY_EXISTS"
            if taken and (found := self._look(file_id, name, _left(deadline))) is not None:
                return found
            raise
        with open(source, "rb") as file:
            offset = 0
            while True:
                piece = file.read(PIECE)
                last = offset + len(piece) >= size
                if not piece and not last:
                    raise ProviderError("the spooled input became shorter while it was sent")
                reply = self._send(address, piece, offset, last=last, timeout=_left(deadline))
                offset += len(piece)
                if last:
                    return _file(self._calls.decoded(reply).get("file"), name)

    def find(self, name: str, timeout: float) -> RemoteFile | None:
        """Return the file of that name, or ``None`` when there is none."""
        return self._look(file_id_of(name), name, timeout)

    def delete(self, file_id: str, timeout: float) -> None:
        """Delete a file; one that is gone already is a success."""
        reply = self._sdk().ask("delete", check_file(file_id), timeout)
        try:
            self._calls.checked(reply)
        except ProviderError as error:
            if not is_no_file(error):
                raise

    def _look(self, file_id: str, name: str, timeout: float) -> RemoteFile | None:
        reply = self._sdk().ask("get", file_id, timeout)
        try:
            return _file(self._calls.decoded(reply), name)
        except ProviderError as error:
            if is_no_file(error):
                return None
            raise

    def _start(self, file_id: str, name: str, size: int, timeout: float) -> str:
        """Announce an upload and return the address its pieces go to."""
        headers = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(size),
            "X-Goog-Upload-Header-Content-Type": _TYPE,
        }
        body = {
            "file": {
                "name": file_id,
                "display_name": name[:_DISPLAY],
                "mime_type": _TYPE,
                "size_bytes": size,
            }
        }
        reply = self._sdk().ask("post", "upload/{api_version}/files", timeout, body=body, headers=headers)
        self._calls.checked(reply)
        address = reply.headers.get("x-goog-upload-url")
        if address is None or not _ADDRESS.fullmatch(address):
            raise unusable("the service did not say where to upload to", status=200)
        return address

    def _send(self, address: str, piece: bytes, offset: int, *, last: bool, timeout: float) -> Reply:
        headers = {
            "X-Goog-Upload-Command": "upload, finalize" if last else "upload",
            "X-Goog-Upload-Offset": str(offset),
        }
        reply = self._calls.checked(self._sdk().put(address, piece, headers, timeout))
        if reply.headers.get("x-goog-upload-status") != ("final" if last else "active"):
            text = "the upload broke off: the service does not say that it has all bytes so far"
            raise unusable(text, status=200)
        return reply


def file_id_of(name: str) -> str:
    """Return the id of the file that is uploaded under ``name``.

    Ids have at most 40 lower-case letters, digits and dashes, so a name goes in as 176 bits of its hash:
    lower-casing a nonce would make different ones alike.
    """
    digest = hashlib.sha256(name.encode()).digest()[:22]
    return f"files/sb-{base64.b32encode(digest).decode().rstrip('=').lower()}"


def check_file(value: Any) -> str:
    """Return a file's id, ``files/…``, that may be used in URLs; anything else is an ``INVALID_RESPONSE``."""
    return check_id(value, _FILE, "a file's id")


def is_no_file(error: ProviderError) -> bool:
    """True for the service's own word that there is no such file.

    It answers 403, *You do not have permission to access the File … or it may not exist.*, as for the file of
    another project.
    """
    if error.maybe_billed:  # no error of the service's own
        return False
    return error.status == 404 or (error.status == 403 and bool(_MISSING.search(error.message)))


def _file(data: Any, name: str) -> RemoteFile:
    if not isinstance(data, dict):
        raise unusable("the service's answer about a file is none", status=200)
    if data.get("state") == "FAILED":
        raise ProviderError(
            "the service could not process the uploaded file", kind=ErrorKind.CLIENT_ERROR, code="file_failed"
        )
    size = str(data.get("sizeBytes"))
    return RemoteFile(
        id=check_file(data.get("name")),
        name=name,
        size=int(size) if re.fullmatch(r"[0-9]{1,15}", size) else None,
        ready=data.get("state") in (None, "ACTIVE", "STATE_UNSPECIFIED"),
    )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise ProviderError(
            "the upload took longer than its timeout", kind=ErrorKind.TIMEOUT, code="deadline"
        )
    return left
