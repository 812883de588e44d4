"""The Gemini API's batches, through the ``google-genai`` SDK, for the job engine.

The input is always a file. Inline requests would have no fence, their answers come in another order, and
their keys are not always echoed. Batches are read raw: the SDK's typed models drop the counts, the reason of
a failure and results that stand under ``response``, and cannot read error details at all.

Source: Google's guide and reference of the Batch API (November 2026), the wire of ``google-genai`` 3.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
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
)
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.gemini.batch_lines import encode_request, mark_over_quota, read_result
from smartbatch.providers.gemini.batch_shapes import read_batch
from smartbatch.providers.gemini.bodies import resource
from smartbatch.providers.gemini.files import GeminiFiles, check_file, is_no_file
from smartbatch.providers.http.batch_calls import BatchCalls, check_id, garbled
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.timestamps import server_time
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

__all__ = ["GeminiBatches"]

_PAGE = 100
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_METHODS = {Kind.GENERATE: "batchGenerateContent", Kind.EMBED: "asyncBatchEmbedContent"}


class GeminiBatches(BatchApi):
    """See :class:`~smartbatch.providers.batch_api.BatchApi`; made by ``GeminiProvider.batches()``.

    Args:
        scope: the provider's.
        errors: makes the errors of the API's answers.
        sdk: returns the SDK's client of this process, over a transport for batches.
    """

    name = "gemini"
    abilities = BatchAbilities(
        max_requests=100_000,  # no count is documented; what the others take
        max_bytes=2_000_000_000,
        kinds=frozenset({Kind.GENERATE, Kind.EMBED}),
        named_files=True,
        # Files are kept for 48 hours; nothing says that those with results are kept for longer.
        retention=48 * 3600.0,
    )

    def __init__(self, scope: str, errors: ErrorReader, sdk: Callable[[], GeminiSdk]) -> None:
        self.scope = scope
        self._errors = errors
        self._sdk = sdk
        self._calls = BatchCalls(errors, _is_own, self._read, _refine)
        self._files = GeminiFiles(sdk, self._calls)

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        """Return ``request`` as a line with its key; parameters as in real time."""
        return encode_request(request, model, wire_id)

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload ``source``; a name that is taken returns the file that has it."""
        return self._files.upload(name, source, timeout)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        """Return the file of that name; the id follows from the name, so this is one look."""
        return self._files.find(name, timeout)

    def delete_file(self, file_id: str, timeout: float) -> None:
        """Delete a file; one that is gone already is a success."""
        self._files.delete(file_id, timeout)

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """Create a batch of an uploaded file, with the mark as its display name."""
        path = f"{resource(creation.model)}:{_METHODS[creation.kind]}"
        body = {
            "batch": {
                "displayName": f"sb-{creation.mark}",
                "inputConfig": {"fileName": check_file(creation.file_id)},
            }
        }
        headers = {"Idempotency-Key": creation.mark}
        return self._calls.created(self._sdk().ask("post", path, timeout, body=body, headers=headers))

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return the batch; ``None`` for the API's own 404."""
        return self._calls.found(self._sdk().ask("get", _path(batch_id), timeout))

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return a hundred batches; ``after`` is the page token."""
        path = f"batches?pageSize={_PAGE}"
        if after is not None:
            path += f"&pageToken={quote(after, safe='')}"
        reply = self._sdk().ask("get", path, timeout)
        data = self._calls.decoded(reply)
        found, token = data.get("operations", []), data.get("nextPageToken")
        if not isinstance(found, list):
            raise garbled("the list of batches is none")
        batches = tuple(self._read(each) for each in found)
        if token and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise garbled("the list of batches goes on, but does not say where")
        return BatchPage(batches, token or None, server_time(reply.headers))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """Ask to cancel; a refusal is looked into, because the batch may have ended."""
        reply = self._sdk().ask("post", f"{_path(batch_id)}:cancel", timeout)
        self._calls.cancelled(reply, lambda: self.get(batch_id, timeout))

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        """Delete the batch's record; one that is gone already is a success."""
        self._calls.gone(self._sdk().ask("delete", _path(batch_id), timeout))

    def output_files(self, batch: RemoteBatch) -> Sequence[str]:
        """Return the files with results."""
        return batch.outputs

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a file of results as it comes."""
        path = f"{check_file(output)}:download?alt=media"
        live = self._sdk().begin("get", path, timeout, "application/binary")
        yield from self._calls.results(live)

    def read_line(self, line: bytes, kind: Kind) -> Line:
        """Understand one line of results."""
        return read_result(line, kind, self._errors)

    def _read(self, data: Any) -> RemoteBatch:
        return read_batch(data, self._errors)


def _path(batch_id: str) -> str:
    return f"batches/{check_id(batch_id)}"


def _is_own(reply: Reply) -> bool:
    data = reply.json()
    error = data.get("error") if isinstance(data, dict) else None
    return isinstance(error, dict) and error.get("code") == reply.status


def _refine(error: ProviderError) -> None:
    """A full quota of enqueued tokens, and a file that is not there, have codes of their own."""
    mark_over_quota(error)
    if error.status == 403 and is_no_file(error):
        error.kind, error.code = ErrorKind.CLIENT_ERROR, "no_such_file"  # nothing is wrong with the key
