"""The transport of Batch APIs: few calls, each over its own connection, and no guess at what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from urllib3.connectionpool import HTTPConnectionPool

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.http.connections import Connection
from smartbatch.providers.http.cutoff import Cutoff
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.spooled_body import SpooledBody
from smartbatch.providers.http.transport import Transport

__all__ = [
    "DEFINITE",
    "MAX_DOWNLOAD",
    "BatchTransport",
    "check_id",
    "garbled",
    "is_gone",
    "results_of",
    "weighed",
]

MAX_DOWNLOAD = 16 * 1024**3
"""Most bytes of one file of results: 100,000 long answers stay far below it, an endless body ends here."""

DEFINITE = frozenset({400, 401, 403, 404, 413, 422, 429})
"""Statuses of a provider's own error that say for certain that nothing was created."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class BatchTransport(Transport):
    """A transport whose connections are used once, and whose errors never say "not billed" by guess.

    A connection that was kept may be dead although nobody noticed; a create must not find that out. And where
    a single byte of a request was written, what became of it counts as unknown.
    """

    def begin(
        self, head: bytes, body: bytes | SpooledBody, timeout: float, cutoff: Cutoff | None = None
    ) -> LiveReply:
        """As :meth:`Transport.begin`; a success may be compressed, and as large as :data:`MAX_DOWNLOAD`."""
        live = super().begin(head, body, timeout, cutoff)
        live.inflates = True
        if live.status == 200:
            live.cap = MAX_DOWNLOAD
        return live

    def release(self, pool: HTTPConnectionPool, connection: Connection, *, reusable: bool) -> None:  # noqa: ARG002
        """Close the connection; the next call makes its own."""
        super().release(pool, connection, reusable=False)

    def verdict(self, error: Exception, connection: Connection, *, ended: bool = False) -> ProviderError:
        """As :meth:`Transport.verdict`; unknown from the first byte on."""
        found = super().verdict(error, connection, ended=ended)
        found.maybe_billed = connection.step != "connect"
        return found


def check_id(value: Any, form: re.Pattern[str] = _ID, what: str = "an id of the provider's") -> str:
    """Return a provider's id that may be used in URLs and file names.

    Args:
        value: what stands where the id should.
        form: of all such ids.
        what: its name in the error's text.

    Raises:
        ProviderError: ``INVALID_RESPONSE`` for anything else; the text does not repeat it.
    """
    if isinstance(value, str) and form.fullmatch(value):
        return value
    raise ProviderError(
        f"{what} is missing or has characters no id has; it is not used",
        kind=ErrorKind.INVALID_RESPONSE,
        code="id",
    )


def garbled(text: str, code: str = "shape") -> ProviderError:
    """Return the error for an answer that is not what the API promises."""
    return ProviderError(text, kind=ErrorKind.INVALID_RESPONSE, status=200, code=code, maybe_billed=True)


def results_of(live: LiveReply) -> Iterator[bytes]:
    """Yield a file of results as it comes, and close it.

    Raises:
        ProviderError: for a web page, which would count as results without a single readable line; and for a
            body that is cut, stalls or is too large.
    """
    try:
        if live.headers.get("content-type", "").startswith("text/html"):
            raise garbled("a web page came back instead of results: sign in to the network", "html")
        yield from live
    finally:
        live.close()


def is_gone(error: ProviderError) -> bool:
    """True for the provider's own 404 (see :func:`weighed`): there is no such thing."""
    return error.status == 404 and not error.maybe_billed


def weighed(error: ProviderError, status: int, *, own: bool) -> ProviderError:
    """Return the error of a refusal, which says for certain that nothing was created, or leaves it open.

    Args:
        error: the meaning of the refusal.
        status: its HTTP status.
        own: True when its body is an error in the provider's form, and not some gateway's.
    """
    error.maybe_billed = not own or status not in DEFINITE
    return error
