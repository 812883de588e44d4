"""The Gemini API's batches and files, through the ``google-genai`` SDK.

The input is always an uploaded file. Inline requests are not used: duplicate submissions could not be
detected, answers arrive in a different order, and their keys are not always returned. The SDK's typed models
are not used either: they drop counts, failure reasons and results under ``response``.

Sources: Google's guides and references for the Batch API and the Files API (November 2026), and
the requests that ``google-genai`` 3.4 sends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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
from smartbatch.providers.cache_marks import gemini_rules
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.error_table import explained
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, short, unix_seconds, unusable, whole
from smartbatch.providers.gemini.answers import read_result
from smartbatch.providers.gemini.bodies import embed_body, generate_body, resource
from smartbatch.providers.gemini.errors import status_error
from smartbatch.providers.gemini.files import NamedFileCalls, check_file, is_own_error, refine_error
from smartbatch.providers.http.batch_calls import BatchCalls, check_id, page_of
from smartbatch.providers.http.content import SpooledBody, encode_json
from smartbatch.shared_prefixes import CachingRules
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
        self._calls = BatchCalls(errors, is_own_error, self._read, refine=refine_error)
        self._files = NamedFileCalls(errors, sdk)

    def caching(self, *, model: str) -> CachingRules | None:
        return gemini_rules(model)

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        if request.embedding is not None:
            body = embed_body([request], model)["requests"][0]
            del body["model"]  # a batch has one model, in its path
        else:
            body = generate_body(request, model)
        return encode_json({"key": wire_id, "request": body})

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        return self._files.upload(name, _INPUT_CONTENT_TYPE, SpooledBody(source), timeout).file

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        found = self._files.find(name, timeout)
        return None if found is None else found.file

    def delete_file(self, file_id: str, timeout: float) -> None:
        self._files.delete(file_id, timeout)

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """The batch's display name is the mark."""
        path = f"{resource(creation.model)}:{_METHODS[creation.kind]}"
        batch: dict[str, Any] = {
            "displayName": f"sb-{creation.mark}",
            "inputConfig": {"fileName": check_file(creation.file_id)},
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
            sdk.url_of(f"{check_file(output)}:download?alt=media"),
            timeout,
        )

    def read_line(self, line: bytes, kind: Kind) -> Line:
        return read_result(line, kind, self._errors)

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
        outputs = tuple(dict.fromkeys(check_file(each) for each in files if each))
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
            file_id=None if input_file is None else check_file(input_file),
            total=whole(counts.get("requestCount")) or None,
            completed=whole(counts.get("successfulRequestCount")) or 0,
            failed=whole(counts.get("failedRequestCount")) or 0,
            outputs=outputs,
            error=failure,
        )


def _path(batch_id: str) -> str:
    return f"batches/{check_id(batch_id)}"
