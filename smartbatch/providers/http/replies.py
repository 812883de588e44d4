"""HTTP answers as they came, read whole up to a cap on their decoded size."""

from __future__ import annotations

import http.client
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.types import LimitReport, Usage

__all__ = [
    "MAX_BODY",
    "Reply",
    "broken",
    "encoded_otherwise",
    "headers_of",
    "inflate",
    "inflated",
    "invalid_response",
    "read_body",
    "redirected",
    "too_large",
]

MAX_BODY = 64 * 1024 * 1024
"""Most bytes of a decoded answer; a gzip bomb or an endless body ends here."""

_PIECE = 65536


@frozen
class Reply:
    """An HTTP answer as it came.

    Attributes:
        status: the HTTP status.
        headers: by lower-case name.
        body: decoded bytes.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body decoded; ``None`` where it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def headers_of(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return an answer's headers by lower-case name."""
    return {name.lower(): value for name, value in response.headers.items()}


def read_body(response: http.client.HTTPResponse, cap: int) -> bytes:
    """Return the undecoded body. A cut one is an error, except in a refusal, whose status says enough."""
    try:
        if response.length is not None and not response.chunked:
            if response.length > cap:
                raise too_large(cap)
            return response.read()
        data = response.read(cap + 1)
    except http.client.IncompleteRead:
        if response.status < 400:
            raise
        response.will_close = True
        return b""
    if len(data) > cap:
        raise too_large(cap)
    return data


def inflate(data: bytes, encoding: str, cap: int) -> bytes:
    """Decode a gzip or deflate body to at most ``cap`` bytes.

    Raises:
        ProviderError: for a broken, cut or too large body, or an unknown encoding.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return data
    if name not in ("gzip", "x-gzip", "deflate"):
        raise encoded_otherwise()
    decoder = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told apart by the header
    try:
        plain = decoder.decompress(data, cap + 1)
    except zlib.error:
        plain = b""
    if len(plain) > cap:
        raise too_large(cap)
    if not decoder.eof:
        raise broken()
    return plain


def inflated(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield a body decoded as it comes, in pieces of at most 64 kB where it is compressed; some are empty.

    Raises:
        ProviderError: for a broken or cut body, or an unknown encoding.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        yield from pieces
        return
    if name not in ("gzip", "x-gzip", "deflate"):
        raise encoded_otherwise()
    decoder = zlib.decompressobj(wbits=47)
    for piece in pieces:
        while piece:
            try:
                yield decoder.decompress(piece, _PIECE)
            except zlib.error:
                raise broken() from None
            piece = decoder.unconsumed_tail
    yield decoder.flush()
    if not decoder.eof:
        raise broken()


def invalid_response(
    status: int,
    code: str,
    text: str,
    usage: Usage | None = None,
    *,
    request_id: str | None = None,
    limits: LimitReport | None = None,
) -> ProviderError:
    """Return the error for an answer that has not the shape the API promises."""
    return ProviderError(
        text,
        kind=ErrorKind.INVALID_RESPONSE,
        status=status,
        code=code,
        provider_request_id=request_id,
        maybe_billed=status < 300,
        usage=usage,
        limits=limits,
    )


def redirected(
    status: int, *, request_id: str | None = None, limits: LimitReport | None = None
) -> ProviderError:
    """Return the error for an answer that sends us elsewhere, where the key must not go."""
    text = f"the server answered {status}: redirects are not followed, make its target the base URL"
    return invalid_response(status, "redirect", text, request_id=request_id, limits=limits)


def encoded_otherwise() -> ProviderError:
    """Return the error for an answer that is compressed in a way nobody asked for."""
    return ProviderError(
        "the answer has a content encoding that was not asked for",
        kind=ErrorKind.INVALID_RESPONSE,
        code="encoding",
        maybe_billed=True,
    )


def broken() -> ProviderError:
    """Return the error for a compressed answer that is cut or garbled."""
    return ProviderError(
        "the compressed answer is broken or did not arrive whole",
        kind=ErrorKind.NETWORK_ERROR,
        code="truncated",
        maybe_billed=True,
    )


def too_large(cap: int) -> ProviderError:
    """Return the error for an answer above ``cap`` bytes."""
    return ProviderError(
        f"the answer is larger than max_body={cap} bytes; raise it if that is expected",
        kind=ErrorKind.INVALID_RESPONSE,
        code="too_large",
        maybe_billed=True,
    )
