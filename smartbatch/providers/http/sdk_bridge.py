"""The network under the vendors' SDKs: their ``httpx2`` client speaks through our own transport.

An SDK builds requests, signs them and knows its errors. Its own network counts time-outs per read, follows
redirects, has no cap on bodies and nothing against forks.

Importing this module imports ``httpx2``; adapters do so when their SDK is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import httpx2
from urllib3.util import Url

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.network_errors import failure
from smartbatch.providers.http.replies import Reply, visible
from smartbatch.providers.http.spooled_body import carried
from smartbatch.providers.http.transport import Transport

__all__ = ["http_client", "live_of", "meaning_of", "reply_of", "through_sdk"]

_REPLY, _LIVE = "smartbatch.reply", "smartbatch.live"

_T = TypeVar("_T")


class _Refused(Exception):
    """An answer of another status than 200; raised below the SDK, which would handle it in its own way."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def http_client(transport: Transport) -> httpx2.Client:
    """Return a client for an SDK whose requests all go through ``transport``.

    A call's *read* time-out is taken as the total seconds of the call. A request that accepts
    ``text/event-stream`` or ``application/binary`` is answered with its head at once, see :func:`live_of`;
    others with the whole body. A body that is
    :func:`carried <smartbatch.providers.http.spooled_body.carried>` past the SDK is sent instead of its own.
    """
    return httpx2.Client(transport=_Bridge(transport), follow_redirects=False, trust_env=False)


def through_sdk(call: Callable[[], _T]) -> _T | Reply:
    """Make a call through an SDK and return what it returns; of a refusal the whole answer.

    Raises:
        ProviderError: of the network. An SDK's own error holds the key and the prompt; it is not passed on,
            and not chained: so this raises after the ``except`` block.
    """
    try:
        return call()
    except Exception as error:
        found = _found_in(error) or meaning_of(error)
        if found is None:
            raise
    if isinstance(found, _Refused):
        return found.reply
    raise found


def reply_of(response: httpx2.Response) -> Reply:
    """Return an answer that was read whole."""
    return cast(Reply, response.extensions[_REPLY])


def live_of(response: httpx2.Response) -> LiveReply:
    """Return the answer of a stream, to be read piece by piece and closed by the caller."""
    return cast(LiveReply, response.extensions[_LIVE])


def meaning_of(error: Exception) -> ProviderError | None:
    """Return the meaning of an exception of ``httpx2``; ``None`` for any other.

    Our own error may be inside. Others are not expected, the network being ours; they do not say how far the
    call was.
    """
    if isinstance(found := _found_in(error), ProviderError):
        return found
    if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol):
        late = isinstance(error, httpx2.TimeoutException)
        return failure(ConnectionResetError(), "receive", "the service", late=late)
    if isinstance(error, (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError)):
        name = type(error).__name__
        return ProviderError(f"the call could not be made ({name})", kind=ErrorKind.CLIENT_ERROR, code="sdk")
    return None


def _found_in(error: BaseException) -> ProviderError | _Refused | None:
    """Our own error, or the refusal, inside what the SDK made of it."""
    found: BaseException | None = error
    for _ in range(8):  # deeper nesting does not occur; a cycle must not hang
        if found is None or isinstance(found, (ProviderError, _Refused)):
            return found
        found = found.__cause__ or found.__context__
    return None


class _Bridge(httpx2.BaseTransport):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        timeout = cast("dict[str, Any]", request.extensions.get("timeout") or {}).get("read")
        if timeout is None:
            raise TypeError("a request without a time-out")
        head, body = self._head(request), carried() or request.read()
        accepted = request.headers.get("accept", "")
        if "text/event-stream" in accepted or "application/binary" in accepted:
            live = self._transport.begin(head, body, timeout)
            if live.status != 200:
                raise _Refused(live.whole())
            return httpx2.Response(
                live.status, headers=visible(live.headers), stream=_Pieces(live), extensions={_LIVE: live}
            )
        reply = self._transport.send(head, body, timeout)
        if reply.status != 200:
            raise _Refused(reply)
        return httpx2.Response(
            reply.status, headers=visible(reply.headers), content=reply.body, extensions={_REPLY: reply}
        )

    def _head(self, request: httpx2.Request) -> bytes:
        """The request line and headers, as the SDK made them; where they go is not the SDK's to decide."""
        url = request.url
        path = url.raw_path.decode("ascii")
        return self._transport.head_for(
            request.method, Url(url.scheme, None, url.host, url.port, path), request.headers.raw
        )


class _Pieces(httpx2.SyncByteStream):
    """The body of a stream, as the SDK holds it; it is read past the SDK."""

    def __init__(self, live: LiveReply) -> None:
        self._live = live

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._live)

    def close(self) -> None:
        self._live.close()
