"""Anthropic's Message Batches, through the vendor's SDK.

A batch is created with all its requests in one body; it has no input file, name or label. Calls
use the SDK's lowest-level method, because ``results()`` fetches the batch again, typed models
drop unknown fields, and ``create()`` needs every request in memory.

Source: Anthropic's API reference for Message Batches (November 2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.anthropic.answers import read_result
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchApi,
    BatchPage,
    Creation,
    Line,
    RemoteBatch,
    RemoteKind,
    RemoteState,
)
from smartbatch.providers.cache_marks import anthropic_rules
from smartbatch.providers.error_reader import ErrorReader, error_in
from smartbatch.providers.error_table import BatchRefused
from smartbatch.providers.foreign_text import PLAIN_WORD, count, echoes, fields, short, unix_seconds, unusable
from smartbatch.providers.http.batch_calls import BatchCalls, check_id, page_of
from smartbatch.providers.http.content import SpooledBody, encode_json
from smartbatch.providers.http.replies import Reply
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.anthropic.sdk import MessagesSdk

_BATCHES_PATH = "/v1/messages/batches"
_BATCHES_PER_PAGE = 100
_BEFORE, _AFTER = b'{"requests":[', b"]}"
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_RESULTS = re.compile(r"/[A-Za-z0-9_~/-]{1,512}", re.ASCII)


class AnthropicBatches(BatchApi):
    """The Batch API of an ``AnthropicProvider``.

    ``leads_to`` checks whether an origin is that of the base URL. ``message`` builds the body of a
    request and lists the parameters that it leaves out.
    """

    name = "anthropic"
    abilities = BatchAbilities(
        max_requests=100_000,
        max_bytes=256_000_000,  # documented as 256 MB; the smaller of the two possible meanings
        files=False,
        labels=False,
        fence=False,
        counts=False,
        retention=29 * 86_400.0,
        result_files=False,
        deletes=frozenset({RemoteKind.BATCH}),
    )

    def __init__(
        self,
        scope: str,
        errors: ErrorReader,
        *,
        sdk: Callable[[], MessagesSdk],
        leads_to: Callable[[str, str, int | None], bool],
        message: Callable[[Request, str], tuple[Mapping[str, Any], tuple[tuple[str, str], ...]]],
    ) -> None:
        self.scope = scope
        self._errors = errors
        self._sdk = sdk
        self._leads_to = leads_to
        self._message = message
        self._calls = BatchCalls(errors, is_own_error, self._read)

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        return encode_json({"custom_id": wire_id, "params": self._message(request, model)[0]})

    def caching(self, *, model: str) -> CachingRules | None:
        return anthropic_rules(model)

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:
        return self._message(request, model)[1]

    def overhead(self, size: int) -> int:  # noqa: ARG002
        """A comma replaces every line end but the last."""
        return len(_BEFORE) + len(_AFTER)

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        if creation.lines is None:
            raise ProviderError("a batch without its input cannot be created", kind=ErrorKind.CLIENT_ERROR)
        body = SpooledBody(creation.lines, before=_BEFORE, after=_AFTER, between=b",")
        headers = {"Idempotency-Key": creation.mark}
        reply = self._sdk().ask("post", _BATCHES_PATH, timeout, spooled=body, headers=headers)
        try:
            return self._calls.created(reply)
        except ProviderError as error:
            lines = error.lines.values() if isinstance(error, BatchRefused) else ()
            for each in (error, *lines):
                if each.status is not None and echoes(each.message, _prompts_of(creation.lines)):
                    each.message = (
                        f"the provider answered {each.status} "
                        "(its text is omitted because it repeats a prompt)"
                    )
                    each.args = (each.message,)
            raise

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        return self._calls.found(self._sdk().ask("get", _path(batch_id), timeout))

    def page(self, after: str | None, timeout: float) -> BatchPage:
        params = {
            "limit": str(_BATCHES_PER_PAGE),
            **({"after_id": check_id(after)} if after is not None else {}),
        }
        reply = self._sdk().ask("get", _BATCHES_PATH, timeout, params=params)
        data, found = self._calls.listed(reply, "data")
        batches = [self._read(each) for each in found]
        more = data.get("has_more") is True and batches
        return page_of(reply, batches, batches[-1].id if more else None)

    def cancel(self, batch_id: str, timeout: float) -> None:
        """After a refusal, fetch the batch, because it may already have ended."""
        reply = self._sdk().ask("post", f"{_path(batch_id)}/cancel", timeout)
        self._calls.cancelled(reply, lambda: self.get(batch_id, timeout))

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        self._calls.gone(self._sdk().ask("delete", _path(batch_id), timeout))

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        if not self._is_results(output):
            raise unusable("the results are on another server", "id", status=200)
        sdk = self._sdk()
        begin = partial(sdk.begin, accept="application/binary")
        yield from self._calls.result_pieces(begin, sdk.url_of(output), timeout)

    def read_line(self, line: bytes, kind: Kind) -> Line:  # noqa: ARG002
        return read_result(line, self._errors)

    def _read(self, data: Any) -> RemoteBatch:
        if not isinstance(data, dict):
            raise unusable("the provider returned an invalid batch", status=200)
        word = short(data.get("processing_status"), PLAIN_WORD) or "unknown"
        found = data.get("request_counts")
        counts = {name: count(found.get(name)) or 0 for name in _COUNTS} if isinstance(found, dict) else {}
        batch_id, state = check_id(data.get("id")), _state(word, counts)
        outputs: tuple[str, ...] = ()
        if state.ended:
            # A gateway may pass on the address of the service behind it. The key must not be sent there, so
            # the documented path is used instead.
            url = data.get("results_url")
            is_own = isinstance(url, str) and "://" in url and self._is_results(url)
            outputs = (str(url) if is_own else f"{_path(batch_id)}/results",)
        return RemoteBatch(
            id=batch_id,
            state=state,
            word=word,
            created_at=unix_seconds(data.get("created_at")),
            total=sum(counts.values()) or None,
            completed=counts.get("succeeded", 0),
            failed=counts.get("errored", 0),
            outputs=outputs,
        )

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
        return self._leads_to(parts.scheme, parts.hostname or "", port)


def _path(batch_id: str) -> str:
    return f"{_BATCHES_PATH}/{check_id(batch_id)}"


def is_own_error(reply: Reply) -> bool:
    data = reply.json()
    return fields(data).get("type") == "error" and isinstance(error_in(data).get("type"), str)


def _state(word: str, counts: Mapping[str, int]) -> RemoteState:
    if word == "canceling":
        return RemoteState.ENDING
    if word != "ended":
        return RemoteState.RUNNING
    # An ended batch has a result for every request. It is complete unless all requests were canceled, or all
    # expired.
    total = sum(counts.values())
    if total and counts["canceled"] == total:
        return RemoteState.CANCELLED
    if total and counts["expired"] == total:
        return RemoteState.EXPIRED
    return RemoteState.COMPLETED


def _prompts_of(lines: Path) -> Iterator[str]:
    """Yields nothing if the file cannot be read."""
    try:
        with open(lines, "rb") as file:
            for line in file:  # splits at b"\n" only, because the file is binary
                params = json.loads(line).get("params", {})
                yield from _texts([params.get("system"), params.get("messages")])
    except (OSError, ValueError, AttributeError):
        return


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, list):
        for each in found:
            yield from _texts(each)
    elif isinstance(found, dict):
        yield from _texts([found.get("text"), found.get("content")])
