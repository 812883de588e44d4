"""The interface of an emulated API: its paths, keys, requests, replies and errors, and pages of lists.

The request handler performs the same steps for each API: key, path, body, outage, limits, model, fault.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, overload

from attrs import field, frozen

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.ledger import Call
from smartbatch.emulator.limits import LimitExceeded, Limits
from smartbatch.emulator.parsed_requests import ApiError, ModelCall
from smartbatch.emulator.prompt_files import FindUpload
from smartbatch.emulator.settings import EmulatorSettings


class Identified(Protocol):
    """A list item whose ID serves as the cursor."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=Identified)


def parse_limit(text: str, most: int) -> int | None:
    """Return the page size in a query parameter; ``None`` unless it is an integer from 1 to ``most``."""
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= most else None


def position_of(items: Sequence[Identified], cursor: str) -> int | None:
    return next((position for position, item in enumerate(items) if item.id == cursor), None)


def page_after(items: Sequence[Item], limit: int, after: str | None) -> tuple[list[Item], bool] | None:
    """Return one page and whether more items follow; ``None`` if the cursor is not in the list.

    The cursor is the last item of the previous page, so items added at the front in the meantime do not shift
    the pages.

    Args:
        limit: items per page.
        after: ID of the item before the page; ``None`` for the first page.
    """
    begin = 0
    if after is not None:
        position = position_of(items, after)
        if position is None:
            return None
        begin = position + 1
    end = begin + limit
    return list(items[begin:end]), end < len(items)


@frozen
class ServerReply:
    """A response, its timing, and the connection fault that affects it."""

    status: int
    body: bytes | list[bytes]  # the body, or the events of a stream
    headers: list[tuple[str, str]] = field(factory=list)  # all except length and type
    content_type: str = "application/json"
    delay: float = 0.0  # seconds until it is sent
    event_interval: float = 0.0  # seconds between the events of a stream
    # ``reset``, ``reset_before``, ``hang``, ``truncated``, ``stall`` or ``slow_body``; ``None`` for no fault
    damage: str | None = None
    billed: int = 0  # tokens billed after the delay
    cache_saved: float = 0.0  # see :class:`Call`
    call: Call | None = None  # the ledger entry; ``None`` for the emulator's own pages
    # called once the whole reply has been sent
    delivered: Callable[[], None] | None = field(default=None, repr=False)


def json_reply(value: Mapping[str, Any]) -> ServerReply:
    return ServerReply(200, json.dumps(value).encode())


@frozen
class BatchContext:
    """Data that requests about files and batches, and those with uploaded files, need besides the request."""

    backend: BatchBackend
    settings: EmulatorSettings
    now: float  # monotonic seconds; :meth:`BatchBackend.unix` converts them to Unix seconds
    url: str  # the server's address as used by the client, without a path

    def find_upload(self, api: str, key: str) -> FindUpload:
        """Return the function that finds an account's uploaded files, also when a line of a batch runs."""
        return lambda file_id: self.backend.upload(api, key, file_id, self.now)

    @overload
    def rfc3339(self, moment: float) -> str: ...
    @overload
    def rfc3339(self, moment: None) -> None: ...
    def rfc3339(self, moment: float | None) -> str | None:
        """Format monotonic seconds as an RFC 3339 date and time in UTC."""
        if moment is None:
            return None
        return datetime.fromtimestamp(self.backend.unix(moment), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# answers a request; raises ``ApiError`` or ``AnswerLost``
BatchEndpoint: TypeAlias = "Callable[[Head, bytes, BatchContext], ServerReply]"

# parses a head and a decoded body, or raises ``ApiError``
Parse: TypeAlias = "Callable[[Head, Mapping[str, Any]], ModelCall]"


class Api(ABC):
    """One provider's API. Its errors are ``ApiError``, with bodies in the format of the API."""

    max_body: ClassVar[int]  # maximum bytes of a request

    @abstractmethod
    def serves(self, head: Head) -> bool:
        """Whether the request is for this API."""

    @abstractmethod
    def check_key(self, head: Head, settings: EmulatorSettings) -> None:
        """Raise ``ApiError`` for a missing or wrong key."""

    def account(self, head: Head) -> tuple[str, str]:
        """Return the API's name and the caller's key, which own files, batches and prompt caches."""
        return "", head.authorization

    @abstractmethod
    def batch_endpoint(self, head: Head) -> BatchEndpoint | None:
        """Return the function that answers a request about files or batches; ``None`` for other requests.

        The function checks the key itself. Rate limits do not apply to it; outages and connection faults do.
        """

    @abstractmethod
    def find(self, head: Head, body: bytes, context: BatchContext) -> Parse | ServerReply:
        """Return the parser of the request, or the reply to a request that is neither billed nor limited.

        Raises:
            ApiError: the path is unknown, or the method is wrong.
        """

    def error_reply(self, error: ApiError, head: Head) -> ServerReply:  # noqa: ARG002
        """Return the reply for an error raised while the request was answered."""
        return ServerReply(error.status, error.body)

    @abstractmethod
    def too_large(self, limit: int) -> ApiError:
        """Return the error for a body of more than ``limit`` bytes."""

    @abstractmethod
    def parse_body(self, body: bytes) -> dict[str, Any]: ...

    @abstractmethod
    def check_model(self, model: str, settings: EmulatorSettings) -> None: ...

    @abstractmethod
    def overloaded(self) -> ServerReply: ...

    @abstractmethod
    def internal_error(self) -> ServerReply: ...

    @abstractmethod
    def rate_limited(self, exceeded: LimitExceeded, model: str, *, hint: bool) -> ServerReply:
        """Reply to a request above a limit, with the time to wait if ``hint`` is true."""

    @abstractmethod
    def quota_exhausted(self, model: str) -> ServerReply:
        """Reply that the credit or the daily quota is used up."""

    def no_capacity(self) -> ServerReply:
        return self.overloaded()

    @abstractmethod
    def unsupported_tier(self, model: str) -> ApiError:
        """Return the error for a model without the flex tier."""

    def error_event(self) -> bytes:
        body = self.overloaded().body
        assert isinstance(body, bytes)
        return b"data: %b\n\n" % b" ".join(body.split())  # the data of an event has one line

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the headers of every reply. ``seconds`` is the processing time."""
        return []

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:  # noqa: ARG002
        """Return the rate limit headers. ``now`` is monotonic seconds."""
        return []
