"""Batch API of OpenAI and compatible servers: an uploaded file, one create call, a list and result files.

Source: OpenAI's OpenAPI document 2.3.0 and Batch guide (November 2026): 50,000 requests and 200 MB
per batch, results for 30 days, no idempotent create call, no filter in the list.
"""

from __future__ import annotations

import re
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
    LineOutcome,
    RemoteBatch,
    RemoteFile,
    RemoteState,
)
from smartbatch.providers.error_reader import ErrorReader, error_in
from smartbatch.providers.error_table import explained, kind_of_code
from smartbatch.providers.foreign_text import (
    PLAIN_ID,
    PLAIN_WORD,
    fields,
    plain,
    safe_text,
    short,
    unix_seconds,
    unusable,
    whole,
)
from smartbatch.providers.http.batch_calls import BatchCalls, check_id, page_of
from smartbatch.providers.http.content import encode_json, upload_form
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import read_line
from smartbatch.providers.openai.bodies import dropped_of
from smartbatch.providers.openai.dialect import BatchDialect
from smartbatch.providers.openai.errors import ServerParameters, refused_parameters
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.http.requests_bridge import RequestsSession

_BATCHES_PER_PAGE = 100
_FILES_PER_PAGE = 10_000
_MAX_PAGES = 1000  # per list of files
_JSON = {"Content-Type": "application/json"}
_INPUT_SUFFIX = ".jsonl"  # required in the names of batch inputs
_QUOTA_CODE = "token_limit_exceeded"  # too many tokens are in unfinished batches

# LiteLLM's ids are base64 strings of some 400 characters; no id has a slash or starts with a period
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+~-]{0,1023}")
_QUOTA_TEXT = re.compile(r"enqueued[ _]token[ _]limit", re.I)
_STATES = {
    "validating": RemoteState.RUNNING,
    "queued": RemoteState.RUNNING,
    "pending": RemoteState.RUNNING,
    "running": RemoteState.RUNNING,
    "in_progress": RemoteState.RUNNING,
    "finalizing": RemoteState.ENDING,
    "cancelling": RemoteState.ENDING,
    "cancellation_requested": RemoteState.ENDING,
    "completed": RemoteState.COMPLETED,
    "success": RemoteState.COMPLETED,
    "succeeded": RemoteState.COMPLETED,
    "failed": RemoteState.FAILED,
    "expired": RemoteState.EXPIRED,
    "timeout_exceeded": RemoteState.EXPIRED,
    "cancelled": RemoteState.CANCELLED,
    "canceled": RemoteState.CANCELLED,
}
_UNREADY = ("pending", "queued", "running", "processing")  # Azure checks a file before it can be used


class OpenAIBatches(BatchApi):
    """The Batch API of an :class:`~smartbatch.providers.openai.provider.OpenAIProvider`.

    Args:
        session: returns this process's session, over a transport for batches.
        errors: creates the errors.
        name, scope: as in :class:`~smartbatch.providers.batch_api.BatchApi`.
        api: ``chat`` or ``responses``, used for generations.
        body: builds the body of a call, as in real time.
        parameters: the parameters that the server accepts.
        dialect: the host's variant of the API.
    """

    def __init__(
        self,
        session: Callable[[], RequestsSession],
        errors: ErrorReader,
        *,
        name: str,
        scope: str,
        api: Literal["chat", "responses"],
        body: Callable[[Sequence[Request], str], dict[str, Any]],
        parameters: ServerParameters,
        dialect: BatchDialect,
    ) -> None:
        self.name = name
        self.scope = scope
        self.abilities = BatchAbilities(
            max_requests=dialect.max_requests, max_bytes=dialect.max_bytes, kinds=dialect.kinds
        )
        self._session = session
        self._errors = errors
        self._calls = BatchCalls(errors, _is_refusal, self._read, _mark_over_quota)
        self._api = api
        self._body = body
        self._parameters = parameters
        self._dialect = dialect

    # -- input -----------------------------------------------------------------------------------------------

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        line = {
            "custom_id": wire_id,
            "method": "POST",
            "url": self._endpoint(Kind.GENERATE if request.embedding is None else Kind.EMBED),
            "body": self._body((request,), model),
        }
        return encode_json(line)

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:
        if request.embedding is not None:
            return dropped_of(request.embedding)
        if request.params.seed is None:
            return ()
        return self._parameters.dropped(request, self._body((request,), model))

    def omitted(self, *, model: str) -> tuple[str, ...]:
        return self._parameters.omitted(model)

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload the input while reading it from disk.

        After any error in sending, the file may exist, so the caller looks for it by name. The errors:

        1. The input cannot be read (code ``source``).
        2. The server refuses, or no answer arrives.
        3. The answer has no file id, or the file could not be processed.
        4. The provider reports a size other than the one sent, so the file is not used.
        """
        body, content_type = upload_form({"purpose": self._dialect.purpose}, source, name + _INPUT_SUFFIX)
        reply = self._session().ask(
            "POST", "/files", timeout, data=body, headers={"Content-Type": content_type}
        )
        file = _read_file(self._calls.decoded(reply))
        if file.size is not None and file.size != body.file_size:
            text = f"the provider has {file.size} bytes of an input of {body.file_size}"
            raise unusable(text, "truncated", kind=ErrorKind.NETWORK_ERROR)
        return RemoteFile(file.id, name, file.size, file.ready)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        """Search the account's batch inputs from the newest to the oldest."""
        query = {"purpose": self._dialect.purpose, "limit": str(_FILES_PER_PAGE), "order": "desc"}
        deadline = time.monotonic() + timeout
        for _ in range(_MAX_PAGES):
            reply = self._session().ask("GET", "/files", deadline - time.monotonic(), params=query)
            data, files = self._listed(reply)
            for each in files:
                if each.get("filename") in (name, name + _INPUT_SUFFIX):
                    return _read_file(each)
            following = _next(data, files, query.get("after"))
            if following is None:
                return None
            query["after"] = following
        raise _endless()

    def delete_file(self, file_id: str, timeout: float) -> None:
        reply = self._session().ask("DELETE", f"/files/{_quoted(file_id)}", timeout)
        if self._calls.gone(reply) or not reply.body.strip():
            return
        if self._errors.decode(reply).get("deleted") is False:
            text = "the provider did not delete the file"
            raise ProviderError(text, kind=ErrorKind.SERVER_ERROR, maybe_billed=True)

    # -- batches ---------------------------------------------------------------------------------------------

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        if creation.file_id is None:
            raise InvalidRequest("an OpenAI batch needs an uploaded file", field="file_id")
        wanted = {
            "input_file_id": creation.file_id,
            "endpoint": self._endpoint(creation.kind),
            "completion_window": self._dialect.window,
            "metadata": {"sb": creation.mark, "sbn": str(creation.size)},
        }
        headers = {"Idempotency-Key": creation.mark}
        reply = self._session().ask("POST", "/batches", timeout, json=wanted, headers=headers)
        try:
            return self._calls.created(reply)
        except ProviderError as error:
            meaning = self._parameters.learn(error)
            if meaning is error:
                raise
            raise meaning from None

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        batch = self._calls.found(self._session().ask("GET", f"/batches/{_quoted(batch_id)}", timeout))
        if batch is None:
            return None
        error = None if batch.error is None else self._parameters.learn(batch.error)
        # LiteLLM may return the id of the service behind it, which it later does not recognise.
        return evolve(batch, id=batch_id, error=error)

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Unreadable batches are skipped unless they have a mark of this library."""
        query = {"limit": str(_BATCHES_PER_PAGE), **({"after": after} if after else {})}
        reply = self._session().ask("GET", "/batches", timeout, params=query)
        data, listed = self._listed(reply)
        batches = []
        for each in listed:
            try:
                batches.append(self._read(each))
            except ProviderError:
                if "sb" in fields(each.get("metadata")):
                    raise
        return page_of(reply, batches, _next(data, listed, after))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """A 400 or 409 means that the batch has ended."""
        reply = self._session().ask("POST", f"/batches/{_quoted(batch_id)}/cancel", timeout, headers=_JSON)
        if reply.status not in (400, 409) or not _is_refusal(reply):
            self._calls.checked(reply)

    def output_files(self, batch: RemoteBatch) -> Sequence[str]:
        return batch.outputs

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        session = self._session()
        url = session.url_of(f"/files/{_quoted(output)}/content")
        yield from self._calls.result_pieces(lambda url, left: session.begin("GET", url, left), url, timeout)

    def read_line(self, line: bytes, kind: Kind) -> Line:
        """A request rejected because of a parameter was not run; the next batch omits the parameter."""
        found = read_line(line, kind, self._api, self._errors)
        if found.error is None or (meaning := self._parameters.learn(found.error)) is found.error:
            return found
        return evolve(found, outcome=LineOutcome.UNRUN, error=meaning)

    def _endpoint(self, kind: Kind) -> str:
        if kind is Kind.EMBED:
            return "/v1/embeddings"
        return "/v1/chat/completions" if self._api == "chat" else "/v1/responses"

    def _listed(self, reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        data, listed = self._calls.listed(reply, "data")
        return data, [each for each in listed if isinstance(each, dict)]

    def _read(self, data: Mapping[str, Any]) -> RemoteBatch:
        """Convert a decoded batch; unusable ids are an error."""
        inner = fields(data.get("job"))
        if inner and "id" not in data:
            data = inner  # Together wraps the answer to a create call
        batch_id = _plain_id(data.get("id"))
        if batch_id is None:
            raise unusable("the provider returned a batch without an id")
        word = short(data.get("status"), PLAIN_WORD) or ""
        state = _STATES.get(word.lower(), RemoteState.RUNNING)
        counts = fields(data.get("request_counts"))
        outputs = [_plain_id(data.get(name)) for name in ("output_file_id", "error_file_id")]
        failed = state is RemoteState.FAILED
        return RemoteBatch(
            id=batch_id,
            state=state,
            word=word,
            created_at=_moment(data.get("created_at")),
            mark=short(fields(data.get("metadata")).get("sb"), PLAIN_ID),
            file_id=_plain_id(data.get("input_file_id")),
            total=whole(counts.get("total")) or None,  # 0 while the batch is validated
            completed=whole(counts.get("completed")) or 0,
            failed=whole(counts.get("failed")) or 0,
            outputs=tuple(dict.fromkeys(output for output in outputs if output is not None)),
            error=_failure(data.get("errors"), self._errors.secrets) if failed else None,
        )


def _quoted(remote_id: str) -> str:
    return quote(check_id(remote_id, _ID), safe="")


def _is_refusal(reply: Reply) -> bool:
    """False for a gateway's page, which shows nothing about a batch."""
    data = reply.json()
    return bool(error_in(data)) or fields(data).get("object") == "error"


def _next(data: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], after: str | None) -> str | None:
    """Return the parameter of the next page; ``None`` on the last.

    If a server does not report whether there are more pages, pages are requested until one has nothing
    new, because a batch counts as missing only after the whole list was read.
    """
    more = data.get("has_more")
    if not listed or more is False:
        return None
    last = _plain_id(listed[-1].get("id")) or _plain_id(data.get("last_id"))
    if last is None or last == after:
        if more:
            raise _endless()
        return None
    return last


def _endless() -> ProviderError:
    return unusable("the provider's list does not end, so a missing entry may still exist", "endless")


def _plain_id(value: Any) -> str | None:
    """``None`` without an id. An id that is unsafe in a URL is an error."""
    return None if value is None or value == "" else check_id(value, _ID)


def _read_file(data: Mapping[str, Any]) -> RemoteFile:
    file_id = _plain_id(data.get("id"))
    if file_id is None:
        raise unusable("the provider returned a file without an id")
    status = plain(data.get("status")).lower()
    if status in ("error", "failed"):
        raise ProviderError(
            "the provider could not process the input file", kind=ErrorKind.CLIENT_ERROR, code="file_error"
        )
    name = data.get("filename")
    return RemoteFile(
        id=file_id,
        name=name.removesuffix(_INPUT_SUFFIX) if isinstance(name, str) else "",
        size=whole(data.get("bytes")),
        ready=status not in _UNREADY,
    )


def _mark_over_quota(error: ProviderError) -> None:
    if _over_quota(error.code, error.message):
        error.code, error.kind = _QUOTA_CODE, ErrorKind.RATE_LIMIT


def _over_quota(code: str | None, message: str) -> bool:
    return code == _QUOTA_CODE or _QUOTA_TEXT.search(message) is not None


def _failure(errors: Any, secrets: Sequence[str]) -> ProviderError:
    """Create the error of a batch that failed as a whole, from the first of its errors."""
    listed = errors.get("data") if isinstance(errors, dict) else errors
    found = [error_in({"error": each}) for each in (listed if isinstance(listed, list) else [listed])]
    first = found[0] if found else error_in({"error": listed})
    code, message = short(first.get("code"), PLAIN_WORD), first.get("message", "")
    kind = kind_of_code(code, None, message) or ErrorKind.CLIENT_ERROR
    if _over_quota(code, message):
        code, kind = _QUOTA_CODE, ErrorKind.RATE_LIMIT
    line = whole(first.get("line"))
    where = f" in line {line}" if line is not None else ""
    text = safe_text(message, (), *secrets)
    refused: dict[str, None] = {}
    for each in found:
        parameters = refused_parameters(400, each.get("message", ""), each.get("param"), each.get("code"))
        refused |= dict.fromkeys(parameters)
    error = ProviderError(
        f"the batch failed{where} ({code or 'no code'}){f': {text}' if text else ''}",
        kind=kind,
        code=code,
        refused_parameters=tuple(refused),
    )
    return explained(error, listed, secrets)


def _moment(value: Any) -> float | None:
    """Accepts Unix seconds, and RFC 3339 times, which Together sends."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if 0 <= value <= 1e11 else None
    return unix_seconds(value)
