"""OpenAI's Batch API and that of compatible servers: an uploaded file, one create, a list, files of results.

Source: OpenAI's OpenAPI document 2.3.0 and Batch guide of November 2026: 50,000 requests and 200 MB a batch,
results for 30 days, no idempotency of a create, no filter in the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from attrs import evolve

from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    RemoteBatch,
    RemoteFile,
)
from smartbatch.providers.http.batch_transport import weighed
from smartbatch.providers.http.replies import MAX_BODY, Reply
from smartbatch.providers.http.timestamps import server_time
from smartbatch.providers.http.uploads import Upload
from smartbatch.providers.openai import batch_shapes as shapes
from smartbatch.providers.openai.answers import decode, read_error
from smartbatch.providers.openai.batch_lines import read_line
from smartbatch.providers.openai.embeddings import dropped_of, embeddings_body
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.http.file_transport import FileTransport

__all__ = ["MAX_DOWNLOAD", "OpenAIBatches"]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
MAX_DOWNLOAD = 8 * 1024**3
"""50,000 vectors of 3,072 numbers in JSON are some 2 GB."""
_PAGE = 100
_FILES = 10_000
_MOST_PAGES = 1000  # a list of files that goes on and on: a million of them


class OpenAIBatches(BatchApi):
    """The Batch API beside an :class:`~smartbatch.providers.openai.provider.OpenAIProvider`.

    Args:
        control: makes the calls.
        scope: the provider's.
        api: ``chat`` or ``responses``; the endpoint generations go to.
        body: builds the body of a generation, as for a real-time call.
        secrets: texts that must not come back in an error.
        window: OpenAI knows ``24h`` only, other servers also ``1h`` or ``7d``.
        purpose: what an input file is uploaded for; Together says ``batch-api``.
        max_download: most bytes of one file of results.
    """

    name = "openai"
    abilities = BatchAbilities(
        max_requests=50_000, max_bytes=200_000_000, kinds=frozenset({Kind.GENERATE, Kind.EMBED})
    )

    def __init__(
        self,
        control: FileTransport,
        *,
        scope: str,
        api: Literal["chat", "responses"],
        body: Callable[[Request, str], dict[str, Any]],
        secrets: Sequence[str],
        window: str = "24h",
        purpose: str = "batch",
        max_download: int = MAX_DOWNLOAD,
    ) -> None:
        self.scope = scope
        self._control = control
        self._api = api
        self._body = body
        self._secrets = tuple(secrets)
        self._window = window
        self._purpose = purpose
        self._max_download = max_download

    # -- input -----------------------------------------------------------------------------------------------

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        """See :meth:`BatchApi.encode <smartbatch.providers.batch_api.BatchApi.encode>`."""
        embeds = request.embedding is not None
        body = embeddings_body((request,), model) if embeds else self._body(request, model)
        line = {
            "custom_id": wire_id,
            "method": "POST",
            "url": self._endpoint(Kind.EMBED if embeds else Kind.GENERATE),
            "body": body,
        }
        return _encode(line).encode("ascii")

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:  # noqa: ARG002
        """Return what embeddings know nothing of, as real time reports it."""
        return dropped_of(request.embedding)

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload the input, read from the disk as it is sent.

        Raises:
            ProviderError: also when the provider counts other bytes than were sent.
        """
        fields = {"purpose": self._purpose}
        with Upload(fields, source, filename=name + shapes.SUFFIX) as body:
            data, _ = self._ask("POST", "/files", timeout, body=body)
            file = shapes.read_file(data)
            if file.size is not None and file.size != body.size:
                raise ProviderError(
                    f"the provider has {file.size} bytes of an input of {body.size}",
                    kind=ErrorKind.NETWORK_ERROR,
                    code="truncated",
                    maybe_billed=True,
                )
        return RemoteFile(file.id, name, file.size, file.ready)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        """Look through the account's batch inputs, newest first, to the end of the list."""
        query = {"purpose": self._purpose, "limit": str(_FILES), "order": "desc"}
        deadline = time.monotonic() + timeout
        for _ in range(_MOST_PAGES):
            data, _reply = self._ask("GET", "/files", deadline - time.monotonic(), query=query)
            files = _listed(data)
            for each in files:
                if each.get("filename") in (name, name + shapes.SUFFIX):
                    return shapes.read_file(each)
            following = _next(data, files, query.get("after"))
            if following is None:
                return None
            query["after"] = following
        raise _endless()

    def delete_file(self, file_id: str, timeout: float) -> None:
        """Delete a file; only the provider's own word that there is none counts as a success too."""
        reply = self._control.call("DELETE", f"/files/{_quoted(file_id)}", timeout)
        if reply.status == 404 and _is_refusal(reply):
            return
        if not 200 <= reply.status < 300:
            raise self._error(reply)
        if reply.body.strip() and decode(reply).get("deleted") is False:
            raise ProviderError(
                "the provider did not delete the file", kind=ErrorKind.SERVER_ERROR, maybe_billed=True
            )

    # -- batches ---------------------------------------------------------------------------------------------

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """Create a batch; see :meth:`BatchApi.create <smartbatch.providers.batch_api.BatchApi.create>`."""
        if creation.file_id is None:
            raise InvalidRequest("an OpenAI batch needs an uploaded file", field="file_id")
        wanted = {
            "input_file_id": creation.file_id,
            "endpoint": self._endpoint(creation.kind),
            "completion_window": self._window,
            "metadata": {"sb": creation.mark, "sbn": str(creation.size)},
        }
        reply = self._control.call(
            "POST",
            "/batches",
            timeout,
            body=_encode(wanted).encode("ascii"),
            headers={"Idempotency-Key": creation.mark},
        )
        if not 200 <= reply.status < 300:
            raise weighed(self._error(reply), reply.status, own=_is_refusal(reply))
        try:
            return shapes.read_batch(shapes.unwrap(decode(reply), "job"), *self._secrets)
        except ProviderError as error:
            error.maybe_billed = True  # whatever came, it is no refusal
            raise

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return a batch; ``None`` only when the provider itself says that there is none."""
        reply = self._control.call("GET", f"/batches/{_quoted(batch_id)}", timeout)
        if reply.status == 404 and _is_refusal(reply):
            return None
        if not 200 <= reply.status < 300:
            raise self._error(reply)
        batch = shapes.read_batch(shapes.unwrap(decode(reply), "job"), *self._secrets)
        return evolve(batch, id=batch_id)  # LiteLLM may say its upstream's id, which it does not know later

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return up to 100 batches; one that cannot be read is left out unless it carries our mark."""
        query = {"limit": str(_PAGE), **({"after": after} if after else {})}
        data, reply = self._ask("GET", "/batches", timeout, query=query)
        listed = _listed(data)
        batches = []
        for each in listed:
            try:
                batches.append(shapes.read_batch(each, *self._secrets))
            except ProviderError:
                metadata = each.get("metadata")
                if isinstance(metadata, dict) and "sb" in metadata:
                    raise
        following = _next(data, listed, after)
        return BatchPage(tuple(batches), following, server_time(reply.headers))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """Ask to cancel; 400 and 409 say that it has ended, which the next look at it shows."""
        reply = self._control.call("POST", f"/batches/{_quoted(batch_id)}/cancel", timeout)
        if reply.status in (400, 409) and _is_refusal(reply):
            return
        if not 200 <= reply.status < 300:
            raise self._error(reply)

    def output_files(self, batch: RemoteBatch) -> Sequence[str]:
        """Return the files of results and of errors."""
        return batch.outputs

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a file of results in pieces of at most 64 kB.

        Raises:
            ProviderError: for a body that is cut, stalls beyond the deadline, or is too large.
        """
        with self._control.begin("GET", f"/files/{_quoted(output)}/content", timeout) as incoming:
            if not 200 <= incoming.status < 300:
                raise self._error(incoming.whole(MAX_BODY))
            if incoming.headers.get("content-type", "").startswith("text/html"):
                decode(Reply(incoming.status, incoming.headers, b""))  # raises: a page is no results
            yield from filter(None, incoming.pieces(self._max_download))

    def read_line(self, line: bytes, kind: Kind) -> Line:
        """See :meth:`BatchApi.read_line <smartbatch.providers.batch_api.BatchApi.read_line>`."""
        return read_line(line, kind, self._api, *self._secrets)

    # -- errors and life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cut the calls under way."""
        self._control.close()

    def abandon(self) -> None:
        """Forget the calls of a parent process."""
        self._control.abandon()

    def _endpoint(self, kind: Kind) -> str:
        if kind is Kind.EMBED:
            return "/v1/embeddings"
        return "/v1/chat/completions" if self._api == "chat" else "/v1/responses"

    def _ask(
        self,
        method: str,
        path: str,
        timeout: float,
        *,
        query: Mapping[str, str] | None = None,
        body: Upload | None = None,
    ) -> tuple[dict[str, Any], Reply]:
        """Make a call and return its JSON object, or raise what the provider says instead."""
        reply = self._control.call(method, path, timeout, query=query, body=body)
        if not 200 <= reply.status < 300:
            raise self._error(reply)
        return decode(reply), reply

    def _error(self, reply: Reply) -> ProviderError:
        error = read_error(reply, (), *self._secrets)
        if shapes.over_quota(error.code, error.message):
            error.code, error.kind = shapes.QUOTA, ErrorKind.RATE_LIMIT
        if _is_page(reply) and not _is_refusal(reply):
            error.maybe_billed = True  # somebody in between: the provider has refused nothing
        return error


def _quoted(remote_id: str) -> str:
    """Return an id for a path.

    Raises:
        InvalidRequest: for what no provider has as an id.
    """
    if shapes.no_id(remote_id):
        raise InvalidRequest("that is no id of a file or batch; nothing was sent", field="id")
    return quote(remote_id, safe="")


def _is_refusal(reply: Reply) -> bool:
    """Whether an error answer is the provider's own: a gateway's page says nothing about a batch."""
    data = reply.json()
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return False
    return bool(data.get("error")) or data.get("object") == "error"


def _is_page(reply: Reply) -> bool:
    """Whether an error answer is meant for people with a browser: a redirect, a page to sign in."""
    return reply.status < 400 or reply.headers.get("content-type", "").startswith("text/html")


def _listed(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = data.get("data")
    if not isinstance(listed, list):
        raise ProviderError("the provider's list is none", kind=ErrorKind.INVALID_RESPONSE, code="shape")
    return [each for each in listed if isinstance(each, dict)]


def _next(data: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], after: str | None) -> str | None:
    """What to ask the next page with; ``None`` on the last.

    Servers that do not say whether there is more are asked until nothing new comes: what is not in a list
    must really not be there.
    """
    more = data.get("has_more")
    if not listed or more is False:
        return None
    last = shapes.plain_id(listed[-1].get("id")) or shapes.plain_id(data.get("last_id"))
    if last is None or last == after:
        if more:
            raise _endless()
        return None
    return last


def _endless() -> ProviderError:
    return ProviderError(
        "the provider's list does not end, so what is missing in it may still exist",
        kind=ErrorKind.INVALID_RESPONSE,
        code="endless",
        maybe_billed=True,
    )
