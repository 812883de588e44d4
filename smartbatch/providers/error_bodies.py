"""Finds the reason in an error body, in any format common among servers, gateways and proxies.

The formats are ``error`` as an object or a string; ``errors`` as a list or by field; FastAPI's
``detail`` as a string or a list; problem details of RFC 9457; flat objects (``message``, ``msg``,
``error_msg`` and others); JSON in a string; XML; plain text; and the title of an HTML page. In
any other format, the reason is the string, at any level, that looks most like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from smartbatch.providers.foreign_text import fields, plain
from smartbatch.providers.http.content import decode_answer
from smartbatch.providers.http.replies import Reply, is_html

_MAX_TEXT = 2000  # maximum characters of a reason
_MAX_PAGE = 64 * 1024  # bytes at the start of a page that are searched for a title
_MAX_DEPTH = 6
_MAX_PARTS = 5  # maximum reasons per list
_TITLES = ("title", "error")  # fields with a headline, often just ``Bad Request``; shown first
# fields that contain the reason itself, the most common first
_REASONS = (
    "message",
    "msg",
    "Message",
    "detail",
    "error_description",
    "error_message",
    "error_msg",
    "errorMessage",
    "status_msg",
    "faultstring",
    "reason",
    "description",
)
# fields that contain further reasons, or the only reason
_INSIDE = ("errors", "invalid-params", "invalid_params", "fault", "base_resp", "data")
# fields of a listed reason with a place in the request, such as ``body.seed``
_PLACES = ("loc", "pointer", "name", "param", "field", "parameter", "path")
# fields of a flat error that the adapters read; see :func:`with_reason`
_WORDS = ("type", "code", "param", "metadata")
_HEADLINE_WORDS = 3  # shorter messages, such as "Provider returned error", are completed by the reason inside
_MAX_SEARCHED = 500  # maximum values searched in an error body
# names of fields that may hold a reason in an unknown format
_OF_A_REASON = re.compile(
    r"mess|msg|text|reason|desc|detail|err|cause|fault|problem|expl|info|title|data|raw", re.I
)
# names of fields that repeat the request, or hold an identifier
_NOT_A_REASON = re.compile(
    r"(?!.*(?:err|bad|invalid|fail))"
    r".*?(?:input|prompt|request|payload|header|body|stack|trace|ur[il]\b|link|href|docs?\b|documentation|"
    r"time(?:stamp)?\b|date\b|token|auth|key|model|user|role|version|instance)",
    re.I,
)


def with_reason(data: Any, reply: Reply) -> Any:
    """Return an error body whose ``error`` is an object with a ``message``; other fields are kept.

    ``data`` is the decoded body, or ``None`` if the body is not JSON.
    """
    if isinstance(data, list) and data:
        data = data[0]
    found = fields(data)
    error = found.get("error")
    if not isinstance(error, Mapping):
        error = {name: found[name] for name in _WORDS if name in found}
    message = error.get("message")
    if not isinstance(message, str) or not message:
        message = text_of(reply) if data is None else reason_of(data)
    else:
        message = _completed(message, error)
    return {**found, "error": {**error, "message": message[:_MAX_TEXT]}}


def reason_of(data: Any) -> str:
    return named_reason(data) or _joined(_searched(data))


def named_reason(data: Any) -> str:
    """Search the usual fields only. The body need not be an error."""
    return _joined(_reasons(data, _MAX_DEPTH))


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))[:_MAX_TEXT]


def _completed(message: str, error: Mapping[str, Any]) -> str:
    """Complete a message that is JSON or only a headline with the reason inside the error."""
    if message.lstrip()[:1] in ("{", "["):
        return named_reason(message)
    if len(message.split()) > _HEADLINE_WORDS:
        return message
    others = reason_of({name: value for name, value in error.items() if name != "message"})
    return f"{message}; {others}" if others and others not in message else message


def text_of(reply: Reply) -> str:
    """Read the reason from a body that is not JSON: the title of a page, or the text itself."""
    if is_page(reply):
        return page_title(reply)
    text = reply.body[:_MAX_TEXT].decode("utf-8", "replace").strip().rstrip("\ufffd")
    is_text = text[:1] not in ("{", "[") and text != "null" and "\ufffd" not in text
    return text if is_text else ""


def is_page(reply: Reply) -> bool:
    """True for HTML and XML."""
    return is_html(reply.headers) or reply.body.lstrip()[:1] == b"<"


def page_title(reply: Reply) -> str:
    """Falls back to the first heading, then to the message of an XML error."""
    from html import unescape  # imported late: it loads thousands of names, and answers are rarely pages

    page = reply.body[:_MAX_PAGE]
    lower = page.lower()
    for tag in (b"title", b"h1", b"message"):
        start = lower.find(b"<" + tag)
        begin = lower.find(b">", start) + 1
        end = lower.find(b"</", begin)
        if start >= 0 and begin and end > begin:
            text = unescape(page[begin : min(end, begin + _MAX_TEXT)].decode("utf-8", "replace"))
            return " ".join(text.split())
    return ""


def _reasons(value: Any, depth: int) -> Iterator[str]:
    """Yield the most general reason first."""
    if isinstance(value, str):
        inside = reason_of(_decoded(value)) if depth else ""
        if text := inside or " ".join(value[:_MAX_TEXT].split()):
            yield text
    elif isinstance(value, list) and depth:
        for each in value[:_MAX_PARTS]:
            yield from _reasons(each, depth - 1)
    elif isinstance(value, Mapping) and depth:
        place = _place(value)
        for text in _of_object(value, depth - 1):
            yield f"{place}: {text}" if place and place not in text else text


def _decoded(text: str) -> Any:
    """Parse JSON inside a string, which gateways send."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return decode_answer(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _searched(data: Any) -> list[str]:
    """Find strings that resemble a reason in an unknown format, at the highest level that has any.

    Fields named like a reason take precedence at any level. Single words are skipped, because they
    are usually codes.
    """
    named: list[str] = []
    others: list[str] = []
    level: list[tuple[str, Any]] = [("", data)]
    looked_at = 0
    for _ in range(_MAX_DEPTH):
        below: list[tuple[str, Any]] = []
        for name, value in level[: _MAX_SEARCHED - looked_at]:
            looked_at += 1
            if isinstance(value, str):
                value = _decoded(value) or value
            if isinstance(value, Mapping) and "role" not in value:
                inner = islice(value.items(), _MAX_SEARCHED)
                below += [(str(key), each) for key, each in inner if not _NOT_A_REASON.match(str(key))]
            elif isinstance(value, list):
                below += [(name, each) for each in value[:_MAX_PARTS]]
            elif isinstance(value, str) and len((text := value[:_MAX_TEXT]).split()) > 1:
                is_named = _OF_A_REASON.search(name) is not None
                words = " ".join(text.split())
                (named if is_named else others).append(words if is_named or not name else f"{name}: {words}")
        if named:
            break
        level = below
    return (named or others)[:_MAX_PARTS]


def _of_object(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name in _TITLES:
        yield from _reasons(value.get(name), depth)
    yield from next(filter(None, (list(_reasons(value.get(name), depth)) for name in _REASONS)), ())
    for name in _INSIDE:
        inner = value.get(name)
        if name == "errors" and isinstance(inner, Mapping):
            yield from _by_field(inner, depth)
        elif name != "data" or isinstance(inner, list):
            yield from _reasons(inner, depth)


def _by_field(errors: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield the reasons listed by field, as in ASP.NET and Rails, or those of one error object."""
    if any(name in errors for name in (*_REASONS, *_INSIDE)):
        yield from _reasons(errors, depth)
        return
    for field, inner in list(errors.items())[:_MAX_PARTS]:
        for text in _reasons(inner, depth):
            yield f"{field}: {text}"


def _place(value: Mapping[str, Any]) -> str:
    for name in _PLACES:
        place = value.get(name)
        if isinstance(place, list):
            place = ".".join(map(plain, place[:_MAX_DEPTH]))
        if isinstance(place, str) and 0 < len(place) <= 100:
            return place
    return ""
