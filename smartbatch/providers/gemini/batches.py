"""The Gemini API's batches and files, through the ``google-genai`` SDK.

The input is always a file uploaded under a name chosen here, so a second upload finds the first.
Inline requests are not used: duplicate submissions could not be detected, answers arrive in a
different order, and their keys are not always returned. The SDK's upload method resends parts
after a pause and reads only the last response. Its typed models drop counts, failure reasons and
results under ``response``. Neither is used.

Sources: Google's guides and references for the Batch API and the Files API (November 2026), and
the requests that ``google-genai`` 3.4 sends.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    RemoteBatch,
    RemoteFile,
    RemoteKind,
    RemoteState,
)
from smartbatch.providers.error_reader import ErrorReader, error_in
from smartbatch.providers.error_table import explained
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, plain, short, unix_seconds, unusable, whole
from smartbatch.providers.gemini.answers import read_result
from smartbatch.providers.gemini.bodies import embed_body, generate_body, resource
from smartbatch.providers.gemini.errors import mark_over_quota, status_error
from smartbatch.providers.http.batch_calls import BatchCalls, check_id, page_of
from smartbatch.providers.http.content import SpooledBody, encode_json
from smartbatch.providers.http.replies import Reply
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

_BATCHES_PER_PAGE = 100
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_METHODS = {Kind.GENERATE: "batchGenerateContent", Kind.EMBED: "asyncBatchEmbedContent"}
# states without the prefix ``BATCH_STATE_`` or ``JOB_STATE_``; any other state counts as running
_STATES = {
    "SUCCEEDED": RemoteState.COMPLETED,
    "PARTIALLY_SUCCEEDED": RemoteState.COMPLETED,
    "FAILED": RemoteState.FAILED,
    "CANCELLING": RemoteState.ENDING,
    "CANCELLED": RemoteState.CANCELLED,
    "EXPIRED": RemoteState.EXPIRED,
}
_PREFIX = re.compile(r"^(?:BATCH|JOB)_STATE_")
_MARK = re.compile(r"sb-[A-Za-z0-9_-]{1,64}")
_INPUT_CONTENT_TYPE = "application/jsonl"
_FILE = re.compile(r"files/[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_ADDRESS = re.compile(r"https?://(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?/[\x21-\x7e]{1,4096}", re.ASCII)
_MISSING = re.compile(r"may not exist", re.I)
_MAX_DISPLAY_NAME = 512  # characters


class GeminiBatches(BatchApi):
    name = "gemini"
    abilities = BatchAbilities(
        max_requests=100_000,  # undocumented; the limit of other providers
        max_bytes=2_000_000_000,
        kinds=frozenset({Kind.GENERATE, Kind.EMBED}),
        # Files are kept for 48 hours; nothing longer is documented for results.
        retention=48 * 3600.0,
        storage=20e9,  # guide to the Files API: 20 GB per project
        # the ids of result files are longer than the delete call accepts (googleapis/python-genai#1759)
        deletes=frozenset({RemoteKind.INPUT, RemoteKind.BATCH}),
    )

    def __init__(self, scope: str, errors: ErrorReader, sdk: Callable[[], GeminiSdk]) -> None:
        self.scope = scope
        self._errors = errors
        self._sdk = sdk
        self._calls = BatchCalls(errors, _is_own, self._read, _refine)

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        if request.embedding is not None:
            body = embed_body([request], model)["requests"][0]
            del body["model"]  # a batch has one model, in its path
        else:
            body = generate_body(request, model)
        return encode_json({"key": wire_id, "request": body})

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload ``source`` in two calls within ``timeout``, neither of which is repeated.

        An error between them leaves a file that the service never shows; a second upload starts from the
        beginning.
        """
        deadline = time.monotonic() + timeout
        content = SpooledBody(source)
        file_id = file_id_of(name)
        # 1. Announce the upload; if the name is taken, return the existing file.
        headers = {
            "X-Goog-Upload-Protocol": "resumable",
            "X-Goog-Upload-Command": "start",
            "X-Goog-Upload-Header-Content-Length": str(len(content)),
            "X-Goog-Upload-Header-Content-Type": _INPUT_CONTENT_TYPE,
        }
        file = {"name": file_id, "display_name": name[:_MAX_DISPLAY_NAME], "mime_type": _INPUT_CONTENT_TYPE}
        body = {"file": {**file, "size_bytes": len(content)}}
        try:
            reply = self._sdk().ask("post", "upload/{api_version}/files", timeout, body=body, headers=headers)
            self._calls.checked(reply)
        except ProviderError as error:
            taken = error.status == 409 or error.code == "ALREADY_EXISTS"
            if taken and (found := self._look(file_id, name, _left(deadline))) is not None:
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
        return _read_file(self._calls.decoded(reply).get("file"), name)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        """The id is derived from the name, so one call is enough."""
        return self._look(file_id_of(name), name, timeout)

    def delete_file(self, file_id: str, timeout: float) -> None:
        reply = self._sdk().ask("delete", _check_file(file_id), timeout)
        try:
            self._calls.checked(reply)
        except ProviderError as error:
            if not _is_no_file(error):
                raise

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """The batch's display name is the mark."""
        path = f"{resource(creation.model)}:{_METHODS[creation.kind]}"
        batch: dict[str, Any] = {
            "displayName": f"sb-{creation.mark}",
            "inputConfig": {"fileName": _check_file(creation.file_id)},
        }
        if creation.callback_url is not None:  # replaces the webhooks of the project
            batch["webhookConfig"] = {"uris": [creation.callback_url]}
        headers = {"Idempotency-Key": creation.mark}
        reply = self._sdk().ask("post", path, timeout, body={"batch": batch}, headers=headers)
        return self._calls.created(reply)

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        return self._calls.found(self._sdk().ask("get", _path(batch_id), timeout))

    def page(self, after: str | None, timeout: float) -> BatchPage:
        path = f"batches?pageSize={_BATCHES_PER_PAGE}"
        if after is not None:
            path += f"&pageToken={quote(after, safe='')}"
        reply = self._sdk().ask("get", path, timeout)
        data, found = self._calls.listed(reply, "operations", may_lack=True)
        batches = [self._read(each) for each in found]
        token = data.get("nextPageToken")
        if token and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise unusable("the list of batches has more pages, but no usable page token", status=200)
        return page_of(reply, batches, token or None)

    def cancel(self, batch_id: str, timeout: float) -> None:
        """After a refusal, fetch the batch, because it may already have ended."""
        reply = self._sdk().ask("post", f"{_path(batch_id)}:cancel", timeout)
        self._calls.cancelled(reply, lambda: self.get(batch_id, timeout))

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        self._calls.gone(self._sdk().ask("delete", _path(batch_id), timeout))

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        sdk = self._sdk()
        yield from self._calls.result_pieces(
            lambda url, left: sdk.begin(url.removeprefix(sdk.url_of("")), left, "application/binary"),
            sdk.url_of(f"{_check_file(output)}:download?alt=media"),
            timeout,
        )

    def read_line(self, line: bytes, kind: Kind) -> Line:
        return read_result(line, kind, self._errors)

    def _look(self, file_id: str, name: str, timeout: float) -> RemoteFile | None:
        reply = self._sdk().ask("get", file_id, timeout)
        try:
            return _read_file(self._calls.decoded(reply), name)
        except ProviderError as error:
            if _is_no_file(error):
                return None
            raise

    def _read(self, data: Any) -> RemoteBatch:
        """Counts are strings, and zeros are omitted."""
        if not isinstance(data, dict):
            raise unusable("the provider returned an invalid batch", status=200)
        metadata = fields(data.get("metadata"))
        name = data.get("name") or metadata.get("name")
        # results are listed under metadata.output, under response, or both
        files = [
            fields(place).get("responsesFile") for place in (metadata.get("output"), data.get("response"))
        ]
        outputs = tuple(dict.fromkeys(_check_file(each) for each in files if each))
        problem = data.get("error")
        failure = None
        if isinstance(problem, dict) and problem:
            failure = explained(status_error(problem, self._errors), problem, self._errors.secrets)
        word = _PREFIX.sub("", short(metadata.get("state"), PLAIN_WORD) or "UNSPECIFIED")
        state = _STATES.get(word, RemoteState.RUNNING)
        if word == "UNSPECIFIED" and data.get("done") is True:
            state = RemoteState.COMPLETED if failure is None else RemoteState.FAILED
        if state is RemoteState.COMPLETED and not outputs:
            state = RemoteState.ENDING  # the results are listed a little later
        if state is not RemoteState.FAILED:
            failure = None  # the state of a cancelled or expired batch already says so
        counts, config = fields(metadata.get("batchStats")), fields(metadata.get("inputConfig"))
        input_file = config.get("fileName") or config.get("file_name") or None
        mark = short(metadata.get("displayName"), _MARK)
        return RemoteBatch(
            id=check_id(name.removeprefix("batches/") if isinstance(name, str) else None),
            state=state,
            word=word,
            created_at=unix_seconds(metadata.get("createTime")),
            mark=mark and mark.removeprefix("sb-"),
            file_id=None if input_file is None else _check_file(input_file),
            total=whole(counts.get("requestCount")) or None,
            completed=whole(counts.get("successfulRequestCount")) or 0,
            failed=whole(counts.get("failedRequestCount")) or 0,
            outputs=outputs,
            error=failure,
        )


def _path(batch_id: str) -> str:
    return f"batches/{check_id(batch_id)}"


def _is_own(reply: Reply) -> bool:
    return error_in(reply.json()).get("code") == reply.status


def _refine(error: ProviderError) -> None:
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


def _check_file(value: Any) -> str:
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
        id=_check_file(data.get("name")),
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
