"""All errors in answers are made here: each has the call's id and limits, and no key or piece of a prompt.

The APIs differ in the format of an error body and the meaning of its words; every adapter has an
:class:`ErrorReader` for its own API.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError, has_secret, scrub
from smartbatch.providers.error_bodies import (
    is_page,
    named_reason,
    page_title,
    reason_of,
    text_of,
    with_reason,
)
from smartbatch.providers.foreign_text import PLAIN_ID, fields, repeats, safe_text, short
from smartbatch.providers.http.content import decode_answer
from smartbatch.providers.http.replies import Reply, is_html
from smartbatch.providers.limit_headers import RETRY_AFTER_CEILING, parse_retry_after
from smartbatch.types import LimitReport, Request, Usage

_VERSION = re.compile(r"/v\d+\w*(?:/|$)")
_LAST = re.compile(r"/v\d+\w*$")
_CALL = re.compile(r"/(?:chat/completions|completions|embeddings|responses|messages|models|files|batches)$")
# messages about an address that does not exist
_NO_SUCH_PLACE = re.compile(
    r"^(?:404 )?(?:(?:file|page|path|route|url|endpoint|resource) )?not found\b|method not allowed|"
    r"cannot post|unexpected endpoint|request(?:ed)? url|no route|no static resource|"
    r"no such (?:endpoint|route|path)|(?:unknown|unsupported|invalid) (?:endpoint|route|path|url)",
    re.I,
)
_OF_A_MODEL = re.compile(r"model|deployment", re.I)


@frozen
class ServiceAddress:
    """The base URL of a service, as errors show it, without credentials or a query."""

    base: str = ""  # the base URL; empty if the service has none
    versioned: bool = False  # whether a base URL of this API ends with a version, such as ``/v1``

    @property
    def advice(self) -> str:
        """The address, and a base URL that may be the right one."""
        if not self.base:
            return "check the base URL"
        base = self.base.rstrip("/")
        if self._fits:
            return f"check the base URL {base}"
        if _CALL.search(base):
            problem = "is the address of a call"
        else:
            problem = "has no version" if self.versioned else "ends with a version"
        return f"the base URL {base} {problem}, try base_url={self._usual}"

    def seems_wrong(self, status: int, message: str) -> bool:
        """Whether an error means that the address does not exist, and not a model, file or batch."""
        if status not in (200, 400, 404, 405, 501) or _OF_A_MODEL.search(message):
            return False
        if status in (404, 405) and not (message and self._fits):
            return True
        return _NO_SUCH_PLACE.search(message) is not None

    @property
    def _fits(self) -> bool:
        return self.base.rstrip("/") == self._usual

    @property
    def _usual(self) -> str:
        base = _CALL.sub("", self.base.rstrip("/"))
        if not self.versioned:
            return _LAST.sub("", base)
        return base if not base or _VERSION.search(base) else f"{base}/v1"

    def after_redirect(self, headers: Mapping[str, str]) -> str:
        """Return advice for a redirect, which is not followed: the key must not be sent there."""
        target = _shown(headers.get("location", ""))
        from_ = f" of {self.base}" if self.base else ""
        to = f" to {target}" if target else ""
        return (
            f"a redirect{from_}{to}: redirects are not followed; if that is the API, make its address the "
            "base URL, and if it is a page to sign in, sign in to the network"
        )


NO_ADDRESS = ServiceAddress()


def _shown(location: str) -> str:
    """Return a redirect's target without credentials, query and fragment."""
    try:
        parts = urlsplit(location[:500])
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    origin = f"{parts.scheme}://{host}{port}" if host else ""
    return scrub(origin + parts.path, limit=120)


_ANSWERS = ("choices", "data", "candidates")  # fields with an answer, whatever other fields there are
_ERRORS = ("error", "errors", "detail")  # fields with an error in a success, unless there is an answer
# every answer of the API has at least one of these fields
_OF_THE_API = frozenset(
    {
        *_ANSWERS,
        *_ERRORS,
        "output",
        "content",
        "embedding",
        "embeddings",
        "id",
        "object",
        "type",
        "model",
        "usage",
        "usageMetadata",
        "promptFeedback",
    }
)
_JSEND = ("error", "fail")  # values of a failure's ``status`` in the JSend format
# HTTP statuses about the account, the model or the request, unless a web page has them
_PAGES = frozenset({403, 404, 405})


def error_in(data: Any) -> Mapping[str, Any]:
    """Return the error in a decoded body, its ``message`` a string; empty without one.

    Some servers wrap the body in a list, and some send a string instead of the error, or an object instead of
    its message.
    """
    if isinstance(data, list) and data:
        data = data[0]
    error = fields(data).get("error")
    error = {"message": error} if isinstance(error, str) else fields(error)
    if not error or isinstance(error.get("message"), str):
        return error
    reason = reason_of(error)
    return {**error, "message": reason} if reason or "message" in error else error


def says_something(error: Any) -> bool:
    """Whether an error field has content: gateways such as one-api fill it with an object of empty fields."""
    return any(error.values()) if isinstance(error, Mapping) else bool(error)


@frozen
class Refusal:
    """The parts of an error body."""

    kind: ErrorKind  # its meaning
    message: str  # the provider's text, unscrubbed
    code: str | None  # its code, type or status as a plain word
    status: int | None = None  # the HTTP status that an error inside a success names
    wait: float | None = None  # seconds to wait, in the body; used if no header has them
    limits: LimitReport | None = None  # limits in the body
    request_id: str | None = None  # id of the call in the body
    parameters: tuple[str, ...] = ()  # names of parameters that the server rejects


@frozen
class ErrorReader:
    """Makes the errors of one API's answers."""

    # parses an error: the answer, and its decoded body
    understand: Callable[[Reply, Any], Refusal]
    limits_in: Callable[[Mapping[str, str]], LimitReport | None]  # reads limits from headers
    # header with the provider's id of the call, if any
    id_header: str | None = None
    secrets: tuple[str, ...] = ()  # must not appear in an error
    address: ServiceAddress = NO_ADDRESS  # shown in errors that may come from another server

    def read(
        self,
        reply: Reply,
        requests: Sequence[Request] = (),
        *,
        data: Any = None,
    ) -> ProviderError:
        """Return the meaning of an error answer. In order:

        1. a redirect is not followed: the key must not be sent there;
        2. the body's reason is found, whatever its format, and gets its kind from the API's own table;
        3. the reason is shown without secrets, shortened, and not at all if it repeats a prompt;
        4. if the address seems wrong, it is shown, with a base URL to try;
        5. the time to wait is that of a header, or else that of the body;
        6. work may have been done if the error is in a success, or if a gateway gave up (504).

        Args:
            reply: the answer; for an error inside a stream, its head.
            requests: their texts must not appear in the error.
            data: the decoded body, if available, or an error event of a stream.
        """
        if 300 <= reply.status < 400:
            text = self.address.after_redirect(reply.headers)
            return self.unusable(reply, "redirect", f"the server answered {reply.status}, {text}")
        found = self.understand(reply, with_reason(reply.json() if data is None else data, reply))
        status = found.status or reply.status
        text = safe_text(found.message, requests, *self.secrets)
        if self.address.seems_wrong(status, found.message) and found.code != "model_not_found":
            text = f"{text}; {self.address.advice}" if text else self.address.advice
        wait = parse_retry_after(reply.headers, time.time())
        if wait is None and found.wait is not None:
            wait = min(found.wait, RETRY_AFTER_CEILING)
        said = "reported an error" if reply.ok and found.status is None else f"answered {status}"
        word = self._plain(found.code)
        code = f" {word}" if word else ""
        return ProviderError(
            f"the provider {said}{code}{f': {text}' if text else ''}",
            kind=found.kind,
            status=status,
            code=word,
            retry_after=wait,
            provider_request_id=self.request_id(reply) or self._plain(found.request_id),
            limits=found.limits or self.limits(reply),
            maybe_billed=reply.ok or status == 504,
            refused_parameters=() if repeats(found.message, requests) else found.parameters,
        )

    def unusable(
        self,
        reply: Reply,
        code: str | None,
        text: str,
        usage: Usage | None = None,
        *,
        kind: ErrorKind = ErrorKind.INVALID_RESPONSE,
    ) -> ProviderError:
        """Return the error for an answer that breaks the API's contract; ``text`` is ours."""
        return ProviderError(
            text,
            kind=kind,
            status=reply.status,
            code=code,
            provider_request_id=self.request_id(reply),
            maybe_billed=reply.ok,
            usage=usage,
            limits=self.limits(reply),
        )

    def broken(self, reply: Reply, code: str, text: str) -> ProviderError:
        """Return the error for an answer that was cut off or garbled in transit."""
        return self.unusable(reply, code, text, kind=ErrorKind.NETWORK_ERROR)

    def refused(self, reply: Reply, requests: Sequence[Request]) -> ProviderError:
        """Return the meaning of a refusal of ``requests``. A web page comes from a gateway, not from the
        provider, so the refusal may not recur with the next call.
        """
        if reply.status in _PAGES and is_html(reply.headers):
            return self._page(reply)
        return self.read(reply, requests)

    def answer(self, reply: Reply, requests: Sequence[Request] = ()) -> dict[str, Any]:
        """Return the JSON object of an answer to ``requests``.

        Raises:
            ProviderError: the answer is a refusal, contains an error, or is not an answer of this API.
        """
        if not reply.ok:
            raise self.refused(reply, requests)
        data = self.decode(reply)
        self.check(data, reply, requests)
        if _OF_THE_API.isdisjoint(data):
            said = safe_text(named_reason(data), requests, *self.secrets)
            text = f"the answer has no field of this API{f' ({said})' if said else ''}"
            raise self.unusable(reply, "shape", f"{text}; {self.address.advice}")
        return data

    def check(self, data: Mapping[str, Any], reply: Reply, requests: Sequence[Request] = ()) -> None:
        """Raise the error in a decoded success, if there is one instead of an answer.

        A request that failed after it had begun has its own status. A string in ``data`` is not an answer in
        any API; next to a JSend status, it is the reason.
        """
        instead = any(map(data.get, _ERRORS)) and not any(map(data.get, _ANSWERS))
        is_jsend = data.get("status") in _JSEND and isinstance(data.get("data"), str)
        foreign = is_jsend and _OF_THE_API.isdisjoint(data.keys() - {"data"})
        if data.get("type") == "error" or foreign or (instead and data.get("status") is None):
            raise self.read(reply, requests, data=data)

    def decode(self, reply: Reply) -> dict[str, Any]:
        """Return the JSON object of a success, whatever its fields.

        Raises:
            ProviderError: it is a page or another value (``INVALID_RESPONSE``), or incomplete JSON
                (``NETWORK_ERROR``).
        """
        body = reply.body
        if is_page(reply):
            raise self._page(reply)
        try:
            data = decode_answer(body)
        except RecursionError as error:
            raise self.unusable(reply, "shape", f"the answer {error}") from None
        except ValueError:
            if reply.headers.get("content-type", "").startswith("text/plain") and (said := text_of(reply)):
                said = safe_text(said, (), *self.secrets)
                text = f"the answer is plain text and not JSON ({said}); {self.address.advice}"
                raise self.unusable(reply, "shape", text) from None
            text = "the answer is not complete JSON; it was cut or garbled in transit"
            raise self.broken(reply, "truncated", text) from None
        if not isinstance(data, dict):
            raise self.unusable(reply, "shape", f"the answer is not a JSON object; {self.address.advice}")
        return data

    def _page(self, reply: Reply) -> ProviderError:
        """Return the error for a page that another server sent instead of an answer."""
        title = safe_text(page_title(reply), (), *self.secrets)
        status = "" if reply.ok else f" ({reply.status})"
        named = f', titled "{title}"' if title else ""
        text = f"a web page arrived{status} instead of the provider's answer{named}"
        return self.unusable(reply, "html", f"{text}; {self.address.advice}, or sign in to the network")

    def request_id(self, reply: Reply) -> str | None:
        """Return the provider's id of the call, from the headers."""
        return self._plain(short(reply.headers.get(self.id_header), PLAIN_ID)) if self.id_header else None

    def _plain(self, word: str | None) -> str | None:
        """Return a provider's code or id, unless it contains a key."""
        return None if word is None or has_secret(word, *self.secrets) else word

    def limits(self, reply: Reply) -> LimitReport | None:
        """Return the limits in the headers."""
        return self.limits_in(reply.headers)
