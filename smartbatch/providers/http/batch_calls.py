"""Code shared by Batch APIs and files over HTTP: checks of answers and ids, and downloads."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urljoin

from attrs import field, frozen
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import BatchPage, RemoteBatch
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.error_table import explained
from smartbatch.providers.foreign_text import http_date, unusable
from smartbatch.providers.http.replies import LiveReply, Reply, is_html
from smartbatch.providers.http.transport import Body, Transport

MAX_DOWNLOAD = 16 * 1024**3  # maximum bytes of a result file, far more than 100,000 long answers

# statuses of a provider's own error that prove that nothing was created
DEFINITE = frozenset({400, 401, 403, 404, 405, 413, 422, 429, 501})

MAX_REDIRECTS = 5  # maximum redirects followed per download
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_MAX_ADDRESS = 8192  # characters

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


@frozen
class CheckedCalls:
    errors: ErrorReader
    # True if a refusal is the provider's own error, not a gateway's
    is_own: Callable[[Reply], bool]
    # changes an error that has another meaning for batches and files
    refine: Callable[[ProviderError], None] = field(default=lambda error: None, kw_only=True)  # noqa: ARG005

    def checked(self, reply: Reply) -> Reply:
        """Return a successful answer.

        Raises:
            ProviderError: the answer is not a success. ``maybe_billed`` is False only if the refusal
                proves that nothing was done: it is the provider's own, with a status in :data:`DEFINITE`,
                or the request was too large (413).
            BatchRefused: the error names invalid lines or an exceeded limit.
        """
        if reply.ok:
            return reply
        error = self.errors.read(reply)
        error.maybe_billed = reply.status != 413 and (reply.status not in DEFINITE or not self.is_own(reply))
        self.refine(error)
        raise explained(error, reply.json(), self.errors.secrets)

    def decoded(self, reply: Reply) -> dict[str, Any]:
        return self.errors.decode(self.checked(reply))

    def listed(self, reply: Reply, field: str, *, may_lack: bool = False) -> tuple[dict[str, Any], list[Any]]:
        """Return a decoded answer and the list in it. With ``may_lack``, a missing list is empty."""
        data = self.decoded(reply)
        found = data.get(field, [] if may_lack else None)
        if not isinstance(found, list):
            raise unusable("the provider returned an invalid list", status=200)
        return data, found

    def gone(self, reply: Reply) -> bool:
        """True for the provider's own 404; any other refusal is raised."""
        if reply.status == 404 and self.is_own(reply):
            return True
        self.checked(reply)
        return False


@frozen
class BatchCalls(CheckedCalls):
    read: Callable[[Any], RemoteBatch]  # parses the batch in a decoded answer

    def created(self, reply: Reply) -> RemoteBatch:
        """Read the answer to a create call. An unreadable answer is not a refusal."""
        self.checked(reply)
        try:
            return self.read(self.errors.decode(reply))
        except ProviderError as error:
            error.maybe_billed = True
            raise

    def found(self, reply: Reply) -> RemoteBatch | None:
        """``None`` only for the provider's own 404."""
        return None if self.gone(reply) else self.read(self.errors.decode(reply))

    def cancelled(self, reply: Reply, look: Callable[[], RemoteBatch | None]) -> None:
        """Accept a refused cancel only if the batch returned by ``look`` has ended."""
        try:
            self.checked(reply)
        except ProviderError as error:
            if error.status not in (400, 409, 412):
                raise
            batch = look()
            if batch is None or not batch.state.ended:
                raise

    def result_pieces(
        self, begin: Callable[[str, float], LiveReply], url: str, timeout: float
    ) -> Iterator[bytes]:
        """Yield a result file as it arrives, following redirects, and close it.

        A web page is an error, because it would count as results without a readable line. Bodies that are
        truncated, stall, are too large or contain only a part are errors too. The arguments are those of
        :func:`followed`.
        """
        with followed(begin, url, timeout) as live:
            if live.status != 200:
                self.checked(live.whole())
                raise unusable("only part of the results arrived", "truncated", status=live.status)
            if is_html(live.headers):
                raise unusable(
                    "a web page arrived instead of results: sign in to the network", "html", status=200
                )
            yield from filter(None, live.pieces(MAX_DOWNLOAD))


def page_of(reply: Reply, batches: Iterable[RemoteBatch], following: str | None) -> BatchPage:
    return BatchPage(tuple(batches), following, http_date(reply.headers.get("date")))


def check_id(value: Any, form: re.Pattern[str] = _ID, what: str = "an id of the provider's") -> str:
    """Return an id that is safe in URLs and file names. The error for any other id names ``what`` and does
    not repeat the id.
    """
    if isinstance(value, str) and form.fullmatch(value):
        return value
    raise ProviderError(
        f"{what} is missing or has invalid characters; it is not used",
        kind=ErrorKind.INVALID_RESPONSE,
        code="id",
    )


@contextlib.contextmanager
def followed(
    begin: Callable[[str, float], LiveReply],
    url: str,
    timeout: float,
    *,
    method: str = "GET",
    body: Body = b"",
) -> Iterator[LiveReply]:
    """Follow the redirects of a download or an upload and yield the answer, which is closed afterwards.

    Services keep files in separate storage and answer with its address. The key is sent to the base
    URL's server only. Another server is called without the provider's headers, because the address
    itself grants access. A transfer that starts with TLS never continues without it.

    ``begin`` calls an address on the base URL's server with the key, within the given seconds. Another
    server is sent ``method`` and ``body``.
    """
    deadline, own = time.monotonic() + timeout, _parsed(url)
    with contextlib.ExitStack() as opened:
        live = begin(url, timeout)
        opened.callback(live.close)
        for _ in range(MAX_REDIRECTS):
            if live.status not in _REDIRECTS:
                break
            url, target = _redirected(url, live.headers.get("location"), own)
            live.close()
            left = max(0.001, deadline - time.monotonic())
            if _origin(target) == _origin(own):
                live = begin(url, left)
            else:
                elsewhere = Transport(
                    Url(scheme=target.scheme, host=target.host, port=target.port), reuse=False
                )
                opened.callback(elsewhere.close)
                live = elsewhere.begin(elsewhere.head_of(method, target.request_uri, b""), body, left)
            opened.callback(live.close)
        else:
            if live.status in _REDIRECTS:
                raise _bad_redirect(live.status, f"is followed by more than {MAX_REDIRECTS} others")
        yield live


def _redirected(url: str, location: str | None, own: Url) -> tuple[str, Url]:
    if not location or len(location) > _MAX_ADDRESS or not (location.isascii() and location.isprintable()):
        raise _bad_redirect(None, "has no usable target")
    address = urljoin(url, location).partition("#")[0]
    target = _parsed(address)
    if target.scheme not in _PORTS or not target.host or target.auth:
        raise _bad_redirect(None, "leads to an invalid address")
    if own.scheme == "https" and target.scheme != "https":
        raise _bad_redirect(None, "leads to an address without TLS")
    return address, target


def _parsed(url: str) -> Url:
    try:
        return parse_url(url)
    except LocationParseError:
        raise _bad_redirect(None, "leads to an invalid address") from None


def _origin(url: Url) -> tuple[str | None, str | None, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme or "")


def _bad_redirect(status: int | None, what: str) -> ProviderError:
    return unusable(f"the redirect of a file {what}", "redirect", status=status)
