"""OpenAI's Batch API and that of compatible servers: an uploaded file, one create, a list, files of results.

Source: OpenAI's OpenAPI document 2.3.0 and Batch guide of November 2026: 50,000 requests and 200 MB a batch,
results for 30 days, no idempotency of a create, no filter in the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
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
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.http.batch_calls import BatchCalls
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.spooled_body import upload_form
from smartbatch.providers.http.timestamps import server_time
from smartbatch.providers.openai import batch_shapes as shapes
from smartbatch.providers.openai.batch_lines import read_line
from smartbatch.providers.openai.bodies import dropped_of, embeddings_body
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from requests import Response, Session

__all__ = ["OpenAIBatches"]

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_PAGE = 100
_FILES = 10_000
_MOST_PAGES = 1000  # a list of files that goes on and on: a million of them


class OpenAIBatches(BatchApi):
    """The Batch API next to an :class:`~smartbatch.providers.openai.provider.OpenAIProvider`.

    Args:
        url: the base URL, with the version.
        session: returns the ``requests`` session of this process, over a transport for batches.
        errors: makes the errors of the API's answers.
        scope: the provider's.
        api: ``chat`` or ``responses``; the endpoint generations go to.
        body: builds the body of a generation, as for a real-time call.
        window: OpenAI knows ``24h`` only, other servers also ``1h`` or ``7d``.
        purpose: what an input file is uploaded for; Together says ``batch-api``.
    """

    name = "openai"
    abilities = BatchAbilities(
        max_requests=50_000, max_bytes=200_000_000, kinds=frozenset({Kind.GENERATE, Kind.EMBED})
    )

    def __init__(
        self,
        url: str,
        session: Callable[[], Session],
        errors: ErrorReader,
        *,
        scope: str,
        api: Literal["chat", "responses"],
        body: Callable[[Request, str], dict[str, Any]],
        window: str = "24h",
        purpose: str = "batch",
    ) -> None:
        self.scope = scope
        self._url = url.rstrip("/")
        self._session = session
        self._errors = errors
        self._calls = BatchCalls(errors, _is_refusal, self._read, shapes.mark_over_quota)
        self._api = api
        self._body = body
        self._window = window
        self._purpose = purpose

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

        Whatever goes wrong after the first byte, a file may exist: the caller looks for its name. In order:

        1. the input cannot be read: an error with the code ``source``;
        2. the server refuses, or no answer comes;
        3. the answer is about a file without an id, or one that could not be processed;
        4. the provider counts other bytes than were sent: the file is not used.
        """
        body, content_type = upload_form({"purpose": self._purpose}, source, name + shapes.SUFFIX)
        reply = self._call("POST", "/files", timeout, data=body, headers={"Content-Type": content_type})
        file = shapes.read_file(self._calls.decoded(reply))
        if file.size is not None and file.size != body.file_size:
            raise ProviderError(
                f"the provider has {file.size} bytes of an input of {body.file_size}",
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
            reply = self._call("GET", "/files", deadline - time.monotonic(), params=query)
            data = self._calls.decoded(reply)
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
        reply = self._call("DELETE", f"/files/{_quoted(file_id)}", timeout)
        if self._calls.gone(reply) or not reply.body.strip():
            return
        if self._errors.decode(reply).get("deleted") is False:
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
        headers = {"Idempotency-Key": creation.mark}
        return self._calls.created(self._call("POST", "/batches", timeout, json=wanted, headers=headers))

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return a batch; ``None`` only when the provider itself says that there is none."""
        batch = self._calls.found(self._call("GET", f"/batches/{_quoted(batch_id)}", timeout))
        # LiteLLM may say its upstream's id, which it does not know later.
        return None if batch is None else evolve(batch, id=batch_id)

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return up to 100 batches; one that cannot be read is left out unless it carries our mark."""
        query = {"limit": str(_PAGE), **({"after": after} if after else {})}
        reply = self._call("GET", "/batches", timeout, params=query)
        data = self._calls.decoded(reply)
        listed = _listed(data)
        batches = []
        for each in listed:
            try:
                batches.append(self._read(each))
            except ProviderError:
                metadata = each.get("metadata")
                if isinstance(metadata, dict) and "sb" in metadata:
                    raise
        return BatchPage(tuple(batches), _next(data, listed, after), server_time(reply.headers))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """Ask to cancel; 400 and 409 say that it has ended, which the next look at it shows."""
        reply = self._call("POST", f"/batches/{_quoted(batch_id)}/cancel", timeout, headers=_JSON)
        if reply.status not in (400, 409) or not _is_refusal(reply):
            self._calls.checked(reply)

    def output_files(self, batch: RemoteBatch) -> Sequence[str]:
        """Return the files of results and of errors."""
        return batch.outputs

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        """Yield a file of results in pieces of at most 64 kB."""
        with self._send("GET", f"/files/{_quoted(output)}/content", timeout, stream=True) as response:
            yield from self._calls.results(cast(LiveReply, response.raw))

    def read_line(self, line: bytes, kind: Kind) -> Line:
        """See :meth:`BatchApi.read_line <smartbatch.providers.batch_api.BatchApi.read_line>`."""
        return read_line(line, kind, self._api, self._errors)

    def _endpoint(self, kind: Kind) -> str:
        if kind is Kind.EMBED:
            return "/v1/embeddings"
        return "/v1/chat/completions" if self._api == "chat" else "/v1/responses"

    def _call(self, method: str, path: str, timeout: float, **more: Any) -> Reply:
        response = self._send(method, path, timeout, **more)
        return Reply(response.status_code, dict(response.headers.lower_items()), response.content)

    def _send(self, method: str, path: str, timeout: float, **more: Any) -> Response:
        url = self._url + path
        return self._session().request(method, url, timeout=timeout, allow_redirects=False, **more)

    def _read(self, data: Any) -> RemoteBatch:
        return shapes.read_batch(shapes.unwrap(data, "job"), *self._errors.secrets)


_JSON = {"Content-Type": "application/json"}


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
