"""Anthropic's Message Batches, through the vendor's SDK, for the job engine.

A batch is created with all its requests in one body; there is no input file, no name and no label. What the
SDK's own methods add is left out: ``results()`` looks the batch up again first, typed models drop what they
do not know, and ``create()`` needs every request in memory. So its lowest call is used, as for messages.

Source: Anthropic's API reference of Message Batches (November 2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.anthropic.batch_lines import prompts_of, read_result
from smartbatch.providers.anthropic.errors import read_error
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    RemoteBatch,
    RemoteState,
)
from smartbatch.providers.foreign_text import PLAIN_WORD, count, echoes, short
from smartbatch.providers.http.batch_transport import (
    BatchTransport,
    check_id,
    garbled,
    is_gone,
    results_of,
    weighed,
)
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.spooled_body import SpooledBody, carrying
from smartbatch.providers.http.timestamps import server_time, unix_seconds
from smartbatch.providers.openai.answers import decode
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    import anthropic

__all__ = ["AnthropicBatches"]

_ROOT = "/v1/messages/batches"
_PAGE = 100
_BEFORE, _AFTER = b'{"requests":[', b"]}"
_RESULTS = re.compile(r"/[A-Za-z0-9_~/-]{1,512}", re.ASCII)
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_NOBODY = Request(prompt="")
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class AnthropicBatches(BatchApi):
    """See :class:`~smartbatch.providers.batch_api.BatchApi`; made by ``AnthropicProvider.batches()``.

    Args:
        scope: the provider's.
        transport: used by this API alone.
        build: makes an SDK client over a transport, with its retries off.
        message: makes the body of a request for a model, and tells what it leaves out.
        secrets: texts that must not come back in an error.
    """

    name = "anthropic"
    abilities = BatchAbilities(
        max_requests=100_000,
        max_bytes=256_000_000,  # documented as 256 MB; the smaller meaning
        files=False,
        labels=False,
        fence=False,
        counts=False,
        retention=29 * 86_400.0,
    )

    def __init__(
        self,
        scope: str,
        transport: BatchTransport,
        build: Callable[[BatchTransport], anthropic.Anthropic],
        message: Callable[[Request, str], tuple[Mapping[str, Any], tuple[tuple[str, str], ...]]],
        secrets: tuple[str, ...],
    ) -> None:
        self.scope = scope
        self._transport = transport
        self._build = build
        self._message = message
        self._secrets = secrets
        self._client: anthropic.Anthropic | None = None

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        """Return ``request`` as the body of a message with its id; parameters as in real time."""
        return _encode({"custom_id": wire_id, "params": self._message(request, model)[0]}).encode("ascii")

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:
        """Return the sampling parameters the API's version does not take, as real time reports them."""
        return self._message(request, model)[1]

    def overhead(self, size: int) -> int:  # noqa: ARG002
        """Return the bytes around the lines; a comma stands for every line end but the last."""
        return len(_BEFORE) + len(_AFTER)

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """Create a batch of the spooled lines, which are read from disk while they are sent."""
        if creation.lines is None:
            raise ProviderError("a batch without its input cannot be created", kind=ErrorKind.CLIENT_ERROR)
        try:
            body = SpooledBody(creation.lines, before=_BEFORE, after=_AFTER, between=b",")
        except OSError as error:
            name = type(error).__name__
            raise ProviderError(f"the spooled input cannot be read ({name}); nothing was sent") from error
        try:
            with carrying(body):
                reply = self._call("POST", _ROOT, timeout, headers={"Idempotency-Key": creation.mark})
        except ProviderError as error:
            if error.status is not None and echoes(error.message, prompts_of(creation.lines)):
                error.message = f"the provider answered {error.status}; its text repeats a prompt"
                error.args = (error.message,)
            raise
        try:
            return self._batch(decode(reply))
        except ProviderError as error:
            error.maybe_billed = True
            raise

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return the batch; ``None`` for the API's own 404."""
        try:
            return self._batch(decode(self._call("GET", f"{_ROOT}/{check_id(batch_id)}", timeout)))
        except ProviderError as error:
            if is_gone(error):
                return None
            raise

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return a hundred batches; ``after`` is the last id of the page before."""
        params = (
            {"limit": str(_PAGE)} if after is None else {"limit": str(_PAGE), "after_id": check_id(after)}
        )
        reply = self._call("GET", _ROOT, timeout, params=params)
        data = decode(reply)
        found = data.get("data")
        if not isinstance(found, list):
            raise garbled("the list of batches is none")
        batches = tuple(self._batch(each) for each in found)
        more = data.get("has_more") is True and batches
        return BatchPage(batches, batches[-1].id if more else None, server_time(reply.headers))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """Ask to cancel. The API refuses that for a batch that has ended, so a refusal is looked into."""
        try:
            self._call("POST", f"{_ROOT}/{check_id(batch_id)}/cancel", timeout)
        except ProviderError as error:
            if error.status not in (400, 409, 412):
                raise
            batch = self.get(batch_id, timeout)
            if batch is None or not batch.state.ended:
                raise

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        """Delete an ended batch with its results; one that is gone already is a success."""
        try:
            self._call("DELETE", f"{_ROOT}/{check_id(batch_id)}", timeout)
        except ProviderError as error:
            if not is_gone(error):
                raise

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        """Yield the results as they come, from this API's own server only."""
        if not self._is_results(output):
            raise garbled("the address of the results is none of this server's", "id")
        yield from results_of(self._send("GET", output, timeout, stream=True))

    def read_line(self, line: bytes, kind: Kind) -> Line:  # noqa: ARG002
        """Understand one line of results; there are no other kinds than messages."""
        return read_result(line, *self._secrets)

    def close(self) -> None:
        """Close all connections; calls under way end at once."""
        self._transport.close()

    def abandon(self) -> None:
        """Drop what a fork brought along."""
        self._client = None
        self._transport.abandon()

    def _call(
        self, method: Literal["GET", "POST", "DELETE"], path: str, timeout: float, **options: Any
    ) -> Reply:
        """Make one request and return its successful answer.

        Raises:
            ProviderError: for every failure.
        """
        from smartbatch.providers.http.sdk_bridge import reply_of

        return reply_of(self._send(method, path, timeout, **options))

    def _send(self, method: str, path: str, timeout: float, *, stream: bool = False, **options: Any) -> Any:
        import anthropic
        import httpx2

        from smartbatch.providers.http.sdk_bridge import live_of, reply_of, verdict_of

        client = self._client
        if client is None:  # two threads may both build one; either will do
            client = self._client = self._build(self._transport)
        sent: Any = {"cast_to": httpx2.Response, "options": {"timeout": timeout, **options}}
        try:
            if method == "POST":
                return client.post(path, content=b"", **sent)
            if method == "DELETE":
                return client.delete(path, **sent)
            if not stream:
                return client.get(path, **sent)
            sent["options"]["headers"] = {"Accept": "application/binary"}
            return live_of(client.get(path, stream=True, stream_cls=anthropic.Stream[Any], **sent))
        except anthropic.APIStatusError as error:
            problem = self._refusal(reply_of(error.response))
        except anthropic.APIConnectionError as error:
            problem = verdict_of(error) or self.classify(error)
        # Raised out here: the SDK's errors hold the request with the key.
        raise problem

    def _refusal(self, reply: Reply) -> ProviderError:
        data = reply.json()
        error = data.get("error") if isinstance(data, dict) and data.get("type") == "error" else None
        own = isinstance(error, dict) and isinstance(error.get("type"), str)
        return weighed(read_error(reply, _NOBODY, *self._secrets, data=data), reply.status, own=own)

    def _batch(self, data: Any) -> RemoteBatch:
        """Return a batch as the API tells it.

        Raises:
            ProviderError: ``INVALID_RESPONSE`` for anything else.
        """
        if not isinstance(data, dict):
            raise garbled("a batch in the provider's answer is none")
        identity = check_id(data.get("id"))
        word = short(data.get("processing_status"), PLAIN_WORD) or "unknown"
        told = data.get("request_counts")
        counts = {name: count(told.get(name)) or 0 for name in _COUNTS} if isinstance(told, dict) else {}
        state = _state(word, counts)
        return RemoteBatch(
            id=identity,
            state=state,
            word=word,
            created_at=unix_seconds(data.get("created_at")),
            total=sum(counts.values()) or None,
            completed=counts.get("succeeded", 0),
            failed=counts.get("errored", 0),
            outputs=(self._results(identity, data.get("results_url")),) if state.ended else (),
        )

    def _results(self, identity: str, url: Any) -> str:
        """Where the results are: as told, if that is this server; else where the API documents them.

        A gateway may pass on the address of the service behind it, where our key must not go.
        """
        usual = f"{_ROOT}/{identity}/results"
        return url if isinstance(url, str) and "://" in url and self._is_results(url) else usual

    def _is_results(self, output: str) -> bool:
        if len(output) > 1024 or ".." in output:
            return False
        try:
            parts = urlsplit(output)
            port = parts.port
        except ValueError:
            return False
        if parts.query or parts.fragment or parts.username or not _RESULTS.fullmatch(parts.path):
            return False
        if not parts.netloc:
            return not parts.scheme
        return self._transport.leads_to(parts.scheme, parts.hostname or "", port)


def _state(word: str, counts: Mapping[str, int]) -> RemoteState:
    """A batch that has ended has a result for every request, so it is complete even where a part was not run.

    Only where none was run, it is called what its requests are called.
    """
    if word == "canceling":
        return RemoteState.ENDING
    if word != "ended":
        return RemoteState.RUNNING
    total = sum(counts.values())
    if total and counts["canceled"] == total:
        return RemoteState.CANCELLED
    if total and counts["expired"] == total:
        return RemoteState.EXPIRED
    return RemoteState.COMPLETED
