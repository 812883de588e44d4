"""The interface of every provider's Batch API: files, batches, lists and result lines.

An adapter of this kind imports types and errors only. It makes one remote call a method, within a total
deadline; it never retries, waits, logs or decides. What it raises is turned into a
:class:`~smartbatch.errors.ProviderError` by :meth:`BatchApi.classify`; whether a create may have happened
although no answer came is :attr:`~smartbatch.errors.ProviderError.maybe_billed`.
"""

from __future__ import annotations

import enum
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.http.content import decode_answer
from smartbatch.types import Answer, Kind, Request


@frozen
class BatchAbilities:
    """What a provider's Batch API can do, and how much of it."""

    max_requests: int  # most requests of one batch
    max_bytes: int  # most bytes of one batch's input
    kinds: frozenset[Kind] = frozenset({Kind.GENERATE})  # what can be asked for in a batch
    # True when the input is a file that is uploaded before the create; False when it is sent inline
    files: bool = True
    labels: bool = True  # True when a batch shows the mark it was created with, also in the list
    # True when a create that names a deleted input file is refused, so that an attempt can be ended for
    # certain
    fence: bool = True
    counts: bool = True  # True when a batch that is running tells how many of its requests are done
    retention: float = 29 * 86_400.0  # seconds after the create for which results can be fetched
    priced: bool = True  # False where batches cost nothing by nature, so that a missing price is not an error


class RemoteState(enum.Enum):
    """Where a remote batch stands. A state no adapter knows is :attr:`RUNNING`: not finished."""

    RUNNING = "running"
    ENDING = "ending"
    """Cancelled or finalizing; what comes is not settled yet."""
    COMPLETED = "completed"
    """Ended by itself; every output is there."""
    FAILED = "failed"
    """Refused at validation, or failed as a whole. Outputs may exist all the same and are read."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True in every terminal state."""
        return self not in (RemoteState.RUNNING, RemoteState.ENDING)


@frozen
class RemoteFile:
    """An uploaded file."""

    id: str  # the provider's id
    name: str  # the name it was uploaded under
    size: int | None = None  # bytes, where the provider says so
    ready: bool = True  # False while the provider still processes it


@frozen
class RemoteBatch:
    """A provider's batch, as the provider last described it."""

    id: str  # the provider's id; checked against a pattern, so it is safe in URLs, SQL and file names
    state: RemoteState  # see :class:`RemoteState`
    word: str = ""  # the provider's own word for the state
    created_at: float | None = None  # Unix seconds by the provider's clock; ``None`` where unknown
    mark: str | None = None  # the nonce it was created with, where the provider shows it
    file_id: str | None = None  # the input file, where the provider shows it
    total: int | None = None  # how many requests it has; ``None`` where unknown
    completed: int = 0  # how many are done so far, as far as the provider tells
    failed: int = 0
    # where its results are, in a form of the adapter's own; all of them are to be read
    outputs: tuple[str, ...] = ()
    error: ProviderError | None = None  # why it failed as a whole, scrubbed; ``None`` when it did not

    @property
    def reason(self) -> str | None:
        """The text of :attr:`error`."""
        return self.error.message if self.error else None

    @property
    def code(self) -> str | None:
        """The provider's code of :attr:`error`, such as ``token_limit_exceeded``."""
        return self.error.code if self.error else None


@frozen
class BatchPage:
    """Some batches of a scope, newest first."""

    batches: tuple[RemoteBatch, ...]  # as the provider listed them
    next: str | None = None  # what to ask the next page with; ``None`` on the last
    server_time: float | None = None  # Unix seconds of the answer's ``Date`` header, where there is one


@frozen
class Creation:
    """The arguments of one create."""

    mark: str  # the attempt's nonce; sent in a field that the provider shows again
    model: str  # without the provider's prefix
    kind: Kind  # what all its requests ask for
    size: int  # how many requests there are
    file_id: str | None = None  # the uploaded input; ``None`` for an inline create
    # the spooled input for an inline create: a file of the lines :meth:`BatchApi.encode` made
    lines: Path | None = None


class LineOutcome(enum.Enum):
    """What became of one request of a batch."""

    OK = "ok"
    FAILED = "failed"
    """An error that asking again would repeat."""
    RETRY = "retry"
    """An error that may be gone the next time: server errors, overload, time-outs, status 0."""
    UNRUN = "unrun"
    """Never executed and not billed: expired, cancelled."""


@frozen
class Line:
    """One line of a batch's results, understood."""

    wire_id: str  # the id the request was sent with
    outcome: LineOutcome  # see :class:`LineOutcome`
    answer: Answer | None = None  # for ``OK``
    error: ProviderError | None = None  # for the others; usage it was billed for is in ``error.usage``


class BatchApi(ABC):
    """One provider's Batch API. Safe to use from several threads."""

    name: str  # the provider's prefix
    # as :attr:`Provider.scope <smartbatch.providers.base.Provider.scope>`: which account, server,
    # organisation. Batches of one scope are visible to it alone.
    scope: str
    abilities: BatchAbilities  # see :class:`BatchAbilities`

    # -- input -----------------------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, request: Request, *, model: str, wire_id: str) -> bytes:
        """Return ``request`` as one line of a batch's input, without a line end; deterministic.

        Args:
            request: with all its parameters.
            model: without the prefix.
            wire_id: 1 to 64 of ``[a-zA-Z0-9_-]``.
        """

    def dropped(self, request: Request, *, model: str) -> tuple[tuple[str, str], ...]:  # noqa: ARG002
        """Return the parameters of ``request`` that :meth:`encode` leaves out, each with the reason."""
        return ()

    def omitted(self, *, model: str) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of parameters that :meth:`encode` leaves out, as the server rejected them."""
        return ()

    def overhead(self, size: int) -> int:  # noqa: ARG002
        """Return the bytes a batch of ``size`` requests has besides its lines and their ends."""
        return 0

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload ``source`` under ``name``; only called where ``abilities.files``.

        Where the client chooses a file's id, a name that is taken returns the file that has it.
        """
        raise NotImplementedError(f"{self.name} takes no files")

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        """Return the file uploaded under ``name``, or ``None`` when there certainly is none now."""
        raise NotImplementedError(f"{self.name} takes no files")

    def delete_file(self, file_id: str, timeout: float) -> None:
        """Delete a file; one that is gone already is a success."""
        raise NotImplementedError(f"{self.name} takes no files")

    # -- batches ---------------------------------------------------------------------------------------------

    @abstractmethod
    def create(self, creation: Creation, timeout: float) -> RemoteBatch:
        """Create a batch with exactly one request on the wire, on a fresh connection.

        Raises:
            ProviderError: from :meth:`classify`; ``maybe_billed`` is False only when the batch certainly does
                not exist: nothing was sent, or a well-formed refusal came
                (400, 401, 403, 404, 405, 413, 422, 429, 501).
        """

    @abstractmethod
    def get(self, batch_id: str, timeout: float) -> RemoteBatch | None:
        """Return the batch, or ``None`` when the provider says there is none of that id."""

    @abstractmethod
    def page(self, after: str | None, timeout: float) -> BatchPage:
        """Return a page of the scope's batches, newest first; ``after`` is the last page's ``next``."""

    @abstractmethod
    def cancel(self, batch_id: str, timeout: float) -> None:
        """Ask to cancel; one that has ended already is a success."""

    def delete_batch(self, batch_id: str, timeout: float) -> None:
        """Delete what the provider keeps of an ended batch besides files; nothing where there is nothing."""

    def output_files(self, batch: RemoteBatch) -> Sequence[str]:  # noqa: ARG002
        """Return the ids of the files with results, for the cleanup."""
        return ()

    # -- results ---------------------------------------------------------------------------------------------

    @abstractmethod
    def download(self, batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:
        """Yield pieces of one of ``batch.outputs``, as they come; the caller closes the iterator.

        ``timeout`` counts for the whole download. An early end raises.
        """

    @abstractmethod
    def read_line(self, line: bytes, kind: Kind) -> Line:
        """Understand one line of results.

        Raises:
            ValueError: for what is no such line: cut, garbled, without an id.
        """

    # -- errors ----------------------------------------------------------------------------------------------

    def classify(self, error: Exception) -> ProviderError:
        """Return the meaning of what a method raised."""
        if isinstance(error, ProviderError):
            return error
        return ProviderError(f"the batch call failed ({type(error).__name__})", maybe_billed=True)


def enqueued_limit(reason: str | None) -> float:
    """Return the enqueued-token limit an error text names, or infinity.

    OpenAI: ``Enqueued token limit reached for MODEL … Limit: N enqueued tokens.``
    """
    found = re.search(r"[Ll]imit:\s*([\d,]+)\s*enqueued", reason or "")
    return float(found.group(1).replace(",", "")) if found else math.inf


_WIRE_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FINAL = frozenset({ErrorKind.CLIENT_ERROR, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR})


class NotRun(Exception):
    """Says that a request of a batch was never run; its argument is the error that says why."""


def not_run(ended: Literal["cancelled", "expired"]) -> NotRun:
    """Return what says that a batch ended so before a request was run."""
    how = "was cancelled" if ended == "cancelled" else "expired"
    text = f"the batch {how} before this request was run; it was not billed"
    return NotRun(ProviderError(text, kind=ErrorKind.SERVER_ERROR, code=f"batch_{ended}"))


def line_of(line: bytes, id_field: str, read: Callable[[dict[str, Any]], Answer]) -> Line:
    """Understand one line of results, with or without its end.

    An error's kind says whether to ask again. Without money nothing was run, and nothing is wrong with the
    request: it stays open.

    Args:
        line: JSON, as it came.
        id_field: holds the id that the request was sent with.
        read: returns the answer in the decoded line, or raises a ``ProviderError`` or :class:`NotRun`.

    Raises:
        ValueError: for what is no JSON object with an id of the kind that is sent.
    """
    wire_id, data = _decoded(line, id_field)
    try:
        return Line(wire_id, LineOutcome.OK, answer=read(data))
    except NotRun as ended:
        return Line(wire_id, LineOutcome.UNRUN, error=ended.args[0])
    except ProviderError as error:
        outcome = LineOutcome.FAILED if error.kind in _FINAL else LineOutcome.RETRY
        if error.kind is ErrorKind.NO_MONEY:
            outcome = LineOutcome.UNRUN
        return Line(wire_id, outcome, error=error.with_traceback(None))  # its frames hold the line


def _decoded(line: bytes, id_field: str) -> tuple[str, dict[str, Any]]:
    try:
        data = decode_answer(line)
    except RecursionError as error:
        raise ValueError(f"the line {error}") from None
    except ValueError:
        # not chained: the decoder's error holds the whole line
        raise ValueError("the line is no JSON") from None
    if not isinstance(data, dict):
        raise ValueError("the line is no JSON object")
    found = data.get(id_field)
    if not isinstance(found, str) or not _WIRE_ID.fullmatch(found):
        raise ValueError("the line has no id that was ever sent")
    return found, data
