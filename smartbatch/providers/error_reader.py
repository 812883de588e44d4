"""Converts every error answer to an error with the call's id and limits, but without keys or prompt
text.

The APIs differ in the format and wording of error bodies, so every adapter has its own
:class:`ErrorReader`.
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
    """The base URL of a service as shown in errors, without credentials or a query."""

    base: str = ""  # empty if the service has none
    versioned: bool = False  # base URLs of this API end with a version, such as ``/v1``

    @property
    def advice(self) -> str:
        """Show the base URL and suggest one that may be right."""
        if not self.base:
            return "check the base URL"
        base = self.base.rstrip("/")
        if self._fits:
            return f"check the base URL {base}"
        if _CALL.search(base):
            problem = "is the address of a call"
        else:
            problem = "has no version" if self.versioned else "ends with a version"
        return f"the base URL {base} {problem}; try base_url={self._usual}"

    def seems_wrong(self, status: int, message: str) -> bool:
        """True if the address does not exist; False if a model, file or batch does not."""
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
        """Redirects are not followed, because the key must not be sent to another address."""
        target = _shown(headers.get("location", ""))
        from_ = f" from {self.base}" if self.base else ""
        to = f" to {target}" if target else ""
        return (
            f"a redirect{from_}{to}: redirects are not followed; if its target is the API, use that as the "
            "base URL; if it is a sign-in page, sign in to the network"
        )


NO_ADDRESS = ServiceAddress()


def _shown(location: str) -> str:
    """Remove credentials, query and fragment from a redirect's target."""
    try:
        parts = urlsplit(location[:500])
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    origin = f"{parts.scheme}://{host}{port}" if host else ""
    return scrub(origin + parts.path, limit=120)


_ANSWERS = ("choices", "data", "candidates")  # fields that identify an answer, whatever the other fields
_ERRORS = ("error", "errors", "detail")  # fields with an error, if a success has no answer
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
_JSEND = ("error", "fail")  # ``status`` of a failure in the JSend format
# statuses that concern the account, the model or the request, unless the body is a web page
_PAGES = frozenset({403, 404, 405})


def _is_of_the_key(status: int, message: str) -> bool:
    return status == 401 or "key" in message.lower()


def error_in(data: Any) -> Mapping[str, Any]:
    """Return the error in a decoded body, with a string as ``message``; empty if there is none.

    Some servers wrap the body in a list, send the error as a string, or send its message as an
    object.
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
    """False for an object of empty fields, which gateways such as one-api send without an error."""
    return any(error.values()) if isinstance(error, Mapping) else bool(error)


@frozen
class Refusal:
    kind: ErrorKind
    message: str  # the provider's text, unscrubbed
    code: str | None  # the code, type or status as a plain word
    status: int | None = None  # HTTP status named by an error inside a success
    wait: float | None = None  # seconds to wait, from the body; a header takes precedence
    limits: LimitReport | None = None  # from the body
    request_id: str | None = None  # call id from the body
    parameters: tuple[str, ...] = ()  # parameters that the server rejects
    advice: str = ""  # added to the provider's text


@frozen
class ErrorReader:
    """Creates the errors for one API's answers."""

    # parses an error from the answer and its decoded body
    understand: Callable[[Reply, Any], Refusal]
    limits_in: Callable[[Mapping[str, str]], LimitReport | None]
    # header with the provider's call id, if any
    id_header: str | None = None
    secrets: tuple[str, ...] = ()  # must not appear in an error
    address: ServiceAddress = NO_ADDRESS  # shown in errors that may come from another server
    key_source: str = ""  # setting with the key, shown if the key is rejected

    def read(
        self,
        reply: Reply,
        requests: Sequence[Request] = (),
        *,
        data: Any = None,
    ) -> ProviderError:
        """Convert an error answer, in this order:

        1. Redirects are not followed, because the key must not be sent to another address.
        2. The reason is read from the body, whatever its format, and classified by the API's own table.
        3. The reason is shortened and stripped of secrets; it is left out if it repeats a prompt.
        4. If the base URL seems wrong, the error shows it and suggests another; if the key was rejected, the
           error names its setting.
        5. A waiting time in a header takes precedence over one in the body.
        6. Work may have been done if the error is inside a success, or if a gateway timed out (504).

        Args:
            reply: the answer; for an error inside a stream, the head of the stream.
            requests: their texts must not appear in the error.
            data: the decoded body, if available, or an error event of a stream.
        """
        if 300 <= reply.status < 400:
            text = self.address.after_redirect(reply.headers)
            return self.unusable(reply, "redirect", f"the server answered {reply.status}, {text}")
        found = self.understand(reply, with_reason(reply.json() if data is None else data, reply))
        status = found.status or reply.status
        text = safe_text(found.message, requests, *self.secrets)
        advice = [found.advice] if found.advice else []
        if self.address.seems_wrong(status, found.message) and found.code != "model_not_found":
            advice.append(self.address.advice)
        if self.key_source and found.kind is ErrorKind.AUTH_ERROR and _is_of_the_key(status, found.message):
            advice.append(f"check {self.key_source}")
        if advice:
            text = "; ".join(filter(None, (text.removesuffix("."), *advice)))
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
        """Create the error for an answer that breaks the API's contract.

        ``text`` does not come from the provider.
        """
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
        """Create the error for an answer that was truncated or garbled in transit."""
        return self.unusable(reply, code, text, kind=ErrorKind.NETWORK_ERROR)

    def refused(self, reply: Reply, requests: Sequence[Request]) -> ProviderError:
        """Convert a refusal. A web page comes from a gateway, not from the provider, so the next call may
        succeed.
        """
        if reply.status in _PAGES and is_html(reply.headers):
            return self._page(reply)
        return self.read(reply, requests)

    def answer(self, reply: Reply, requests: Sequence[Request] = ()) -> dict[str, Any]:
        """Decode an answer; raise if it is a refusal, an error or not an answer of this API."""
        if not reply.ok:
            raise self.refused(reply, requests)
        data = self.decode(reply)
        self.check(data, reply, requests)
        if _OF_THE_API.isdisjoint(data):
            said = safe_text(named_reason(data), requests, *self.secrets)
            text = f"the answer has none of this API's fields{f' ({said})' if said else ''}"
            raise self.unusable(reply, "shape", f"{text}; {self.address.advice}")
        return data

    def check(self, data: Mapping[str, Any], reply: Reply, requests: Sequence[Request] = ()) -> None:
        """Raise the error in a decoded success that has no answer.

        A request that failed after it started has its own status. A string in ``data`` is not an answer
        in any API; next to a JSend status, it is the reason.
        """
        instead = any(map(data.get, _ERRORS)) and not any(map(data.get, _ANSWERS))
        is_jsend = data.get("status") in _JSEND and isinstance(data.get("data"), str)
        foreign = is_jsend and _OF_THE_API.isdisjoint(data.keys() - {"data"})
        if data.get("type") == "error" or foreign or (instead and data.get("status") is None):
            raise self.read(reply, requests, data=data)

    def decode(self, reply: Reply) -> dict[str, Any]:
        """Decode the JSON object in a success, whatever its fields.

        Raises:
            ProviderError: the body is a page or another value (``INVALID_RESPONSE``), or incomplete JSON
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
        title = safe_text(page_title(reply), (), *self.secrets)
        status = "" if reply.ok else f" ({reply.status})"
        named = f', titled "{title}"' if title else ""
        text = f"a web page arrived{status} instead of the provider's answer{named}"
        return self.unusable(reply, "html", f"{text}; {self.address.advice}, or sign in to the network")

    def request_id(self, reply: Reply) -> str | None:
        return self._plain(short(reply.headers.get(self.id_header), PLAIN_ID)) if self.id_header else None

    def _plain(self, word: str | None) -> str | None:
        """Drop a code or id that contains a key."""
        return None if word is None or has_secret(word, *self.secrets) else word

    def limits(self, reply: Reply) -> LimitReport | None:
        return self.limits_in(reply.headers)
