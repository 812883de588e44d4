"""Batch API of OpenAI and compatible servers: an uploaded file, one create call, a list and result files.

Other hosts differ as their :class:`~smartbatch.providers.openai.dialect.BatchDialect` describes.
Source: OpenAI's OpenAPI document 2.3.0 and Batch guide (November 2026): 50,000 requests and 200 MB
per batch, results for 30 days, no idempotent create call, no filter in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from attrs import evolve

from smartbatch.errors import ErrorKind, InvalidRequest, ProviderError
from smartbatch.providers.batch_api import (
    BatchAbilities,
    BatchPage,
    Creation,
    Line,
    LineOutcome,
    RemoteBatch,
    RemoteKind,
)
from smartbatch.providers.error_reader import ErrorReader, error_in
from smartbatch.providers.foreign_text import fields, http_date
from smartbatch.providers.http.batch_calls import BatchCalls, page_of
from smartbatch.providers.http.content import SpooledBody, encode_json
from smartbatch.providers.http.replies import Reply, joined
from smartbatch.providers.openai.answers import read_line
from smartbatch.providers.openai.batch_files import FileCalls, FileInputs
from smartbatch.providers.openai.batch_reader import (
    MARK_FIELD,
    NAME_PREFIX,
    has_mark,
    mark_over_quota,
    next_page,
    quoted,
    read_batch,
)
from smartbatch.providers.openai.bodies import dropped_of
from smartbatch.providers.openai.dialect import BatchDialect
from smartbatch.providers.openai.errors import ServerParameters
from smartbatch.providers.openai.result_pages import lines_of_batch, lines_of_pages
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Kind, Request

if TYPE_CHECKING:
    from smartbatch.providers.http.requests_bridge import RequestsSession

_JSON = {"Content-Type": "application/json"}
_MAX_INLINE_BYTES = 1 << 30  # of a batch with its results
# of a create call with the requests in it: names, a model of up to 256 characters, an address of up to 2,000
_OVERHEAD_BYTES = 4096


class OpenAIBatches(FileInputs):
    """The Batch API of an :class:`~smartbatch.providers.openai.provider.OpenAIProvider`.

    Args:
        session: returns this process's session, over a transport for batches.
        errors: creates the errors.
        name, scope: as in :class:`~smartbatch.providers.batch_api.BatchApi`.
        api: ``chat`` or ``responses``, used for generations.
        body: builds the body of a call, as in real time.
        parameters: the parameters that the server accepts.
        caching: returns how the server caches prefixes of prompts to a model.
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
        caching: Callable[[str], CachingRules | None],
        dialect: BatchDialect,
    ) -> None:
        self.name = name
        self.scope = scope
        self.abilities = BatchAbilities(
            max_requests=dialect.max_requests,
            max_bytes=dialect.max_bytes,
            kinds=dialect.kinds,
            files=not dialect.inline,
            labels=dialect.labels,
            fence=not dialect.inline,
            newest_first=dialect.newest_first,
            cancels=dialect.cancel is not None,
            retention=dialect.retention,
            storage=dialect.storage,
            input_files=dialect.input_files,
            result_files=dialect.results == "files",
            deletes=_deleted_by(dialect),
        )
        self._session = session
        self._errors = errors
        self._calls = BatchCalls(errors, self._is_refusal, self._read, refine=mark_over_quota)
        self._files = FileCalls(session, errors, self._calls, dialect)
        self._api = api
        self._body = body
        self._parameters = parameters
        self._caching = caching
        self._dialect = dialect

    # -- input -----------------------------------------------------------------------------------------------

    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        body = self._body((request,), model)
        if "model" in self._dialect.create:
            del body["model"]
        line = {
            "custom_id": wire_id,
            "method": "POST",
            "url": self._endpoint(Kind.GENERATE if request.embedding is None else Kind.EMBED),
            "body": body,
        }
        return encode_json({name: line[name] for name in self._dialect.line})

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:
        if request.embedding is not None:
            return dropped_of(request.embedding)
        if request.params.seed is None:
            return ()
        return self._parameters.dropped(request, self._body((request,), model))

    def caching(self, *, model: str) -> CachingRules | None:
        return self._caching(model)

    def omitted(self, *, model: str) -> tuple[str, ...]:
        return self._parameters.omitted(model)

    def overhead(self, size: int) -> int:  # noqa: ARG002
        return _OVERHEAD_BYTES if self._dialect.inline else 0

    # -- batches ---------------------------------------------------------------------------------------------

    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        values = {
            "file": creation.file_id,
            "files": [creation.file_id],
            "endpoint": self._endpoint(creation.kind),
            "model": creation.model,
            "window": self._dialect.window,
            "hours": self._dialect.window_hours if "hours" in self._dialect.create.values() else None,
            "metadata": {MARK_FIELD: creation.mark, "sbn": str(creation.size)},
            "name": NAME_PREFIX + creation.mark,
            "callback": creation.callback_url,
        }
        wanted = {
            field: values[value] if isinstance(value, str) else value
            for field, value in self._dialect.create.items()
            if value != "callback" or creation.callback_url is not None
        }
        headers = {"Idempotency-Key": creation.mark}
        if not self._dialect.inline:
            if creation.file_id is None:
                raise InvalidRequest("the batch needs an uploaded file", field="file_id")
            reply = self._session().ask("POST", self._dialect.path, timeout, json=wanted, headers=headers)
        else:
            if creation.lines is None:
                raise InvalidRequest("the batch needs its requests", field="lines")
            before = encode_json(wanted).removesuffix(b"}") + b',"requests":['
            body = SpooledBody(creation.lines, before=before, after=b"]}", between=b",")
            reply = self._session().ask(
                "POST", self._dialect.path, timeout, data=body, headers=headers | _JSON
            )
        try:
            return self._calls.created(reply)
        except ProviderError as error:
            meaning = self._parameters.learn(error)
            if meaning is error:
                raise
            raise meaning from None

    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        reply = self._fetched(batch_id, timeout)
        if self._calls.gone(reply):
            return None
        batch = self._read(self._errors.decode(reply), http_date(reply.headers.get("date")))
        error = None if batch.error is None else self._parameters.learn(batch.error)
        # LiteLLM may return the id of the service behind it, which it later does not recognize.
        return evolve(batch, id=batch_id, error=error)

    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Unreadable batches are skipped unless they have a mark of this library."""
        dialect = self._dialect
        query = dict(dialect.list_query)
        if after is not None:
            query[dialect.cursor or "after"] = after.partition(" ")[0]
        reply = self._session().ask("GET", dialect.path, timeout, params=query)
        bare = reply.json() if reply.ok and dialect.listed is None else None
        data, found = (
            ({}, bare) if isinstance(bare, list) else self._calls.listed(reply, dialect.listed or "data")
        )
        listed = [each for each in found if isinstance(each, dict)]
        batches = []
        for each in listed:
            try:
                batches.append(self._read(each))
            except ProviderError:
                if has_mark(each):
                    raise
        return page_of(reply, batches, next_page(data, listed, after, dialect))

    def cancel(self, batch_id: str, timeout: float) -> None:
        """A 400 or 409 means that the batch has ended.

        Raises:
            ProviderError: the host cannot cancel batches, or refused to.
        """
        if self._dialect.cancel is None:
            raise ProviderError(f"{self.name} cannot cancel batches", kind=ErrorKind.CLIENT_ERROR)
        path = f"{self._path(batch_id)}{self._dialect.cancel}"
        reply = self._session().ask("POST", path, timeout, headers=_JSON)
        if reply.status not in (400, 409) or not self._is_refusal(reply):
            self._calls.checked(reply)

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        self._calls.gone(self._session().ask("DELETE", self._path(batch_id), timeout))

    # -- results ---------------------------------------------------------------------------------------------

    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:  # noqa: ARG002
        session, results = self._session(), self._dialect.results
        if results == "pages":
            path = f"{self._path(output)}/results"
            yield from lines_of_pages(session, self._calls, self._dialect, path, timeout)
        elif results == "inline":
            yield from lines_of_batch(self._calls.decoded(self._fetched(output, timeout)))
        else:
            url = session.url_of(f"/files/{quoted(output)}/content")
            begin = partial(session.begin, "GET")
            yield from self._calls.result_pieces(begin, url, timeout)

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

    def _path(self, batch_id: str) -> str:
        return f"{self._dialect.path}/{quoted(batch_id)}"

    def _fetched(self, batch_id: str, timeout: float) -> Reply:
        """An ended batch may contain its results, which exceed the maximum size of other answers."""
        live = self._session().begin("GET", self._path(batch_id), timeout)
        if self._dialect.results != "inline" or live.status != 200:
            return live.whole()
        return Reply(live.status, live.headers, joined(live.pieces(_MAX_INLINE_BYTES)))

    def _read(self, data: Mapping[str, Any], now: float | None = None) -> RemoteBatch:
        return read_batch(data, self._dialect, self._errors.secrets, now)

    def _is_refusal(self, reply: Reply) -> bool:
        """False for a gateway's page, which shows nothing about a batch."""
        data = reply.json()
        if self._dialect.detail_errors and "detail" in fields(data):
            return True
        return bool(error_in(data)) or fields(data).get("object") == "error"


def _deleted_by(dialect: BatchDialect) -> frozenset[RemoteKind]:
    kinds = {
        RemoteKind.INPUT: not dialect.inline,
        RemoteKind.OUTPUT: dialect.results == "files",
        RemoteKind.BATCH: dialect.deletes,
    }
    return frozenset(kind for kind, deletes in kinds.items() if deletes)
