"""The network under the vendors' SDKs: their ``httpx2`` client uses this library's transport.

An SDK builds and signs requests. Its own network code has timeouts per read, follows redirects, and
has no maximum body size and no protection against forks. The SDK receives only the status of an
answer. Importing this module imports ``httpx2``; adapters import it when their SDK is first needed.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import httpx2
from attrs import define
from urllib3.util import Url

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.http.pool import failure
from smartbatch.providers.http.replies import LiveReply, Reply
from smartbatch.providers.http.transport import Body, Cutoff, Transport

_MAX_HEADS = 256  # cached request heads, each about a kilobyte


@define
class _SdkCall:
    """One call through an SDK: the parts that the SDK does not handle, and the outcome."""

    live: bool = False
    only_head: bool = False
    body: Body | None = None
    cutoff: Cutoff | None = None
    head: bytes | None = None  # built by the SDK; with only_head nothing is sent
    ended: Reply | LiveReply | ProviderError | None = None


_current: ContextVar[_SdkCall | None] = ContextVar("smartbatch_sdk_call", default=None)


def http_client(transport: Transport) -> httpx2.Client:
    """Create a client for an SDK that sends all requests through ``transport``.

    The *read* timeout of a call is used as its total seconds.
    """
    return httpx2.Client(transport=_Bridge(transport), follow_redirects=False, trust_env=False)


class SdkCalls(ABC):
    """One SDK client over one transport, without retries, for all threads of a process.

    ``more`` may contain ``body`` in the SDK's form, ``headers``, and other arguments of the SDK. Network
    errors are raised as ``ProviderError``. The SDK's own error contains the key and the prompt, so it is
    neither passed on nor chained.
    """

    reuses_heads = True
    """False if a head belongs to one call, because it is signed or has a token that expires."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._heads: dict[tuple[str, int], bytes] = {}
        self._building = threading.Lock()

    @abstractmethod
    def send(self, method: str, path: str, timeout: float, **more: Any) -> object:
        """Make one request through the SDK; the return value is ignored."""

    def post(self, path: str, body: bytes, timeout: float) -> Reply:
        """Post encoded JSON in real time.

        The SDK builds the head of a path once per whole second of a timeout, which is one of the headers.
        Building a head takes several times the CPU of a call.
        """
        if not self.reuses_heads:
            return self.ask("post", path, timeout, body=body)
        key = path, math.ceil(timeout)
        head = self._heads.get(key)
        if head is None:
            with self._building:  # otherwise every worker would build it for its first call
                head = self._heads.get(key)
                if head is None:
                    head = self.head_of(path, timeout, body)
                    if len(self._heads) >= _MAX_HEADS:
                        self._heads.clear()
                    self._heads[key] = head
        return self._transport.send(head, body, timeout)

    def head_of(self, path: str, timeout: float, body: bytes) -> bytes:
        """Build the head of a POST, and send nothing."""
        call = _SdkCall(only_head=True)
        _through(partial(self.send, "post", path, timeout, body=body), call)
        assert call.head is not None
        return call.head

    def ask(
        self, method: str, path: str, timeout: float, *, spooled: Body | None = None, **more: Any
    ) -> Reply:
        """Make one request within ``timeout`` seconds in total. ``spooled`` replaces the SDK's body."""
        return cast(
            Reply, _through(partial(self.send, method, path, timeout, **more), _SdkCall(body=spooled))
        )

    def begin(
        self, path: str, timeout: float, accept: str, *, cutoff: Cutoff | None = None, **more: Any
    ) -> LiveReply:
        """Return the answer once its head has arrived. A request with a body is a POST.

        ``accept`` is the content type of the answer. ``cutoff`` can end the call until the head has arrived.
        """
        method = "post" if "body" in more else "get"
        send = partial(self.send, method, path, timeout, headers={"Accept": accept}, **more)
        return cast(LiveReply, _through(send, _SdkCall(live=True, cutoff=cutoff)))


def _through(send: Callable[[], object], call: _SdkCall) -> Reply | LiveReply:
    token = _current.set(call)
    try:
        send()
    except Exception as error:
        call.ended = call.ended or meaning_of(error)
        if call.ended is None:
            raise
    finally:
        _current.reset(token)
    # Raised outside the SDK's handlers, so that the SDK's error is not its context.
    if isinstance(call.ended, ProviderError):
        raise call.ended
    assert call.ended is not None
    return call.ended


def meaning_of(error: Exception) -> ProviderError | None:
    """Convert an exception of ``httpx2``; ``None`` for any other.

    No such exception is expected, because the transport does not raise any. It would not show how far the
    call got.
    """
    if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol):
        late = isinstance(error, httpx2.TimeoutException)
        return failure(ConnectionResetError(), "receive", "the service", late=late)
    if isinstance(error, (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError)):
        name = type(error).__name__
        return ProviderError(f"the call could not be made ({name})", kind=ErrorKind.CLIENT_ERROR, code="sdk")
    return None


def unusable_credentials(vendor: str, reason: str, *, network: bool) -> ProviderError:
    """Create the error for credentials that an SDK could not load or renew, before anything was sent.

    The SDK's text is left out, because it may contain parts of the credentials.
    """
    what = f"the {vendor} credentials could not be loaded or renewed ({reason})"
    if network:
        return ProviderError(what, kind=ErrorKind.NETWORK_ERROR, code="credentials")
    return ProviderError(f"{what}; sign in again", kind=ErrorKind.AUTH_ERROR, code="credentials")


class _Bridge(httpx2.BaseTransport):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = _current.get() or _SdkCall()
        try:
            call.ended = answer = self._answer(request, call)
        except ProviderError as error:
            call.ended = error
            raise
        return httpx2.Response(answer.status)

    def _answer(self, request: httpx2.Request, call: _SdkCall) -> Reply | LiveReply:
        timeout = cast("dict[str, Any]", request.extensions.get("timeout") or {}).get("read")
        if timeout is None:
            raise TypeError("a request without a timeout")
        url = request.url
        # The transport checks the address, so the SDK cannot choose another server.
        address = Url(url.scheme, None, url.host, url.port, url.raw_path.decode("ascii"))
        head = call.head = self._transport.head_for(request.method, address, request.headers.raw)
        if call.only_head:
            return Reply(200, {}, b"")
        body = call.body or request.read()
        if call.live:
            return self._transport.begin(head, body, timeout, call.cutoff)
        return self._transport.send(head, body, timeout)
