"""The interface of every provider's Batch API: files, batches, lists and result lines.

An adapter imports only types and errors. Each method makes one remote call within a total
deadline; it never retries, waits, logs or decides. :meth:`BatchApi.classify` converts every
exception to a :class:`~smartbatch.errors.ProviderError`, whose ``maybe_billed`` is True if a
create call may have succeeded although no answer arrived.
"""

from __future__ import annotations

import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from smartbatch.errors import ErrorKind, ProviderError, as_provider_error
from smartbatch.providers.http.content import decode_answer
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Answer, Kind, Request


class RemoteKind(enum.Enum):
    """What a provider stores."""

    INPUT = "input"
    OUTPUT = "output"  # a file of results or of errors
    BATCH = "batch"
    UPLOAD = "upload"  # a file that prompts refer to; see FileApi
    CACHE = "cache"  # an explicit prompt cache; see CacheApi


@frozen
class BatchAbilities:
    max_requests: int  # per batch
    max_bytes: int  # per batch input
    kinds: frozenset[Kind] = frozenset({Kind.GENERATE})
    files: bool = True  # True if the input is uploaded before the create call, False if that call contains it
    labels: bool = True  # batches, including listed ones, show the mark they were created with
    fence: bool = True  # a create call that names a deleted input file is refused
    newest_first: bool = True  # lists of batches begin with the newest
    cancels: bool = True  # running batches can be cancelled
    counts: bool = True  # a running batch reports how many requests are done
    retention: float = 29 * 86_400.0  # seconds from the create call until results expire
    storage: float = math.inf  # bytes that an account may store in files
    input_files: float = math.inf  # number of uploaded inputs that an account may store
    result_files: bool = True  # results are files, not part of the batch
    deletes: frozenset[RemoteKind] = frozenset(RemoteKind)  # what can be deleted before it expires
    priced: bool = True  # False if batches never cost anything, so that a missing price is not an error


class RemoteState(enum.Enum):
    """An unknown state counts as :attr:`RUNNING`."""

    RUNNING = "running"
    ENDING = "ending"  # cancelled or finalizing; the outcome is still open
    COMPLETED = "completed"  # all outputs are available
    FAILED = "failed"  # refused at validation, or failed as a whole; existing outputs are read
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (RemoteState.RUNNING, RemoteState.ENDING)


@frozen
class RemoteFile:
    id: str
    name: str  # name given at upload
    size: int | None = None  # bytes, if reported
    ready: bool = True  # False while the provider still processes it
    expires_at: float = math.inf  # Unix seconds, if reported


@frozen
class RemoteBatch:
    """A batch in its last reported state."""

    id: str  # matches a pattern that is safe in URLs, SQL and file names
    state: RemoteState
    word: str = ""  # the provider's own name for the state
    created_at: float | None = None  # Unix seconds by the provider's clock
    mark: str | None = None  # nonce of its creation, if shown
    file_id: str | None = None  # input file, if shown
    total: int | None = None  # number of requests
    completed: int = 0  # requests answered so far, if reported
    failed: int = 0  # requests failed so far, if reported
    outputs: tuple[str, ...] = ()  # result locations in the adapter's own format
    error: ProviderError | None = None  # scrubbed reason, if the batch failed as a whole

    @property
    def reason(self) -> str | None:
        return self.error.message if self.error else None

    @property
    def code(self) -> str | None:
        """The provider's code of :attr:`error`, such as ``token_limit_exceeded``."""
        return self.error.code if self.error else None


@frozen
class BatchPage:
    """A page of a scope's batches, newest first if ``abilities.newest_first``."""

    batches: tuple[RemoteBatch, ...]
    next: str | None = None  # token of the next page; None on the last page
    server_time: float | None = None  # Unix seconds from the answer's Date header


@frozen
class Creation:
    mark: str  # nonce of the attempt, sent in a field that the provider returns with the batch
    model: str  # without the provider's prefix
    kind: Kind
    size: int  # number of requests
    file_id: str | None = None  # uploaded input; None if the lines are sent inline
    lines: Path | None = None  # file with lines from BatchApi.encode, if they are sent inline
    # address for an event when the batch ends, if the provider sends events of single batches
    callback_url: str | None = field(default=None, repr=False)


class LineOutcome(enum.Enum):
    OK = "ok"
    FAILED = "failed"  # an error that would recur
    RETRY = "retry"  # an error that may not recur: server errors, overload, timeouts, status 0
    UNRUN = "unrun"  # never run and not billed: expired or cancelled


@frozen
class Line:
    """One line of a batch's results."""

    wire_id: str  # id sent with the request
    outcome: LineOutcome
    answer: Answer | None = None  # set if the outcome is OK
    error: ProviderError | None = None  # set for all other outcomes; billed usage is in error.usage


class BatchApi(ABC):
    """A provider's Batch API. Safe to use from several threads."""

    name: str  # the provider's prefix
    # account, server and organization, as in Provider.scope; batches of other scopes are not visible
    scope: str
    abilities: BatchAbilities

    # -- input -----------------------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        """Encode ``request`` as one line of batch input, without a line end.

        Equal arguments give equal bytes.

        Args:
            request: with all its parameters; ``cache`` is set only if :meth:`caching` returns rules.
            model: without the prefix.
            wire_id: 1 to 64 characters from ``[a-zA-Z0-9_-]``.
        """

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:  # noqa: ARG002
        """Return the parameters that :meth:`encode` leaves out of ``request``, with the reasons."""
        return ()

    def caching(self, *, model: str) -> CachingRules | None:  # noqa: ARG002
        """Return how batches cache prefixes of prompts; ``None`` if requests must not be marked."""
        return None

    def omitted(self, *, model: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return the parameters that :meth:`encode` leaves out because the server rejected them."""
        return ()

    def overhead(self, size: int) -> int:  # noqa: ARG002
        """Return the bytes of a batch of ``size`` requests in addition to its lines and line ends."""
        return 0

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload ``source`` under ``name``; only used if ``abilities.files``.

        If the client chooses file ids and the name is taken, the existing file is returned.
        """
        raise NotImplementedError(f"{self.name} does not accept files")

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        """Return the file uploaded under ``name``; ``None`` if it certainly does not exist."""
        raise NotImplementedError(f"{self.name} does not accept files")

    def delete_file(self, file_id: str, timeout: float) -> None:
        """Delete a file. A missing file counts as deleted."""
        raise NotImplementedError(f"{self.name} does not accept files")

    # -- batches ---------------------------------------------------------------------------------------------

    @abstractmethod
    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """Create a batch with exactly one HTTP request, on a fresh connection.

        Raises:
            ProviderError: ``maybe_billed`` is False only if the batch certainly does not exist: nothing
                was sent, or a well-formed refusal arrived (400, 401, 403, 404, 405, 413, 422, 429, 501).
        """

    @abstractmethod
    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return the batch; ``None`` if the provider reports that it does not exist."""

    @abstractmethod
    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return a page of the scope's batches; ``after`` is the last page's ``next``."""

    @abstractmethod
    def cancel(self, batch_id: str, timeout: float) -> None:
        """Request cancellation; succeeds if the batch has already ended."""

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        """Delete an ended batch without its files. A missing batch counts as deleted."""
        raise NotImplementedError(f"{self.name} does not delete batches")

    def delete_output(self, output: str, timeout: float) -> None:
        """Delete the file at one of a batch's outputs. A missing file counts as deleted."""
        self.delete_file(output, timeout)

    # -- results ---------------------------------------------------------------------------------------------

    @abstractmethod
    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:
        """Yield pieces of one of ``batch.outputs`` as they arrive; the caller closes the iterator.

        ``timeout`` applies to the whole download. A truncated download raises.
        """

    @abstractmethod
    def read_line(self, line: bytes, kind: Kind) -> Line:
        """Parse one line of results.

        Raises:
            ValueError: the line is truncated, garbled or has no id.
        """

    # -- errors ----------------------------------------------------------------------------------------------

    def classify(self, error: Exception) -> ProviderError:
        """Convert an exception that a method raised."""
        return as_provider_error(error, "the batch call")


def enqueued_limit(reason: str | None) -> float:
    """Read the enqueued-token limit from an error; infinity if there is none.

    OpenAI's text: ``Enqueued token limit reached for MODEL … Limit: N enqueued tokens.``
    """
    found = re.search(r"[Ll]imit:\s*([\d,]+)\s*enqueued", reason or "")
    return float(found.group(1).replace(",", "")) if found else math.inf


_WIRE_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FINAL = frozenset({ErrorKind.CLIENT_ERROR, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR})


class NotRun(Exception):
    """A batch request was never run. The argument is the error with the reason."""


def not_run(ended: Literal["cancelled", "expired"]) -> NotRun:
    how = "was cancelled" if ended == "cancelled" else "expired"
    text = f"the batch {how} before this request was run; it was not billed"
    return NotRun(ProviderError(text, kind=ErrorKind.SERVER_ERROR, code=f"batch_{ended}"))


def line_of(line: bytes, id_field: str, read: Callable[[dict[str, Any]], Answer]) -> Line:
    """Parse one line of results, with or without its line end.

    The kind of an error determines whether the request is sent again. If the account has no credit,
    nothing was run and the request is valid, so it remains open.

    Args:
        line: JSON.
        id_field: name of the field with the request's id.
        read: parses the decoded line, or raises a ``ProviderError`` or :class:`NotRun`.

    Raises:
        ValueError: the line is not a JSON object with a valid id.
    """
    try:
        data = decode_answer(line)
    except RecursionError as error:
        raise ValueError(f"the line {error}") from None
    except ValueError:  # not chained: the decoder's error contains the line
        raise ValueError("the line is not JSON") from None
    if not isinstance(data, dict):
        raise ValueError("the line is not a JSON object")
    wire_id = data.get(id_field)
    if not isinstance(wire_id, str) or not _WIRE_ID.fullmatch(wire_id):
        raise ValueError("the line has no request id")
    try:
        return Line(wire_id, LineOutcome.OK, answer=read(data))
    except NotRun as ended:
        return Line(wire_id, LineOutcome.UNRUN, error=ended.args[0])
    except ProviderError as error:
        outcome = LineOutcome.FAILED if error.kind in _FINAL else LineOutcome.RETRY
        if error.kind is ErrorKind.NO_MONEY:
            outcome = LineOutcome.UNRUN
        return Line(wire_id, outcome, error=error.with_traceback(None))  # the traceback contains the line
