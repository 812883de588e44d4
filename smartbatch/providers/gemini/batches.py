"""The Gemini API's batches, through the ``google-genai`` SDK, for the job engine.

The input is always a file. Inline requests would have no fence, their answers come in another order, and
their keys are not always echoed. Batches are read raw: the SDK's typed models drop the counts, the reason of
a failure and results that stand under ``response``, and cannot read error details at all.

Source: Google's guide and reference of the Batch API (November 2026), the wire of ``google-genai`` 3.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
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
from smartbatch.providers.gemini.batch_lines import encode_request, enqueued, read_result
from smartbatch.providers.gemini.batch_shapes import read_operation
from smartbatch.providers.gemini.bodies import resource
from smartbatch.providers.gemini.errors import read_error
from smartbatch.providers.gemini.files import GeminiFiles, check_file, is_no_file
from smartbatch.providers.http.batch_transport import (
    BatchTransport,
    check_id,
    garbled,
    is_gone,
    results_of,
    weighed,
)
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.timestamps import server_time
from smartbatch.providers.openai.answers import decode
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.gemini.sdk import GeminiSdk

__all__ = ["GeminiBatches"]

_PAGE = 100
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_METHODS = {Kind.GENERATE: "batchGenerateContent", Kind.EMBED: "asyncBatchEmbedContent"}

_T = TypeVar("_T")


class GeminiBatches(BatchApi):
    """See :class:`~smartbatch.providers.batch_api.BatchApi`; made by ``GeminiProvider.batches()``.

    Args:
        scope: the provider's.
        transport: used by this API alone.
        build: makes the SDK's client over a transport.
        secrets: texts that must not come back in an error.
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

    def __init__(
        self,
        scope: str,
        transport: BatchTransport,
        build: Callable[[BatchTransport], GeminiSdk],
        secrets: Sequence[str],
    ) -> None:
        self.scope = scope
        self._transport = transport
        self._build = build
        self._secrets = tuple(secrets)
        self._client: GeminiSdk | None = None
        self._files = GeminiFiles(self._ask, self._put)

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
        reply = self._ask("post", path, body, timeout, {"Idempotency-Key": creation.mark})
        try:
            return read_operation(decode(reply), *self._secrets)
        except ProviderError as error:
            error.maybe_billed = True
            raise

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return the batch; ``None`` for the API's own 404."""
        try:
            return read_operation(decode(self._ask("get", _path(batch_id), {}, timeout)), *self._secrets)
        except ProviderError as error:
            if is_gone(error):
                return None
            raise

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return a hundred batches; ``after`` is the page token."""
        path = f"batches?pageSize={_PAGE}"
        if after is not None:
            path += f"&pageToken={quote(after, safe='')}"
        reply = self._ask("get", path, {}, timeout)
        data = decode(reply)
        found, token = data.get("operations", []), data.get("nextPageToken")
        if not isinstance(found, list):
            raise garbled("the list of batches is none")
        batches = tuple(read_operation(each, *self._secrets) for each in found)
        if token and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
            raise garbled("the list of batches goes on, but does not say where")
        return BatchPage(batches, token or None, server_time(reply.headers))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """Ask to cancel; a refusal is looked into, because the batch may have ended."""
        try:
            self._ask("post", f"{_path(batch_id)}:cancel", {}, timeout)
        except ProviderError as error:
            if error.status not in (400, 409):
                raise
            batch = self.get(batch_id, timeout)
            if batch is None or not batch.state.ended:
                raise

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        """Delete the batch's record; one that is gone already is a success."""
        try:
            self._ask("delete", _path(batch_id), {}, timeout)
        except ProviderError as error:
            if not is_gone(error):
                raise

    def output_files(self, batch: RemoteBatch) -> Sequence[str]:
        """Return the files with results."""
        return batch.outputs

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a file of results as it comes."""
        path = f"{check_file(output)}:download?alt=media"
        sdk = self._sdk()
        options = sdk.options(timeout, {"Accept": "application/binary"})
        yield from results_of(self._call(lambda: sdk.stream(path, {}, options, "get")))

    def read_line(self, line: bytes, kind: Kind) -> Line:
        """Understand one line of results."""
        return read_result(line, kind, *self._secrets)

    def classify(self, error: Exception) -> ProviderError:
        """Return the meaning of what a method raised; those of the SDK's network have their own table."""
        if self._client is not None and not isinstance(error, ProviderError):
            from smartbatch.providers.gemini.sdk import network_error

            return network_error(error) or super().classify(error)
        return super().classify(error)

    def close(self) -> None:
        """Close all connections; calls under way end at once."""
        self._transport.close()

    def abandon(self) -> None:
        """Drop what a fork brought along."""
        self._client = None
        self._transport.abandon()

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any],
        timeout: float,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Make one request and return its successful answer.

        Raises:
            ProviderError: for every failure.
        """
        sdk = self._sdk()
        options = sdk.options(timeout, headers)
        return self._call(lambda: sdk.ask(method, path, body, options))

    def _put(self, address: str, piece: bytes, headers: Mapping[str, str], timeout: float) -> Reply:
        sdk = self._sdk()
        return self._call(lambda: sdk.put(address, piece, headers, timeout))

    def _call(self, call: Callable[[], _T]) -> _T:
        from smartbatch.providers.gemini.sdk import Refused, network_error

        try:
            return call()
        except Refused as refused:
            problem = self._refusal(refused.reply)
        except ProviderError:
            raise
        except Exception as error:
            found = network_error(error)
            if found is None:
                raise
            problem = found
        raise problem

    def _refusal(self, reply: Reply) -> ProviderError:
        data = reply.json()
        error = data.get("error") if isinstance(data, dict) else None
        own = isinstance(error, dict) and error.get("code") == reply.status
        found = read_error(reply.status, data, (), *self._secrets, headers=reply.headers)
        found = enqueued(weighed(found, reply.status, own=own))
        if found.status == 403 and is_no_file(found):
            found.kind, found.code = ErrorKind.CLIENT_ERROR, "no_such_file"  # nothing is wrong with the key
        return found

    def _sdk(self) -> GeminiSdk:
        sdk = self._client
        if sdk is None:  # two threads may both build one; either will do
            sdk = self._client = self._build(self._transport)
        return sdk


def _path(batch_id: str) -> str:
    return f"batches/{check_id(batch_id)}"
