"""The network under the vendors' SDKs: their ``httpx2`` client speaks through our own transport.

An SDK builds requests, signs them and knows its errors. Its own network counts time-outs per read, follows
redirects, has no cap on bodies and nothing against forks. With this bridge every call has what
:class:`~smartbatch.providers.http.transport.Transport` gives: one total deadline, a cap, connections that
are kept
alive, as many as there are workers, an end when the provider is closed, and nothing shared over a fork.

Importing this module imports ``httpx2``; adapters do so when their SDK is first needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import httpx2

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.http.live_reply import LiveReply
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.http.spooled_body import carried
from smartbatch.providers.http.transport import Transport

__all__ = ["http_client", "live_of", "reply_of", "verdict_of"]

_REPLY, _LIVE = "smartbatch.reply", "smartbatch.live"
_OURS = (b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding")


def http_client(transport: Transport) -> httpx2.Client:
    """Return a client for an SDK whose requests all go through ``transport``.

    A call's *read* time-out is taken as the total seconds of the call. A request that accepts
    ``text/event-stream`` or ``application/binary`` is answered with its head at once, see :func:`live_of`;
    others with the whole body. A body that is :func:`carried
    <smartbatch.providers.http.spooled_body.carried>` past the
    SDK is sent instead of the SDK's.
    """
    return httpx2.Client(transport=_Bridge(transport), follow_redirects=False, trust_env=False)


def reply_of(response: httpx2.Response) -> Reply:
    """Return an answer that was read whole, be it a success or an error."""
    reply = response.extensions.get(_REPLY)
    if isinstance(reply, Reply):
        return reply
    return Reply(response.status_code, dict(response.headers.items()), response.read())


def live_of(response: httpx2.Response) -> LiveReply:
    """Return the answer of a stream, to be read piece by piece and closed by the caller."""
    return cast(LiveReply, response.extensions[_LIVE])


def verdict_of(error: BaseException) -> ProviderError | None:
    """Return our own error inside one the SDK made of it; ``None`` where there is none."""
    found: BaseException | None = error
    for _ in range(8):  # deeper nesting does not occur; a cycle must not hang
        if found is None or isinstance(found, ProviderError):
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
        head = self._head(request)
        body = carried() or request.read()
        accepted = request.headers.get("accept", "")
        if "text/event-stream" in accepted or "application/binary" in accepted:
            live = self._transport.begin(head, body, timeout)
            headers = _kept(live.headers, "set-cookie")
            return httpx2.Response(
                live.status, headers=headers, stream=_Pieces(live), extensions={_LIVE: live}
            )
        reply = self._transport.send(head, body, timeout)
        headers = _kept(reply.headers, "set-cookie", "content-encoding")  # the body is decoded already
        return httpx2.Response(reply.status, headers=headers, content=reply.body, extensions={_REPLY: reply})

    def _head(self, request: httpx2.Request) -> bytes:
        """The request line and headers, as the SDK made them; where they go is not the SDK's to decide."""
        url = request.url
        if not self._transport.leads_to(url.scheme, url.host, url.port):
            raise ProviderError(
                "the SDK would send a request to another server than the base URL",
                kind=ErrorKind.CLIENT_ERROR,
            )
        fields = [(name, value) for name, value in request.headers.raw if name.lower() not in _OURS]
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        if lines.count(b"\n") != len(fields) or lines.count(b"\r") != len(fields) or b"\0" in lines:
            raise ProviderError("a header has a line break in it", kind=ErrorKind.CLIENT_ERROR)
        return self._transport.head_of(request.method, url.raw_path.decode("ascii"), lines)


def _kept(headers: Mapping[str, str], *without: str) -> dict[str, str]:
    """The headers the client may see: it would keep cookies, and send one thread's with another's request."""
    return {name: value for name, value in headers.items() if name not in without}


class _Pieces(httpx2.SyncByteStream):
    """The body of a stream for the SDK, which reads it when the answer is an error."""

    def __init__(self, live: LiveReply) -> None:
        self._live = live

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._live)

    def close(self) -> None:
        self._live.close()
