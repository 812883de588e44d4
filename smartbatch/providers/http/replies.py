"""HTTP answers as they came, and the one reader of their bodies: decoded, up to a cap on the decoded size."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.foreign_text import unusable
from smartbatch.providers.http.json_text import decode_answer

MAX_BODY = 64 * 1024 * 1024
"""Most bytes of a decoded answer; a gzip bomb or an endless body ends here."""

_PIECE = 65536
_FED = 4096  # compressed bytes at a time: what follows a member is copied, and members may be tiny
_MEMBER = b"\x1f"  # how one of gzip begins; its second byte may still be to come


@frozen
class Reply:
    """An HTTP answer as it came: headers by lower-case name, the body decoded."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """True for a success."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the body decoded; ``None`` where it is no JSON."""
        try:
            return decode_answer(self.body)
        except (ValueError, RecursionError):
            return None


def is_plain(headers: Mapping[str, str]) -> bool:
    """Whether a body is not compressed."""
    return _encoding(headers) in ("", "identity")


def is_html(headers: Mapping[str, str]) -> bool:
    """Whether a body is a page for people, from somebody between us and the provider."""
    return headers.get("content-type", "").lower().startswith("text/html")


def decoded(pieces: Iterable[bytes], headers: Mapping[str, str], cap: int) -> Iterator[bytes]:
    """Yield a body decoded as it comes, in pieces of at most 64 kB where it is compressed; some are empty.

    No more than ``cap`` bytes and a piece are ever held or decoded, compressed ones counted, too. A body
    without a byte is empty, although it is called compressed.

    Raises:
        ProviderError: for a broken, cut or too large body, or an unknown encoding.
    """
    capped = _capped(pieces, cap)
    return capped if is_plain(headers) else _capped(_inflated(capped, _encoding(headers)), cap)


def joined(pieces: Iterable[bytes]) -> bytes:
    """Return the pieces of a body together; a list of them would take far more, as they may be tiny."""
    whole = BytesIO()
    whole.writelines(pieces)
    return whole.getvalue()


def _capped(pieces: Iterable[bytes], cap: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > cap:
            text = f"the answer is larger than max_body={cap} bytes; raise it if that is expected"
            raise unusable(text, "too_large")
        yield piece


def encoded_otherwise() -> ProviderError:
    """Return the error for an answer that is compressed in a way nobody asked for."""
    return unusable("the answer has a content encoding that was not asked for", "encoding")


def _encoding(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "").strip().lower()


def _inflated(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield what is compressed; of gzip that of all its members, what stands behind them is left out."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise encoded_otherwise()
    decoder = _decoder()
    begun = ended = False
    for piece in (each[at : at + _FED] for each in pieces for at in range(0, len(each), _FED)):
        begun = True
        while piece and not ended:
            if decoder.eof:
                ended = encoding == "deflate" or not piece.startswith(_MEMBER)
                decoder = decoder if ended else _decoder()
                continue
            try:
                yield decoder.decompress(piece, _PIECE)
            except zlib.error:
                raise _broken() from None
            piece = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    yield decoder.flush()
    if begun and not decoder.eof:
        raise _broken()


def _decoder() -> Any:
    return zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told apart by the header


def _broken() -> ProviderError:
    text = "the compressed answer is broken or did not arrive whole"
    return unusable(text, "truncated", kind=ErrorKind.NETWORK_ERROR)
