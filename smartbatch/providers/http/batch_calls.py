"""What Batch APIs over HTTP have in common: how answers are judged, which ids are used, and downloads."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urljoin

from attrs import frozen
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import BatchPage, RemoteBatch
from smartbatch.providers.batch_refusals import explained
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import http_date, unusable
from smartbatch.providers.http.replies import LiveReply, Reply, is_html
from smartbatch.providers.http.transport import Transport

MAX_DOWNLOAD = 16 * 1024**3
"""Most bytes of one file of results: 100,000 long answers stay far below it, an endless body ends here."""

DEFINITE = frozenset({400, 401, 403, 404, 405, 413, 422, 429, 501})
"""Statuses of a provider's own error that say for certain that nothing was created."""

MAX_REDIRECTS = 5
"""Redirects of one download that are followed."""
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_LONGEST = 8192

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


@frozen
class BatchCalls:
    """Judges the answers of a Batch API."""

    errors: ErrorReader  # makes the errors of refusals
    # tells whether a refusal is an error in the provider's form, and not some gateway's
    is_own: Callable[[Reply], bool]
    read: Callable[[Any], RemoteBatch]  # what a decoded answer says of a batch
    # changes a refusal's error that means something else in a Batch API
    refine: Callable[[ProviderError], None] = lambda error: None  # noqa: ARG005

    def checked(self, reply: Reply) -> Reply:
        """Return a success.

        Raises:
            ProviderError: for any other answer. ``maybe_billed`` is False where the refusal says for certain
                that nothing was done: it is the provider's own, of a status in :data:`DEFINITE`, or whoever
                read the request found it too large (413).
            BatchRefused: where it says which lines are wrong, or which limit is exceeded.
        """
        if reply.ok:
            return reply
        error = self.errors.read(reply)
        error.maybe_billed = reply.status != 413 and (reply.status not in DEFINITE or not self.is_own(reply))
        self.refine(error)
        raise explained(error, reply.json(), self.errors.secrets)

    def decoded(self, reply: Reply) -> dict[str, Any]:
        """Return the JSON object of a success; otherwise as :meth:`checked`."""
        return self.errors.decode(self.checked(reply))

    def created(self, reply: Reply) -> RemoteBatch:
        """Return the batch that a create answered with; an answer that cannot be read is no refusal."""
        self.checked(reply)
        try:
            return self.read(self.errors.decode(reply))
        except ProviderError as error:
            error.maybe_billed = True
            raise

    def found(self, reply: Reply) -> RemoteBatch | None:
        """Return the batch that was asked for; ``None`` only for the provider's own 404."""
        return None if self.gone(reply) else self.read(self.errors.decode(reply))

    def listed(self, reply: Reply, field: str, *, may_lack: bool = False) -> tuple[dict[str, Any], list[Any]]:
        """Return the answer to a list, and what it lists; where it ``may_lack``, none is an empty one."""
        data = self.decoded(reply)
        found = data.get(field, [] if may_lack else None)
        if not isinstance(found, list):
            raise unusable("the provider's list is none", status=200)
        return data, found

    def gone(self, reply: Reply) -> bool:
        """Whether an answer is the provider's own 404; False for a success, and any other refusal is
        raised.
        """
        if reply.status == 404 and self.is_own(reply):
            return True
        self.checked(reply)
        return False

    def cancelled(self, reply: Reply, look: Callable[[], RemoteBatch | None]) -> None:
        """Judge the answer to a cancel. A batch that has ended is refused, so a refusal is looked into.

        It is raised where the batch that ``look`` returns has not ended.
        """
        try:
            self.checked(reply)
        except ProviderError as error:
            if error.status not in (400, 409, 412):
                raise
            batch = look()
            if batch is None or not batch.state.ended:
                raise

    def results(self, begin: Callable[[str, float], LiveReply], url: str, timeout: float) -> Iterator[bytes]:
        """Yield a file of results as it comes, also from behind redirects, and close it.

        A web page is an error: it would count as results without a single readable line. So is a body that is
        cut, stalls or is too large, and one that says it is a part of them.

        Args:
            begin, url, timeout: as of :func:`followed`.
        """
        with followed(begin, url, timeout) as live:
            if live.status != 200:
                self.checked(live.whole())
                raise unusable("only a part of the results came", "truncated", status=live.status)
            if is_html(live.headers):
                raise unusable(
                    "a web page came back instead of results: sign in to the network", "html", status=200
                )
            yield from filter(None, live.pieces(MAX_DOWNLOAD))


def page_of(reply: Reply, batches: Iterable[RemoteBatch], following: str | None) -> BatchPage:
    """Return a page with the moment at which the server says it answered."""
    return BatchPage(tuple(batches), following, http_date(reply.headers.get("date")))


def check_id(value: Any, form: re.Pattern[str] = _ID, what: str = "an id of the provider's") -> str:
    """Return a provider's id that may be used in URLs and file names.

    Anything else is an ``INVALID_RESPONSE`` that calls it ``what`` and does not repeat it.
    """
    if isinstance(value, str) and form.fullmatch(value):
        return value
    raise ProviderError(
        f"{what} is missing or has characters no id has; it is not used",
        kind=ErrorKind.INVALID_RESPONSE,
        code="id",
    )


@contextlib.contextmanager
def followed(begin: Callable[[str, float], LiveReply], url: str, timeout: float) -> Iterator[LiveReply]:
    """Yield the answer to a download, behind its redirects; it is closed afterwards.

    Services keep results in a store of their own and answer with its address. The key goes to the server of
    the base URL and nowhere else: another server is asked without any of our headers, as the address itself
    is the permission. A download that began with TLS never goes on without it.

    Args:
        begin: asks the server of the base URL, with the key: takes an address and seconds.
        url: of the download, at that server.
        timeout: seconds for all of it.

    Raises:
        ProviderError: a redirect leads nowhere, back from TLS, or to another one too often.
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
                live = elsewhere.begin(elsewhere.head_of("GET", target.request_uri, b""), b"", left)
            opened.callback(live.close)
        else:
            if live.status in _REDIRECTS:
                raise _bad_redirect(
                    live.status, f"leads from one address to another more than {MAX_REDIRECTS} times"
                )
        yield live


def _redirected(url: str, location: str | None, own: Url) -> tuple[str, Url]:
    """Return where a redirect leads, as a text and taken apart."""
    if not location or len(location) > _LONGEST or not (location.isascii() and location.isprintable()):
        raise _bad_redirect(None, "does not say where to")
    address = urljoin(url, location).partition("#")[0]
    target = _parsed(address)
    if target.scheme not in _PORTS or not target.host or target.auth:
        raise _bad_redirect(None, "leads to no address of the web")
    if own.scheme == "https" and target.scheme != "https":
        raise _bad_redirect(None, "leads to an address without TLS")
    return address, target


def _parsed(url: str) -> Url:
    try:
        return parse_url(url)
    except LocationParseError:
        raise _bad_redirect(None, "leads to no address of the web") from None


def _origin(url: Url) -> tuple[str | None, str | None, int | None]:
    return url.scheme, url.host, url.port or _PORTS.get(url.scheme or "")


def _bad_redirect(status: int | None, what: str) -> ProviderError:
    return unusable(f"the redirect of the results {what}", "redirect", status=status)
